"""Build a recipe's artefact once, in a process of its own, and describe it as a Variant.

fp32 and bf16 open the exported graph as it is; the int8 kinds share one artefact for all engines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vengine.digests import canonical_json, digest_json, digest_tree, from_json
from vengine.engines.base import model_files
from vengine.errors import UsageError, VengineError, WorkerError
from vengine.graph.builder import LADDER_FILE, PASSES_FILE, USER_FAULT, Job, read_ladder, write_feeds
from vengine.graph.quantize import RAW_FOLDER
from vengine.graph.sensitivity import Ladder
from vengine.packing import ADDED, fill, pieces_of, rows_of
from vengine.tune.candidates import HALF_RANGE, IN_FLOAT, PORTABLE, required_isa
from vengine.tune.profiles import PACKED, ROW_TOKENS
from vengine.types import PassResult, Recipe, Source, Variant

if TYPE_CHECKING:
    import numpy as np

    from vengine.graph.switchboard import Relative

T = TypeVar("T")
BUILD_TIMEOUT_S = 1800.0
_LADDER_FEEDS = 12
_PATIENCE = 2.0  # loading, and one measurement under way, come on top of a ladder's own time


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where artefacts are built and from what."""

    model: Path  # the exported graph, or the OpenVINO IR
    directory: Path
    calibration: Sequence[dict[str, np.ndarray]]
    transformer: bool
    source: Source | None = None  # what packed graphs are exported from

    def build(self, recipe: Recipe) -> Variant:
        """The recipe as files that one engine opens.

        Raises:
            WorkerError: the quantiser crashed, hung, or went over the memory limit.
            UsageError: the recipe changes nothing, or names what isn't there.
        """
        model, made = self._packed() if PACKED in recipe.passes else (self.model, ())
        if not recipe.precision.startswith("int8"):
            return describe(recipe, model, model_files(model), made)
        target = self._folder(recipe)
        if not (target / PASSES_FILE).exists():
            self._quantize(recipe, model, target)
        entry = target / ("model.xml" if model.suffix == ".xml" else "model.onnx")
        return describe(recipe, entry, model_files(entry), (*made, *_results(target)))

    def ladder(self, recipe: Recipe, saved_ms: Mapping[str, float], relative: Relative, seconds: float) -> Ladder:
        """Which units of this static int8 recipe hurt, measured in a process of its own (see `graph.sensitivity`).

        Args:
            recipe: without units in float; it is built if need be.
            saved_ms: milliseconds that int8 saves at each operator of the graph.
            relative: what an error of the outputs is told relative to.

        Raises:
            WorkerError: the process ended before it measured anything.
        """
        assert PACKED not in recipe.passes
        self.build(recipe)
        # What int8 saves is another question on another engine; the damage is the same, and measured again.
        target = self._folder(recipe) / f"ladder-{recipe.engine}-{recipe.precision}"
        if not (target / PASSES_FILE).exists():
            target.mkdir(parents=True, exist_ok=True)
            job = Job(
                kind="ladder",
                model=self.model,
                target=target,
                raw=self._folder(recipe) / RAW_FOLDER,
                saved_ms=tuple(saved_ms.items()),
                relative=relative,
                seconds=seconds,
                threads=recipe.profile.threads,
            )
            with suppress(WorkerError):  # what was measured until then is on disk
                _fed(job, spread(self.calibration, _LADDER_FEEDS), recipe.profile.threads, seconds * _PATIENCE)
        if not (target / LADDER_FILE).exists():
            raise WorkerError("no unit's damage could be measured", where=str(target / "build.log"))
        return read_ladder(target)

    def _folder(self, recipe: Recipe) -> Path:
        kind = "int8-dynamic" if recipe.precision == "int8-dynamic" else "int8-static"
        return self.directory / digest_json([kind, recipe.passes])[7:23]

    def _packed(self) -> tuple[Path, tuple[PassResult, ...]]:
        """The graph that reads packed rows, exported when it is first asked for."""
        assert self.source is not None
        target = self.directory / PACKED
        refused = target / "refused"
        if refused.exists():
            raise WorkerError(refused.read_text())
        if not (target / PASSES_FILE).exists():
            target.mkdir(parents=True, exist_ok=True)
            try:
                _supervise(Job(kind=PACKED, model=self.model, target=target, source=self.source), threads=1)
            except VengineError as error:
                refused.write_text(error.what)
                raise
        return target / "model.onnx", _results(target)

    def _feeds(self, recipe: Recipe) -> list[dict[str, np.ndarray]]:
        """The calibration calls as the recipe's graph reads them."""
        if PACKED not in recipe.passes:
            return list(self.calibration)
        names = [name for name in self.calibration[0] if name != "attention_mask"]
        rows = rows_of(pieces_of(self.calibration), ROW_TOKENS[0])
        return [fill([row], self.calibration, (*names, *ADDED)) for row in rows]

    def _quantize(self, recipe: Recipe, model: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        portable = PORTABLE in recipe.passes
        if in_float := _words(recipe, IN_FLOAT):
            plain = plain_recipe(recipe)
            self.build(plain)
            raw = self._folder(plain) / RAW_FOLDER
            job = Job(kind="back-to-float", model=model, target=target, raw=raw, in_float=in_float, portable=portable)
            _supervise(job, recipe.profile.threads)
            return
        job = Job(
            kind="int8-dynamic" if recipe.precision == "int8-dynamic" else "int8-static",
            model=model,
            target=target,
            transformer=self.transformer,
            half_range=HALF_RANGE in recipe.passes,
            portable=portable,
            op_types=_words(recipe, "only:"),
            keep=_words(recipe, "keep:"),
        )
        _fed(job, self._feeds(recipe), recipe.profile.threads, BUILD_TIMEOUT_S)


def plain_recipe(recipe: Recipe) -> Recipe:
    """The same recipe with nothing taken back into float."""
    return replace(recipe, passes=tuple(word for word in recipe.passes if not word.startswith(IN_FLOAT)))


def spread(items: Sequence[T], count: int) -> list[T]:
    """So many of the items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


def _results(target: Path) -> tuple[PassResult, ...]:
    return tuple(from_json(PassResult, row) for row in json.loads((target / PASSES_FILE).read_text()))


def _fed(job: Job, feeds: Sequence[dict[str, np.ndarray]], threads: int, timeout_s: float) -> None:
    """Run a job that reads these calls; they lie beside it only so long."""
    calibration = job.target / "calibration.npz"
    write_feeds(calibration, list(feeds))
    try:
        _supervise(replace(job, calibration=calibration), threads, timeout_s)
    finally:
        calibration.unlink()


def _supervise(job: Job, threads: int, timeout_s: float = BUILD_TIMEOUT_S) -> None:
    """Run one build job to its end in a process of its own."""
    path, log = job.target / "job.json", job.target / "build.log"
    path.write_bytes(canonical_json(job))
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path),
        "OMP_NUM_THREADS": str(threads),
    }
    command = [sys.executable, "-P", "-m", "vengine.graph.builder", str(path), str(os.getpid())]
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=env) as process:
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise WorkerError(f"the quantiser was not done after {timeout_s:g} s", where=str(log)) from None
        except BaseException:
            process.kill()
            raise
    if code == 0:
        return
    last = log.read_text(errors="replace").strip().splitlines()[-3:]
    if code == USER_FAULT:
        raise UsageError(" ".join(last))
    by = f"was ended by signal {-code}" if code < 0 else f"left with exit code {code}"
    raise WorkerError(f"the quantiser {by}; it last printed: {' | '.join(last)}", where=str(log))


def describe(recipe: Recipe, entry: Path, files: Sequence[Path], passes: tuple[PassResult, ...]) -> Variant:
    """Name files by their content and their recipe."""
    root = entry if entry.is_dir() else entry.parent
    return Variant(
        recipe=recipe,
        directory=root,
        entry="." if entry.is_dir() else entry.name,
        digest=digest_json([digest_tree(root, files), recipe]),
        size_bytes=sum(f.stat().st_size for f in files),
        required_isa=required_isa(recipe, passes),
        passes=passes,
    )


def _words(recipe: Recipe, prefix: str) -> tuple[str, ...]:
    return tuple(word.removeprefix(prefix) for word in recipe.passes if word.startswith(prefix))
