"""One graph in which each quantised unit can be switched to float, call by call.

Measuring the damage of a hundred units one by one would mean a hundred graphs to load. Here each input that the
quantiser replaced becomes Where(switch, original, quantised), and the switches are one more input of the graph: one
session answers for every choice of units. Quantised products run as their float simulation (dequantised operands),
which differs from an integer kernel by the order of additions only.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from vengine.graph.passes import idle_quantizers
from vengine.graph.switches import SWITCHES, add_switches
from vengine.graph.units import Unit, float_value, units_of

if TYPE_CHECKING:
    import onnx_ir as ir

Feeds = dict[str, npt.NDArray[Any]]
Relative = Literal["own", "spread"]
_LEAST_FEEDS, _MEASUREMENTS = 3, 40


class Switchboard:
    """The outputs of a quantised graph, for any choice of units that run in float.

    Args:
        original, quantized: the graph before and after the quantiser (ONNX files).
        feeds: the calls on which damage is measured; a handful, each warm in memory.
        relative: an output's error is told relative to the output's own length ("own", for vectors and maps, where
            direction counts) or to how far the outputs of the feeds lie apart ("spread", for logits and scores).
        threads: compute threads.
        seconds: so many feeds are used (three at least) that `_MEASUREMENTS` choices fit into this time.
    """

    def __init__(
        self,
        original: Path,
        quantized: Path,
        feeds: Sequence[Feeds],
        *,
        relative: Relative,
        threads: int,
        seconds: float = math.inf,
    ) -> None:
        import onnx_ir as ir

        before, after = ir.load(str(original)), ir.load(str(quantized))
        idle_quantizers.run(after)  # what no integer kernel uses is taken out of every artefact
        self.units = units_of(before, after)
        self._number = {unit.name: i for i, unit in enumerate(self.units)}
        self._feeds, self._known = tuple(feeds), dict[frozenset[str], npt.NDArray[np.float64]]()
        with TemporaryDirectory(prefix="vengine-") as folder:
            path = Path(folder) / "switched.onnx"
            _switch(before, after, self.units)
            ir.save(after, str(path), external_data="switched.data")
            self._session = _open(path, threads)
        self._floats = [o.name for o in self._session.get_outputs() if "float" in o.type]
        self._run(frozenset(self._number), self._feeds[0])  # the first call allocates
        self._reference = self._float_outputs(seconds)
        self._feeds = self._feeds[: len(self._reference)]
        self._scale = _scales(self._reference, relative)

    @property
    def samples(self) -> int:
        """Calls on which damage is measured."""
        return len(self._feeds)

    @property
    def measured(self) -> int:
        """Choices that were run so far."""
        return len(self._known)

    def damages(self, in_float: Collection[str]) -> npt.NDArray[np.float64]:
        """[feeds]: squared error of the outputs, relative; 2 (1 − cosine) for vectors that keep their length."""
        chosen = frozenset(in_float)
        if chosen not in self._known:
            rows = zip(self._feeds, self._reference, self._scale, strict=True)
            self._known[chosen] = np.array([_error(self._run(chosen, feed), want, scale) for feed, want, scale in rows])
        return self._known[chosen]

    def damage(self, in_float: Collection[str]) -> float:
        """The root mean square over the feeds: a mean that a single bad sample can move."""
        return float(np.sqrt(np.mean(self.damages(in_float) ** 2)))

    def _float_outputs(self, seconds: float) -> list[list[npt.NDArray[np.float64]]]:
        found: list[list[npt.NDArray[np.float64]]] = []
        started = time.monotonic()
        for feed in self._feeds:
            if len(found) >= _LEAST_FEEDS and (time.monotonic() - started) * _MEASUREMENTS > seconds:
                break
            found.append(self._run(frozenset(self._number), feed))
        return found

    def _run(self, in_float: frozenset[str], feed: Feeds) -> list[npt.NDArray[np.float64]]:
        switches = np.zeros(len(self.units), bool)
        switches[[self._number[name] for name in in_float]] = True
        return [np.asarray(o, np.float64) for o in self._session.run(self._floats, {**feed, SWITCHES: switches})]


def _switch(before: ir.Model, after: ir.Model, units: Sequence[Unit]) -> None:
    import onnx_ir as ir

    nodes = {node.name: node for node in after.graph}
    for i, (unit, switch) in enumerate(zip(units, add_switches(after.graph, len(units)), strict=True)):
        for j, place in enumerate(unit.places):
            node = nodes[place.node]
            quantized = node.inputs[place.index]
            choice = ir.node(
                "Where",
                [switch, float_value(before, after, place), quantized],
                name=f"vengine_choice_{i}_{j}",
            )
            after.graph.insert_before(node, choice)
            node.replace_input_with(place.index, choice.outputs[0])


def _open(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # nothing may be fused across a switch
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _scales(reference: Sequence[list[npt.NDArray[np.float64]]], relative: Relative) -> list[list[float]]:
    """[feeds][outputs]: the squared length that an error is told relative to."""
    if relative == "own":
        return [[float((rows**2).sum()) or 1.0 for rows in outputs] for outputs in reference]
    spreads = []
    for outputs in zip(*reference, strict=True):
        flat = np.concatenate([rows.reshape(-1, rows.shape[-1]) for rows in outputs])
        spreads.append(float(((flat - flat.mean(axis=0)) ** 2).sum(axis=1).mean()) or 1.0)
    return [
        [spread * (rows.size // rows.shape[-1]) for spread, rows in zip(spreads, outputs, strict=True)]
        for outputs in reference
    ]


def _error(got: list[npt.NDArray[np.float64]], want: list[npt.NDArray[np.float64]], scale: list[float]) -> float:
    return max(float(((g - w) ** 2).sum()) / s for g, w, s in zip(got, want, scale, strict=True))
