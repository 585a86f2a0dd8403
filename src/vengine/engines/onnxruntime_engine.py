"""ONNX Runtime on the CPU. Every precision opens the file as it is; "reference" optimises nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

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
from vengine.types import RuntimeProfile, Task, TensorSpec

INSTALL = "pip install onnxruntime"
PRECISIONS = ("fp32", "fp16", "int8-dynamic", "int8-static", "reference")
_FATAL_ONLY = 4
_DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
}


class OnnxRuntimeEngine:
    """Opens .onnx files; external data must lie beside them."""

    name = "onnxruntime"

    def availability(self) -> Availability:
        return package_availability("onnxruntime", INSTALL)

    def open(self, path: Path, precision: str, profile: RuntimeProfile, *, task: Task | None = None) -> Session:
        refuse_precision(self.name, precision, PRECISIONS)
        require_file(self.name, path)
        try:
            import onnxruntime
        except ImportError as error:
            raise EngineMissing(f"onnxruntime can't be imported: {error}", next_step=INSTALL) from error
        onnxruntime.set_default_logger_severity(_FATAL_ONLY)

        def load(trace: Path | None) -> Any:
            options = _options(onnxruntime, precision, profile)
            if trace is not None:
                options.enable_profiling, options.profile_file_prefix = True, str(trace)
            return in_own_thread(
                lambda: onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            )

        try:
            return OnnxRuntimeSession(load, precision, profile.streams)
        except Exception as error:
            raise EngineError(f"onnxruntime refuses the model: {_short(error)}", where=str(path)) from error


def _options(onnxruntime: Any, precision: str, profile: RuntimeProfile) -> Any:
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_DISABLE_ALL if precision == "reference" else levels.ORT_ENABLE_ALL
    # Each stream's own thread takes part in its call; the pool, which they share, adds the others.
    options.intra_op_num_threads = max(1, profile.threads - profile.streams + 1)
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = profile.arena
    # A memory pattern is kept for each shape that is met: with free lengths that only grows.
    options.enable_mem_pattern = False
    options.log_severity_level = _FATAL_ONLY
    spin = "1" if profile.spinning else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spin)
    # The pool spins within a call, where it pays, and not after it, where it takes the cores from whoever runs next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    flush = "0" if precision == "reference" else "1"
    options.add_session_config_entry("session.set_denormal_as_zero", flush)
    return options


class OnnxRuntimeSession:
    """One loaded ONNX file.

    Args:
        load: gives the runtime's session; with a path, one that writes its profile to a file that begins so.
        precision, streams: as asked for.
    """

    def __init__(self, load: Callable[[Path | None], Any], precision: str, streams: int) -> None:
        self._load, self._backend = load, load(None)
        self._streams = ThreadPoolExecutor(streams, thread_name_prefix="vengine-stream") if streams > 1 else None
        self.inputs = tuple(_spec(node) for node in self._backend.get_inputs())
        self.outputs = tuple(_spec(node) for node in self._backend.get_outputs())
        self.precision_run = "fp32" if precision == "reference" else precision
        self._input_names = [spec.name for spec in self.inputs]
        self._output_names = [spec.name for spec in self.outputs]

    def run(self, feeds: Feeds) -> Outputs:
        return dict(zip(self._output_names, self._call(self._backend, feeds), strict=True))

    def _call(self, backend: Any, feeds: Feeds) -> list[Any]:
        arrays = arrange(self.inputs, feeds)
        try:
            results: list[Any] = backend.run(self._output_names, dict(zip(self._input_names, arrays, strict=True)))
        except Exception as error:
            raise EngineError(f"onnxruntime failed to run: {_short(error)}") from error
        return results

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        if self._streams is None or len(many) < 2:
            return [self.run(feeds) for feeds in many]
        return list(self._streams.map(self.run, many))

    def record(self, many: Sequence[Feeds]) -> list[Recording]:
        from vengine.engines.onnxruntime_trace import read_trace

        walls = []
        with TemporaryDirectory(prefix="vengine-") as folder:
            watched = self._load(Path(folder) / "ort")
            for feeds in many[:WARM_CALLS]:
                self._call(watched, feeds)
            for feeds in many:
                started = perf_counter()
                self._call(watched, feeds)
                walls.append((perf_counter() - started) * 1000)
            return read_trace(Path(watched.end_profiling()), walls)

    def close(self) -> None:
        if self._streams is not None:
            self._streams.shutdown()
        self._backend = None


def _spec(node: Any) -> TensorSpec:
    dtype = _DTYPES.get(node.type, node.type.removeprefix("tensor(").removesuffix(")"))
    return TensorSpec(name=node.name, dtype=dtype, shape=named_axes(node.shape or ()))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
