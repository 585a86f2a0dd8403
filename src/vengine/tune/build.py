"""Build a recipe's artefact, step by step, each in a process of its own, and describe it as a Variant.

    exported graph → "packed" or "passes" → a quantiser → units back to float → fp16 or bf16 with a keep-list

A step's folder is named by all that it was made with, so recipes share what they have in common: int8 for two engines
is one artefact, and fp32 and bf16 open the exported graph as it is.
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
from typing import TYPE_CHECKING

from vengine.digests import canonical_json, digest_json, digest_tree, from_json
from vengine.engines.base import model_files
from vengine.errors import UsageError, VengineError, WorkerError
from vengine.graph.builder import LADDER_FILE, PASSES_FILE, USER_FAULT, Job, read_ladder, spread, write_feeds
from vengine.graph.quantize import RAW_FOLDER
from vengine.graph.sensitivity import Ladder
from vengine.packing import ADDED, fill, pieces_of, rows_of
from vengine.tune.candidates import HALF_IO, HALF_RANGE, IN_FLOAT, KEEP_LIST, PORTABLE, TIGHT_KEEP_LIST, required_isa
from vengine.tune.profiles import PACKED, ROW_TOKENS
from vengine.types import PIPELINE_WORDS, WEIGHTS_ONLY, PassResult, Recipe, Source, Variant, in_int8

if TYPE_CHECKING:
    import numpy as np

    from vengine.graph.switchboard import Relative

BACK_TO_FLOAT = "back-to-float"
_LADDER_FEEDS = 12
_PATIENCE = 2.0  # loading, and one measurement under way, come on top of a ladder's own time
BUILD_TIMEOUT_S = 1800.0
Step = tuple[str, tuple[str, ...]]
# Precision → kind of the step that narrows what is float.
_NARROWED = {
    "mixed-bf16": "bf16",
    "int8-static-mixed-bf16": "int8-bf16",
    "fp16": "fp16",
    **{precision: precision for precision in WEIGHTS_ONLY},
}
_CALIBRATED = ("int8-static", "bf16", "fp16", "int8-bf16")  # steps that look at calls
REFUSED_FILE = "refused"  # why a step can't be done: it isn't tried again for the next recipe


@dataclass(frozen=True, kw_only=True)
class Built:
    """What the steps so far have left."""

    entry: Path
    passes: tuple[PassResult, ...] = ()
    kind: str = ""  # of the last step
    before: Built | None = None  # that step

    @property
    def folder(self) -> Path:
        return self.entry.parent

    def back_to(self, kind: str) -> Built:
        """What the step of that kind has left."""
        return self if self.kind == kind or self.before is None else self.before.back_to(kind)


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where artefacts are built and from what."""

    model: Path  # the exported graph, or the OpenVINO IR
    directory: Path
    calibration: Sequence[dict[str, np.ndarray]]
    transformer: bool
    source: Source | None = None  # for packed graphs and for checks of passes

    def build(self, recipe: Recipe) -> Variant:
        """The recipe as files that one engine opens.

        Raises:
            WorkerError: a step crashed, hung, or went over the memory limit.
            UsageError: the recipe changes nothing, or names what isn't there.
        """
        built = self._built(recipe)
        return describe(recipe, built.entry, model_files(built.entry), built.passes)

    def ladder(self, recipe: Recipe, saved_ms: Mapping[str, float], relative: Relative, seconds: float) -> Ladder:
        """Which units of this static int8 recipe hurt, measured in a process of its own (see `graph.sensitivity`).

        Args:
            recipe: without units in float; it is built if need be.
            saved_ms: milliseconds that int8 saves at each operator of the graph.
            relative: what an error of the outputs is told relative to.

        Raises:
            WorkerError: the process ended before it measured anything.
        """
        quantised = self._built(recipe).back_to("int8-static")
        assert quantised.before is not None
        # What int8 saves is another question on another engine; the damage is the same, and measured again.
        target = quantised.folder / f"ladder-{recipe.engine}-{recipe.precision}"
        if not (target / PASSES_FILE).exists():
            job = Job(
                kind="ladder",
                model=quantised.before.entry,
                target=target,
                raw=quantised.folder / RAW_FOLDER,
                saved_ms=tuple(saved_ms.items()),
                relative=relative,
                seconds=seconds,
                threads=recipe.profile.threads,
            )
            with suppress(WorkerError):  # what was measured until then is on disk
                _supervise(job, spread(self._feeds(recipe), _LADDER_FEEDS), job.threads, seconds * _PATIENCE)
        if not (target / LADDER_FILE).exists():
            raise WorkerError("no unit's damage could be measured", where=str(target / "build.log"))
        return read_ladder(target)

    def measured_ladder(self) -> Ladder | None:
        """The ladder that this question's searches measured last; None where none was needed."""
        found = sorted(self.directory.glob(f"*/*/{LADDER_FILE}"), key=lambda path: path.stat().st_mtime)
        return read_ladder(found[-1].parent) if found else None

    def _built(self, recipe: Recipe) -> Built:
        built = Built(entry=self.model)
        done: list[Step] = []
        for step in steps(recipe):
            done.append(step)
            built = self._step(step[0], recipe, built, self.directory / digest_json(done)[7:23])
        return built

    def _step(self, kind: str, recipe: Recipe, before: Built, target: Path) -> Built:
        refused = target / REFUSED_FILE
        if refused.exists():
            raise WorkerError(refused.read_text())
        if not (target / PASSES_FILE).exists():
            job = self._job(kind, recipe, before, target)
            feeds = self._feeds(recipe) if kind in _CALIBRATED else ()
            try:
                _supervise(job, feeds, recipe.profile.threads, BUILD_TIMEOUT_S)
            except VengineError as error:
                refused.write_text(error.what)
                raise
        passes = tuple(from_json(PassResult, row) for row in json.loads((target / PASSES_FILE).read_text()))
        entry = next(path for name in ("model.xml", "model.onnx") if (path := target / name).exists())
        # Taking back starts from what the quantiser was given, and tells of the quantiser again.
        base = before.before if kind == BACK_TO_FLOAT and before.before is not None else before
        return Built(entry=entry, passes=(*base.passes, *passes), kind=kind, before=before)

    def _job(self, kind: str, recipe: Recipe, before: Built, target: Path) -> Job:
        back = kind == BACK_TO_FLOAT
        assert not back or before.before is not None
        return Job(
            kind=kind,
            model=before.before.entry if back and before.before else before.entry,
            target=target,
            transformer=self.transformer,
            half_range=HALF_RANGE in recipe.passes,
            portable=PORTABLE in recipe.passes,
            op_types=_words(recipe, "only:"),
            keep=_words(recipe, "keep:"),
            raw=before.folder / RAW_FOLDER if back else None,
            in_float=_words(recipe, IN_FLOAT) if back else (),
            tight=TIGHT_KEEP_LIST in recipe.passes,
            keep_io_types=HALF_IO not in recipe.passes,
            pipelines=_pipelines(recipe),
            source=self.source,
        )

    def _feeds(self, recipe: Recipe) -> list[dict[str, np.ndarray]]:
        """The calibration calls as the recipe's graph reads them."""
        if PACKED not in recipe.passes:
            return list(self.calibration)
        names = [name for name in self.calibration[0] if name != "attention_mask"]
        rows = rows_of(pieces_of(self.calibration), ROW_TOKENS[0])
        return [fill([row], self.calibration, (*names, *ADDED)) for row in rows]


def steps(recipe: Recipe) -> list[Step]:
    """(kind of job, the recipe's words that matter to it), in the order in which they are done."""
    found: list[Step] = []
    if PACKED in recipe.passes:
        found.append((PACKED, ()))
    elif pipelines := _pipelines(recipe):
        found.append(("passes", pipelines))
    words = tuple(word for word in recipe.passes if word not in (PACKED, *PIPELINE_WORDS))
    if in_int8(recipe.precision):
        kind = "int8-dynamic" if recipe.precision == "int8-dynamic" else "int8-static"
        found.append((kind, tuple(word for word in words if not word.startswith((KEEP_LIST, IN_FLOAT)))))
        if in_float := tuple(word for word in words if word.startswith(IN_FLOAT)):
            found.append((BACK_TO_FLOAT, in_float))
    if recipe.precision in _NARROWED:
        found.append((_NARROWED[recipe.precision], words))
    return found


def _supervise(job: Job, feeds: Sequence[dict[str, np.ndarray]], threads: int, timeout_s: float) -> None:
    """Run one build job to its end in a process of its own; its calls lie beside it meanwhile."""
    job.target.mkdir(parents=True, exist_ok=True)
    calibration = job.target / "calibration.npz"
    write_feeds(calibration, list(feeds))
    path = job.target / "job.json"
    path.write_bytes(canonical_json(replace(job, calibration=calibration)))
    try:
        _wait_for(path, job.target / "build.log", threads, timeout_s)
    finally:
        calibration.unlink()


def _wait_for(path: Path, log: Path, threads: int, timeout_s: float) -> None:
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
            raise WorkerError(f"the builder was not done after {timeout_s:g} s", where=str(log)) from None
        except BaseException:
            process.kill()
            raise
    if code == 0:
        return
    last = log.read_text(errors="replace").strip().splitlines()[-3:]
    if code == USER_FAULT:
        raise UsageError(" ".join(last))
    by = f"was ended by signal {-code}" if code < 0 else f"left with exit code {code}"
    raise WorkerError(f"the builder {by}; it last printed: {' | '.join(last)}", where=str(log))


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


def _pipelines(recipe: Recipe) -> tuple[str, ...]:
    return tuple(word for word in recipe.passes if word in PIPELINE_WORDS)


def _words(recipe: Recipe, prefix: str) -> tuple[str, ...]:
    return tuple(word.removeprefix(prefix) for word in recipe.passes if word.startswith(prefix))
