"""The seam: what an engine is, what a session is, and how feeds are checked before they run.

An engine opens a file and gives a session; a session turns feeds into outputs. Nothing registers
itself by being imported: `ENGINES` below is the list.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt

from vengine.errors import EngineError, UsageError
from vengine.types import RuntimeProfile, Task, TensorSpec

if TYPE_CHECKING:
    from vengine.engines.recording import Recording

T = TypeVar("T")
Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Outputs = dict[str, Array]

ENGINES = ("torch", "onnxruntime", "openvino")
"""Engines that are raced. "fake" can be opened by name, but never wins a race by accident."""

_HOME = {
    "torch": "vengine.engines.torch_engine:TorchEngine",
    "onnxruntime": "vengine.engines.onnxruntime_engine:OnnxRuntimeEngine",
    "openvino": "vengine.engines.openvino_engine:OpenVinoEngine",
    "fake": "vengine.engines.fake_engine:FakeEngine",
}


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Whether an engine can be used here; `reason` and `install` say why not and what helps."""

    ok: bool
    version: str = ""
    reason: str = ""
    install: str = ""


class Session(Protocol):
    """A model that is loaded and ready to run."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def precision_run(self) -> str:
        """The precision that really runs, read back from the engine where it tells."""
        ...

    def run(self, feeds: Feeds) -> Outputs:
        """One call. The outputs belong to the caller: the next call doesn't overwrite them."""
        ...

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        """Independent calls, side by side where the profile has streams; results in order."""
        ...

    def record(self, many: Sequence[Feeds]) -> list[Recording]:
        """Run the calls one after the other under the engine's own profiler, warm: what each node took.

        Where watching has to be asked for at loading, the model is loaded once more for it: `run` stays as it is.
        """
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """Opens models for one runtime."""

    @property
    def name(self) -> str: ...

    def availability(self) -> Availability: ...

    def open(self, path: Path, precision: str, profile: RuntimeProfile, *, task: Task | None = None) -> Session:
        """Load a model.

        Args:
            path: the file, or the directory of an untouched model.
            precision: as in `Recipe`.
            profile: threads, streams, spinning, arena. Chunks are the caller's: see `planned`.
            task: how a directory is to be read where the user overrides it; files know their own.

        Raises:
            EngineMissing: the runtime isn't installed.
            EngineError: it refuses the model, or would run another precision than asked for.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Opening:
    """What an engine is asked to open."""

    engine: str
    path: Path
    precision: str
    profile: RuntimeProfile
    task: Task | None = None

    @property
    def session_key(self) -> Opening:
        """Equal for openings that can share a session: chunks are cut, and rows are packed, outside of it."""
        return replace(self, profile=replace(self.profile, chunk_tokens=None, row_tokens=None))

    def open(self) -> Session:
        """The engine's bare session: rows are not packed, chunks are not cut."""
        return get_engine(self.engine).open(self.path, self.precision, self.profile, task=self.task)


def get_engine(name: str) -> Engine:
    """The engine of that name; its runtime is imported when a model is opened, not here.

    Raises:
        UsageError: there is no such engine.
    """
    if name not in _HOME:
        raise UsageError(f"there is no engine {name!r}", next_step=f"choose one of {', '.join(ENGINES)}")
    module, _, attribute = _HOME[name].partition(":")
    return cast("Engine", getattr(importlib.import_module(module), attribute)())


def package_availability(package: str, install: str) -> Availability:
    """Look a package up without importing it: torch alone would take a second."""
    if util.find_spec(package) is None:
        return Availability(ok=False, reason=f"the package {package} is not installed", install=install)
    try:
        return Availability(ok=True, version=metadata.version(package), install=install)
    except metadata.PackageNotFoundError:
        return Availability(ok=True, version="unknown", install=install)


def in_own_thread(load: Callable[[], T]) -> T:
    """Load a model in a thread that ends afterwards.

    To flush denormal numbers, engines switch the floating-point mode of the thread that loads the
    model, for good: in the caller's own thread, numpy would compute otherwise ever after.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="vengine-loading") as pool:
        return pool.submit(load).result()


def refuse_precision(engine: str, precision: str, known: Sequence[str]) -> None:
    """Raise EngineError unless the engine has that precision."""
    if precision not in known:
        raise EngineError(
            f"{engine} has no precision {precision!r}",
            next_step=f"choose one of {', '.join(known)}",
        )


def require_file(engine: str, path: Path) -> None:
    """Raise EngineError unless there is something to open."""
    if not path.exists():
        raise EngineError(f"{engine} can't open a file that isn't there", where=str(path))


def model_files(entry: Path) -> list[Path]:
    """The files that belong to a model: an ONNX file and its external data, or an IR's pair."""
    beside = entry.with_suffix(".bin") if entry.suffix == ".xml" else entry.with_name(entry.name + ".data")
    return [p for p in (entry, beside) if p.exists()]


def arrange(specs: Sequence[TensorSpec], feeds: Feeds) -> list[Array]:
    """A model's inputs in its order: contiguous, whole numbers cast to the width it wants.

    Raises:
        UsageError: an input is missing or unknown, or has the wrong dtype or number of axes.
    """
    if len(feeds) != len(specs) or any(spec.name not in feeds for spec in specs):
        _refuse_names(specs, feeds)
    return [_fit(spec, feeds[spec.name]) for spec in specs]


def _refuse_names(specs: Sequence[TensorSpec], feeds: Feeds) -> None:
    names = {spec.name for spec in specs}
    missing, extra = sorted(names - set(feeds)), sorted(set(feeds) - names)
    what = f"input {missing[0]!r} is missing" if missing else f"the model has no input {extra[0]!r}"
    raise UsageError(what, next_step=f"the inputs are {', '.join(spec.name for spec in specs)}")


def _fit(spec: TensorSpec, array: Array) -> Array:
    if not _has_form(spec, array):
        raise UsageError(
            f"input {spec.name!r} has the shape {_words(array.shape)}, the model wants {_words(spec.shape)}",
            next_step="give arrays with a batch axis and the sizes that the model states",
        )
    if array.dtype.name == spec.dtype and array.flags.c_contiguous:
        return array
    wanted = np.dtype(spec.dtype)
    if wanted != array.dtype and not (wanted.kind in "iub" and array.dtype.kind in "iub"):
        raise UsageError(
            f"input {spec.name!r} is {array.dtype.name}, the model wants {spec.dtype}",
            next_step=f"convert it: array.astype({spec.dtype!r})",
        )
    return np.ascontiguousarray(array, dtype=wanted)


def _has_form(spec: TensorSpec, array: Array) -> bool:
    """Whether the number of axes is right, and each fixed size."""
    return array.ndim == len(spec.shape) and all(
        isinstance(wanted, str) or wanted == size for wanted, size in zip(spec.shape, array.shape, strict=True)
    )


def _words(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def require_rows(outputs: Mapping[str, Array], count: int) -> None:
    """Raise EngineError unless every output has one row for each of the call's inputs."""
    for name, array in outputs.items():
        if array.shape[:1] != (count,):
            raise EngineError(
                f"output {name!r} has the shape {_words(array.shape)} for a call of {count}: one row each was expected",
                next_step="don't use this variant: it loses answers, or invents some",
            )


def named_axes(shape: Sequence[object]) -> tuple[int | str, ...]:
    """A shape whose free axes have names: the engine's own, else batch, length (of two) or dimN."""

    def name(axis: int, size: object) -> int | str:
        if isinstance(size, int) and size >= 0:
            return size
        if isinstance(size, str) and size:
            return size
        if axis == 0:
            return "batch"
        return "length" if axis == 1 else f"dim{axis}"

    return tuple(name(axis, size) for axis, size in enumerate(shape))


def size_of(inputs: Sequence[TensorSpec], feeds: Feeds) -> tuple[int, int]:
    """The size of a call: its batch, and its tokens (batch × padded length; without a length, the batch)."""
    for spec in inputs:
        if len(spec.shape) > 1 and isinstance(spec.shape[1], str):
            shape = feeds[spec.name].shape
            return max(1, int(shape[0])), max(1, int(shape[0]) * int(shape[1]))
    shape = feeds[inputs[0].name].shape if inputs else ()
    batch = max(1, int(shape[0])) if shape else 1
    return batch, batch
