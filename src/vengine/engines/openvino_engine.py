"""OpenVINO on the CPU: .onnx and .xml alike, with every choice pinned and read back.

Left alone, OpenVINO runs fp32 models in bf16 where the CPU has it. Here the precision is what was
asked for, and the compiled graph is searched for proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from vengine.engines.base import (
    Availability,
    Feeds,
    Outputs,
    Session,
    arrange,
    in_own_thread,
    named_axes,
    package_availability,
    refuse_precision,
    require_file,
)
from vengine.engines.recording import WARM_CALLS, Recording
from vengine.errors import EngineError, EngineMissing
from vengine.hardware import has_bf16, machine
from vengine.types import WEIGHTS_ONLY, RuntimeProfile, Task, TensorSpec, in_int8

INSTALL = "pip install 'vengine[openvino]'"
PRECISIONS = (
    *("fp32", "bf16", "mixed-bf16", "reference", *WEIGHTS_ONLY),
    *("int8-static", "int8-static-bf16", "int8-static-mixed-bf16"),
)
"""\"mixed\" files say themselves what runs in bf16, and \"fp16-weights\" and its kin compute in fp32.
\"reference\" runs an IR as its author left it, int8 parts included, with floats in fp32."""
_HEAVY = frozenset({"FullyConnected", "MatMul", "Convolution", "Deconvolution", "MatMulQuantized"})
_INT8 = frozenset({"i8", "u8"})


class OpenVinoEngine:
    """Opens .onnx files and OpenVINO IR."""

    name = "openvino"

    def availability(self) -> Availability:
        return package_availability("openvino", INSTALL)

    def open(self, path: Path, precision: str, profile: RuntimeProfile, *, task: Task | None = None) -> Session:
        refuse_precision(self.name, precision, PRECISIONS)
        require_file(self.name, path)
        # A hint of bf16 would take the nodes along that a mixed file keeps in fp32.
        hint = "bf16" if precision in ("bf16", "int8-static-bf16") else "f32"
        if precision.endswith("bf16") and not has_bf16(machine().isa):
            raise EngineError("this CPU has no bf16 instructions", next_step="choose another precision")
        try:
            import openvino
        except ImportError as error:
            raise EngineMissing(f"openvino can't be imported: {error}", next_step=INSTALL) from error

        properties = _properties(profile, hint, flush=precision != "reference")

        def load(more: dict[str, Any]) -> tuple[Any, Any]:
            core = openvino.Core()
            model = core.read_model(path)
            return in_own_thread(lambda: core.compile_model(model, "CPU", properties | more)), model

        try:
            compiled, _ = load({})
        except Exception as error:
            raise EngineError(f"openvino refuses the model: {_short(error)}", where=str(path)) from error
        _prove(compiled, precision, hint, profile)
        return OpenVinoSession(compiled, precision, profile, lambda: load({"PERF_COUNT": True}))


def _properties(profile: RuntimeProfile, hint: str, *, flush: bool) -> dict[str, Any]:
    return {
        "INFERENCE_PRECISION_HINT": hint,
        "INFERENCE_NUM_THREADS": profile.threads,
        "NUM_STREAMS": profile.streams,
        # Streams and precision are given, so the hints have nothing left to choose.
        "PERFORMANCE_HINT": "LATENCY" if profile.streams == 1 else "THROUGHPUT",
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "CPU_DENORMALS_OPTIMIZATION": flush,
    }


def _prove(compiled: Any, precision: str, hint: str, profile: RuntimeProfile) -> None:
    """Raise EngineError unless the compiled graph runs what was asked for."""
    names = {"bf16": "bfloat16", "f32": "float32"}
    said = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    if said not in (hint, names[hint]):
        raise EngineError(f"openvino runs {said} although {precision} was asked for")
    streams = int(compiled.get_property("NUM_STREAMS"))
    if streams != profile.streams:
        raise EngineError(f"openvino opened {streams} streams, {profile.streams} were asked for")
    what = _mismatch(_heavy_precisions(compiled, weights_only=precision in WEIGHTS_ONLY), precision, hint)
    if what:
        raise EngineError(f"{what} although {precision} was asked for")


def _mismatch(ran: set[str], precision: str, hint: str) -> str:
    """What the matrix products run in that wasn't asked for; "" when all is as it should be."""
    if not ran:
        return ""
    if hint == "f32" and "bf16" in ran and not precision.endswith("mixed-bf16"):
        return "some matrix products run in bf16"
    if in_int8(precision) and not ran & _INT8:
        return "no matrix product runs in int8"
    if precision in ("fp32", "bf16", "mixed-bf16", *WEIGHTS_ONLY) and ran & _INT8:
        return "some matrix products run in int8"
    if precision in ("bf16", "mixed-bf16") and "bf16" not in ran:
        return "no matrix product runs in bf16"
    return ""


def _heavy_precisions(compiled: Any, *, weights_only: bool = False) -> set[str]:
    """The precisions in which the compiled graph's matrix products and convolutions run.

    Beside narrow weights OpenVINO tells the weights' type there, and what it computes in at the kernel's end
    ("undef_f32", "brgemm_avx512_I8").
    """
    found = set()
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        if info["layerType"].astype(str) in _HEAVY:
            told = info["runtimePrecision"].astype(str)
            kernel = info["primitiveType"].astype(str).rsplit("_", 1)[-1]
            found.add({"I8": "i8", "BF16": "bf16"}.get(kernel, kernel) if weights_only else told)
    return found


class OpenVinoSession:
    """One compiled model with as many requests as keep its streams busy.

    Args:
        compiled, precision, profile: the model, and what it was asked for with.
        watched: compiles it once more so that its nodes count their time, and gives the graph that was read as well.
    """

    def __init__(
        self, compiled: Any, precision: str, profile: RuntimeProfile, watched: Callable[[], tuple[Any, Any]]
    ) -> None:
        self._watched = watched
        self._compiled = compiled
        self._streams = profile.streams
        self._requests = [compiled.create_infer_request()]
        self.inputs = tuple(_spec(port) for port in compiled.inputs)
        self.outputs = tuple(_spec(port) for port in compiled.outputs)
        self.precision_run = _said(compiled) if precision == "reference" else precision
        self._output_names = tuple(spec.name for spec in self.outputs)

    def run(self, feeds: Feeds) -> Outputs:
        self._infer(self._requests[0], feeds)
        return self._take(self._requests[0])

    def _infer(self, request: Any, feeds: Feeds) -> None:
        arrays = dict(enumerate(arrange(self.inputs, feeds)))
        try:
            request.infer(arrays, share_inputs=True, share_outputs=True)
        except Exception as error:
            raise EngineError(f"openvino failed to run: {_short(error)}") from error

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        """Keep every stream busy: twice as many requests wait as there are streams.

        The oldest request is collected first; while it is late, the others' successors already
        wait inside OpenVINO, so no stream stands idle for a round to end.
        """
        if self._streams == 1 or len(many) < 2:
            return [self.run(feeds) for feeds in many]
        window = min(len(many), 2 * self._streams)
        while len(self._requests) < window:
            self._requests.append(self._compiled.create_infer_request())
        arranged = [dict(enumerate(arrange(self.inputs, feeds))) for feeds in many]
        try:
            return self._stream(arranged, window)
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(f"openvino failed to run: {_short(error)}") from error

    def _stream(self, arranged: Sequence[dict[int, Any]], window: int) -> list[Outputs]:
        results: list[Outputs] = []
        started = 0
        try:
            for index in range(len(arranged)):
                while started < min(index + window, len(arranged)):
                    self._requests[started % window].start_async(arranged[started], share_inputs=True)
                    started += 1
                request = self._requests[index % window]
                request.wait()
                results.append(self._take(request))
        except BaseException:
            # Requests that still run read the feeds' memory: it must outlive them.
            for request in self._requests[:window]:
                _settle(request)
            raise
        return results

    def _take(self, request: Any) -> Outputs:
        # A copy: the request's own memory is overwritten by its next call.
        return {name: np.array(request.get_output_tensor(index).data) for index, name in enumerate(self._output_names)}

    def record(self, many: Sequence[Feeds]) -> list[Recording]:
        from vengine.engines.openvino_trace import Counters, read_counters

        compiled, model = self._watched()
        request, warm, walls = compiled.create_infer_request(), many[:WARM_CALLS], []
        for feeds in warm:
            self._infer(request, feeds)
        before = Counters(calls=len(warm), items=request.get_profiling_info())
        for feeds in many:
            started = perf_counter()
            self._infer(request, feeds)
            walls.append((perf_counter() - started) * 1000)
        after = Counters(calls=len(warm) + len(many), items=request.get_profiling_info())
        shapes = [tuple(array.shape for array in arrange(self.inputs, feeds)) for feeds in many]
        return read_counters(compiled, model, (before, after), walls, shapes)

    def close(self) -> None:
        self._requests = []
        self._compiled = None


def _said(compiled: Any) -> str:
    return "int8-static" if _heavy_precisions(compiled) & _INT8 else "fp32"


def _settle(request: Any) -> None:
    try:
        request.wait()
    except Exception:  # the first failure is the one that is reported
        return


def _spec(port: Any) -> TensorSpec:
    shape = tuple(axis.get_length() if axis.is_static else None for axis in port.get_partial_shape())
    return TensorSpec(
        name=_name(port), dtype=np.dtype(port.get_element_type().to_dtype()).name, shape=named_axes(shape)
    )


def _name(port: Any) -> str:
    """A port may have several names; the model's own is the one its result node is called after."""
    names = sorted(port.get_names())
    friendly = port.get_node().get_friendly_name()
    fitting = [name for name in names if friendly == name or friendly.startswith(name + "/")]
    return str((fitting or names or [friendly])[0])


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
