"""Build a recipe's artefact, step by step, each in a process of its own, and describe it as a Variant.

    exported graph → "packed" or "passes" → a quantiser → fp16 or bf16 with a keep-list

A step's folder is named by all that it was made with, so recipes share what they have in common: int8 for two engines
is one artefact, and fp32 and bf16 open the exported graph as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vengine.digests import canonical_json, digest_json, digest_tree, from_json
from vengine.engines.base import model_files
from vengine.errors import UsageError, VengineError, WorkerError
from vengine.graph.builder import PASSES_FILE, USER_FAULT, Job, write_feeds
from vengine.packing import ADDED, fill, pieces_of, rows_of
from vengine.tune.candidates import HALF_IO, KEEP_LIST, TIGHT_KEEP_LIST, required_isa
from vengine.tune.profiles import PACKED, ROW_TOKENS
from vengine.types import PIPELINE_WORDS, PassResult, Recipe, Source, Variant

if TYPE_CHECKING:
    import numpy as np

BUILD_TIMEOUT_S = 1800.0
Step = tuple[str, tuple[str, ...]]
# Precision → kind of the step that narrows what is float.
_NARROWED = {
    "mixed-bf16": "bf16",
    "int8-static-mixed-bf16": "int8-bf16",
    "fp16": "fp16",
    "fp16-weights": "fp16-weights",
}
_CALIBRATED = ("int8-static", "bf16", "fp16", "int8-bf16")  # steps that look at calls
REFUSED_FILE = "refused"  # why a step can't be done: it isn't tried again for the next recipe


@dataclass(frozen=True, kw_only=True)
class Built:
    """What the steps so far have left."""

    entry: Path
    passes: tuple[PassResult, ...] = ()


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
        built = Built(entry=self.model)
        done: list[Step] = []
        for kind, words in steps(recipe):
            done.append((kind, words))
            target = self.directory / digest_json(done)[7:23]
            built = self._step(kind, recipe, built, target)
        return describe(recipe, built.entry, model_files(built.entry), built.passes)

    def _step(self, kind: str, recipe: Recipe, before: Built, target: Path) -> Built:
        refused = target / REFUSED_FILE
        if refused.exists():
            raise WorkerError(refused.read_text())
        if not (target / PASSES_FILE).exists():
            target.mkdir(parents=True, exist_ok=True)
            try:
                self._run(kind, recipe, before, target)
            except VengineError as error:
                refused.write_text(error.what)
                raise
        passes = tuple(from_json(PassResult, row) for row in json.loads((target / PASSES_FILE).read_text()))
        entry = next(path for name in ("model.xml", "model.onnx") if (path := target / name).exists())
        return Built(entry=entry, passes=(*before.passes, *passes))

    def _run(self, kind: str, recipe: Recipe, before: Built, target: Path) -> None:
        calibration = target / "calibration.npz"
        write_feeds(calibration, self._feeds(recipe) if kind in _CALIBRATED else [])
        job = Job(
            kind=kind,
            model=before.entry,
            target=target,
            calibration=calibration,
            transformer=self.transformer,
            half_range="half-range-weights" in recipe.passes,
            op_types=_words(recipe, "only:"),
            keep=_words(recipe, "keep:"),
            tight=TIGHT_KEEP_LIST in recipe.passes,
            keep_io_types=HALF_IO not in recipe.passes,
            pipelines=_pipelines(recipe),
            source=self.source,
        )
        try:
            _supervise(job, recipe.profile.threads)
        finally:
            calibration.unlink()

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
    if recipe.precision.startswith("int8"):
        kind = "int8-dynamic" if recipe.precision == "int8-dynamic" else "int8-static"
        found.append((kind, tuple(word for word in words if not word.startswith(KEEP_LIST))))
    if recipe.precision in _NARROWED:
        found.append((_NARROWED[recipe.precision], words))
    return found


def _supervise(job: Job, threads: int) -> None:
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
            code = process.wait(timeout=BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise WorkerError(f"the builder was not done after {BUILD_TIMEOUT_S:g} s", where=str(log)) from None
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
        required_isa=required_isa(recipe),
        passes=passes,
    )


def _pipelines(recipe: Recipe) -> tuple[str, ...]:
    return tuple(word for word in recipe.passes if word in PIPELINE_WORDS)


def _words(recipe: Recipe, prefix: str) -> tuple[str, ...]:
    return tuple(word.removeprefix(prefix) for word in recipe.passes if word.startswith(prefix))
