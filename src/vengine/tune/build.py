"""Build a recipe's artefact once, in a process of its own, and describe it as a Variant.

fp32 and bf16 open the exported graph as it is; static int8 is one artefact for all engines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vengine.digests import canonical_json, digest_json, digest_tree, from_json
from vengine.engines.base import model_files
from vengine.errors import UsageError, WorkerError
from vengine.graph.builder import PASSES_FILE, USER_FAULT, Job, write_feeds
from vengine.tune.candidates import HALF_IO, KEEP_LIST, TIGHT_KEEP_LIST, required_isa
from vengine.types import PassResult, Recipe, Variant

if TYPE_CHECKING:
    import numpy as np

BUILD_TIMEOUT_S = 1800.0
# Precision → kind of artefact; int8-static and int8-static-bf16 share one.
_KINDS = {
    "int8-dynamic": "int8-dynamic",
    "mixed-bf16": "bf16",
    "int8-static-mixed-bf16": "int8-bf16",
    "fp16": "fp16",
    "fp16-weights": "fp16-weights",
}


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Where artefacts are built and from what."""

    model: Path  # the exported graph, or the OpenVINO IR
    directory: Path
    calibration: Sequence[dict[str, np.ndarray]]
    transformer: bool

    def build(self, recipe: Recipe) -> Variant:
        """The recipe as files that one engine opens.

        Raises:
            WorkerError: the quantiser crashed, hung, or went over the memory limit.
            UsageError: the recipe changes nothing, or names what isn't there.
        """
        if recipe.precision in ("fp32", "bf16"):
            return describe(recipe, self.model, model_files(self.model), ())
        before: tuple[PassResult, ...] = ()
        kind, model = _KINDS.get(recipe.precision, "int8-static"), self.model
        if kind == "int8-bf16":
            words = tuple(word for word in recipe.passes if not word.startswith(KEEP_LIST))
            base = self.build(replace(recipe, precision="int8-static", passes=words))
            model, before = base.directory / base.entry, base.passes
        target = self.directory / digest_json([kind, recipe.passes])[7:23]
        if not (target / PASSES_FILE).exists():
            self._run(kind, model, recipe, target)
        passes = tuple(from_json(PassResult, row) for row in json.loads((target / PASSES_FILE).read_text()))
        entry = next(path for name in ("model.xml", "model.onnx") if (path := target / name).exists())
        return describe(recipe, entry, model_files(entry), (*before, *passes))

    def _run(self, kind: str, model: Path, recipe: Recipe, target: Path) -> None:
        target.mkdir(parents=True, exist_ok=True)
        calibration = target / "calibration.npz"
        write_feeds(calibration, list(self.calibration))
        job = Job(
            kind=kind,
            model=model,
            target=target,
            calibration=calibration,
            transformer=self.transformer,
            half_range="half-range-weights" in recipe.passes,
            op_types=_words(recipe, "only:"),
            keep=_words(recipe, "keep:"),
            tight=TIGHT_KEEP_LIST in recipe.passes,
            keep_io_types=HALF_IO not in recipe.passes,
        )
        path = target / "job.json"
        path.write_bytes(canonical_json(job))
        _supervise(path, target / "build.log", recipe.profile.threads)
        calibration.unlink()


def _supervise(job: Path, log: Path, threads: int) -> None:
    """Run one build job to its end in a process of its own."""
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(os.path.abspath(p) for p in sys.path),
        "OMP_NUM_THREADS": str(threads),
    }
    command = [sys.executable, "-P", "-m", "vengine.graph.builder", str(job), str(os.getpid())]
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
