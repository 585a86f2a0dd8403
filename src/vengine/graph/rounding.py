"""What a narrow type does to a graph's answers, on any machine: the graph in fp32, with a switch at every node.

A node that is switched on reads its float inputs rounded to the type and rounds what it gives, as a kernel does that
multiplies in the type and adds up in fp32 (which is what bf16 and fp16 instructions do). Engines on a CPU without such
kernels compute in fp32 all the same, and would hide an overflow. One session serves every choice of nodes, so asking
costs a run. What happens inside a node (a sum in the type) is not seen here: that is for the rules in `ranges`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vengine.graph.half_precision import HalfType, allows, convertible
from vengine.graph.known import add_initializer
from vengine.graph.switches import SWITCHES, add_switches

if TYPE_CHECKING:
    import onnx_ir as ir

Feeds = Mapping[str, Any]
_FLOOR = 1e-12


class Rounding:
    """The graph of an ONNX file with switches.

    Args:
        path: the file; its weights may lie beside it.
        samples: calls on which answers are compared.
    """

    def __init__(self, path: Path, half: HalfType, samples: Sequence[Feeds]) -> None:
        model = typed_model(path)
        self.names = tuple(node.name or "" for node in convertible(model, half))
        self._samples = samples
        outputs = [value.name for value in model.graph.outputs]
        _Switches(model, half, self.names).install()
        self._session, self._outputs = session_of(model, path.parent), outputs
        self._wanted = [self._run(sample, ()) for sample in samples]
        self.runs = 0

    def error(self, keep: Collection[str]) -> float:
        """The largest relative error of a row of an output while all nodes but these are rounded; inf for NaN.

        A row's error is the length of the difference ÷ the length of the row in fp32. Outputs of whole numbers count
        the share of those that changed.
        """
        self.runs += 1
        worst = 0.0
        for sample, wanted in zip(self._samples, self._wanted, strict=True):
            got = self._run(sample, [name for name in self.names if name not in keep])
            worst = max(worst, *(_error(one, two) for one, two in zip(wanted, got, strict=True)))
            if worst == float("inf"):
                return worst
        return worst

    def _run(self, sample: Feeds, on: Collection[str]) -> list[Any]:
        chosen = set(on)
        switches = np.array([name in chosen for name in self.names], bool)
        found: list[Any] = self._session.run(self._outputs, {**sample, SWITCHES: switches})
        return found


def typed_model(path: Path) -> ir.Model:
    """The ONNX file with the types of all its values, and a name of its own for each node; weights stay outside."""
    import onnx
    import onnx_ir as ir

    proto = onnx.load(str(path), load_external_data=False)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(proto, data_prop=True))
    ir.external_data.set_base_dir(model.graph, path.parent)
    taken: set[str] = set()
    for place, node in enumerate(model.graph):
        if not node.name or node.name in taken:
            node.name = f"{node.name or node.op_type}_{place}"
        taken.add(node.name)
    return model


def session_of(model: ir.Model, weights_in: Path) -> Any:
    """The graph in ONNX Runtime, exactly as it is written: nothing fused, nothing folded."""
    import onnx_ir as ir
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(weights_in))
    return onnxruntime.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


class _Switches:
    """Puts a switch on each float that a node reads or gives."""

    def __init__(self, model: ir.Model, half: HalfType, names: Sequence[str]) -> None:
        import onnx_ir as ir

        self._ir, self._model, self._half, self._names = ir, model, half, names
        self._rounded: dict[ir.Value, ir.Value] = {}

    def install(self) -> None:
        graph = self._model.graph
        by_name = {node.name: node for node in graph}
        for name, switch in zip(self._names, add_switches(graph, len(self._names)), strict=True):
            self._switch(by_name[name], switch)

    def _switch(self, node: ir.Node, on: ir.Value) -> None:
        float32, opsets = self._ir.DataType.FLOAT, self._model.opset_imports
        for place, value in enumerate(node.inputs):
            if value is not None and value.dtype == float32 and allows(node, place, self._half, opsets):
                node.replace_input_with(place, self._choice(value, on, node, f"{node.name}_in{place}", before=True))
        for place, value in enumerate(node.outputs):
            if value.dtype == float32 and allows(node, place, self._half, opsets, output=True) and list(_users(value)):
                self._after(node, place, value, on)

    def _after(self, node: ir.Node, place: int, value: ir.Value, on: ir.Value) -> None:
        """The node's users read the choice, under the old name."""
        name, value.name = value.name, f"{value.name}_exact"
        users = list(value.uses())
        chosen = self._choice(value, on, node, f"{node.name}_out{place}", before=False)
        for user, where in users:
            user.replace_input_with(where, chosen)
        chosen.name = name
        graph = self._model.graph
        for where, output in enumerate(graph.outputs):
            if output is value:
                graph.outputs[where] = chosen

    def _choice(self, value: ir.Value, on: ir.Value, node: ir.Node, name: str, *, before: bool) -> ir.Value:
        where = self._ir.node("Where", [on, self._round(value, node, before=before), value], name=name)
        made: ir.Value = where.outputs[0]
        made.name, made.dtype, made.shape = name, value.dtype, value.shape
        if before:
            self._model.graph.insert_before(node, where)
        else:
            self._model.graph.insert_after(self._last, where)
        return made

    def _round(self, value: ir.Value, node: ir.Node, *, before: bool) -> ir.Value:
        if value in self._rounded:
            return self._rounded[value]
        if value.is_initializer() and value.const_value is not None:
            made = self._constant(value)
        else:
            there = self._ir.node("Cast", [value], attributes={"to": self._half.onnx}, name=f"{value.name}_there")
            back = self._ir.node("Cast", there.outputs, attributes={"to": 1}, name=f"{value.name}_back")
            for cast in (there, back):
                cast.outputs[0].name = cast.name
            if before:
                self._model.graph.insert_before(node, [there, back])
            else:
                self._model.graph.insert_after(node, [there, back])
                self._last = back
            made = back.outputs[0]
        self._rounded[value] = made
        return made

    def _constant(self, value: ir.Value) -> ir.Value:
        assert value.const_value is not None
        with np.errstate(over="ignore"):
            rounded = value.const_value.numpy().astype(self._half.numpy).astype(np.float32)
        return add_initializer(self._model.graph, f"{value.name}_rounded", rounded)


def _users(value: ir.Value) -> list[Any]:
    return [*value.uses(), *([value] if value.is_graph_output() else [])]


def _error(wanted: Any, got: Any) -> float:
    if wanted.shape != got.shape:
        return float("inf")
    if wanted.dtype.kind != "f":
        return float((wanted != got).mean()) if wanted.size else 0.0
    if not wanted.size:
        return 0.0
    one, two = (a.astype(np.float64).reshape(len(a) if a.ndim > 1 else 1, -1) for a in (wanted, got))
    known = np.isfinite(one)
    if not np.isfinite(two[known]).all():
        return float("inf")
    difference = np.where(known, one - np.where(known, two, 0.0), 0.0)
    lengths = np.maximum(np.linalg.norm(np.where(known, one, 0.0), axis=1), _FLOOR)
    return float((np.linalg.norm(difference, axis=1) / lengths).max())
