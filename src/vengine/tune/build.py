"""Build a recipe's artefact once, in a process of its own, and describe it as a Variant.

fp32 and bf16 open the exported graph as it is; the int8 kinds share one artefact for all engines.
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
from vengine.tune.candidates import required_isa
from vengine.tune.profiles import PACKED, ROW_TOKENS
from vengine.types import PassResult, Recipe, Source, Variant

if TYPE_CHECKING:
    import numpy as np

BUILD_TIMEOUT_S = 1800.0


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
        kind = "int8-dynamic" if recipe.precision == "int8-dynamic" else "int8-static"
        target = self.directory / digest_json([kind, recipe.passes])[7:23]
        if not (target / PASSES_FILE).exists():
            self._quantize(kind, recipe, model, target)
        entry = target / ("model.xml" if model.suffix == ".xml" else "model.onnx")
        return describe(recipe, entry, model_files(entry), (*made, *_results(target)))

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

    def _quantize(self, kind: str, recipe: Recipe, model: Path, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        calibration = target / "calibration.npz"
        write_feeds(calibration, self._feeds(recipe))
        job = Job(
            kind=kind,
            model=model,
            target=target,
            calibration=calibration,
            transformer=self.transformer,
            half_range="half-range-weights" in recipe.passes,
            op_types=_words(recipe, "only:"),
            keep=_words(recipe, "keep:"),
        )
        _supervise(job, recipe.profile.threads)
        calibration.unlink()


def _results(target: Path) -> tuple[PassResult, ...]:
    return tuple(from_json(PassResult, row) for row in json.loads((target / PASSES_FILE).read_text()))


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
            raise WorkerError(f"the quantiser was not done after {BUILD_TIMEOUT_S:g} s", where=str(log)) from None
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
        required_isa=required_isa(recipe),
        passes=passes,
    )


def _words(recipe: Recipe, prefix: str) -> tuple[str, ...]:
    return tuple(word.removeprefix(prefix) for word in recipe.passes if word.startswith(prefix))
