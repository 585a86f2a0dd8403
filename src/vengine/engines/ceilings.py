"""What this machine can do at best, measured now: matrix products a second, and bytes of memory a second.

A ceiling is the best of several runs, because whatever disturbs a run only lowers it. It is measured in the process,
and with the threads, of what it is compared with.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

_SIDE = 1024  # of the square matrices: large enough for full speed, small enough for a core's share of the cache
_SECONDS = 0.4  # for each ceiling
_LEAST_RUNS = 4
_COPY_BYTES = 256 << 20  # far beyond any cache's share
_PRECISIONS = ("fp32", "bf16", "int8")


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The most of something that was reached."""

    value: float  # operations or bytes a second
    by: str  # what reached it: "openvino", "numpy", …


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """The ceilings of this machine with so many threads; None where nothing here could measure one."""

    threads: int
    fp32: Ceiling | None = None
    bf16: Ceiling | None = None
    int8: Ceiling | None = None
    memory: Ceiling | None = None  # bytes read and written by a copy


def measure(threads: int, copy_bytes: int = _COPY_BYTES) -> Ceilings:
    """Measure all of them; about three seconds.

    Args:
        threads: as many as what is compared had. numpy's own are set by the environment, before it is loaded.
        copy_bytes: size of the array that is copied; twice that is needed.
    """
    found = {precision: _best(precision, threads) for precision in _PRECISIONS}
    return Ceilings(threads=threads, memory=_copy(threads, copy_bytes), **found)


def _best(precision: str, threads: int) -> Ceiling | None:
    makers: tuple[Callable[[str, int], tuple[str, Callable[[], Any]] | None], ...] = (_openvino, _numpy)
    ready = [found for make in makers if (found := make(precision, threads)) is not None]
    reached = [Ceiling(value=2.0 * _SIDE**3 / _fastest(run), by=by) for by, run in ready]
    return max(reached, key=lambda ceiling: ceiling.value, default=None)


def _fastest(run: Callable[[], Any]) -> float:
    run()
    best, runs, started = float("inf"), 0, time.perf_counter()
    while runs < _LEAST_RUNS or time.perf_counter() - started < _SECONDS:
        at = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - at)
        runs += 1
    return best


def _numpy(precision: str, threads: int) -> tuple[str, Callable[[], Any]] | None:
    if precision != "fp32":
        return None
    left, right = _operands()
    out = np.empty_like(left)
    return "numpy", lambda: np.matmul(left, right, out=out)


def _openvino(precision: str, threads: int) -> tuple[str, Callable[[], Any]] | None:
    """One product in a compiled graph, if OpenVINO is here and really runs it in that precision."""
    try:
        import openvino
    except ImportError:
        return None
    properties = {
        "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    try:
        compiled = openvino.Core().compile_model(_graph(openvino, precision), "CPU", properties)
    except RuntimeError:
        return None
    if precision not in _ran(compiled):
        return None
    request, (left, _) = compiled.create_infer_request(), _operands()
    return "openvino", lambda: request.infer([left], share_inputs=True, share_outputs=True)


def _graph(openvino: Any, precision: str) -> Any:
    from openvino import opset13 as ops

    _, right = _operands()
    data = ops.parameter([_SIDE, _SIDE], np.float32)
    if precision != "int8":
        return openvino.Model([ops.matmul(data, ops.constant(right), False, False)], [data])
    low, high = np.float32(-1), np.float32(1)
    first = ops.fake_quantize(data, low, high, low, high, 256)
    second = ops.fake_quantize(ops.constant(right), low, high, low, high, 255)
    return openvino.Model([ops.matmul(first, second, False, False)], [data])


def _ran(compiled: Any) -> set[str]:
    from vengine.engines.openvino_trace import facts_of

    return {fact.precision for fact in facts_of(compiled).values() if fact.kind in ("FullyConnected", "MatMul")}


def _operands() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    left, right = (draw.uniform(-1, 1, (_SIDE, _SIDE)).astype(np.float32) for _ in range(2))
    return left, right


def _copy(threads: int, copy_bytes: int) -> Ceiling:
    source = np.ones(copy_bytes, np.uint8)
    target = np.zeros(copy_bytes, np.uint8)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    with ThreadPoolExecutor(threads, thread_name_prefix="vengine-copy") as pool:
        seconds = _fastest(lambda: list(pool.map(lambda part: np.copyto(part[1], part[0]), parts)))
    return Ceiling(value=2.0 * copy_bytes / seconds, by=f"a copy of {copy_bytes >> 20} MiB")
