"""Build one artefact in a process of its own: `python -m vengine.graph.builder JOB.json PARENT_PID`.

A quantiser or a rewriter may crash, hang or eat the memory; then a trial fails, and the search goes on. The job names
the model that it starts from, the kind of artefact, the calibration feeds (.npz files) and the target directory; the
passes' results come back as `passes.json` in the target.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from vengine.digests import from_json, to_json
from vengine.errors import VengineError
from vengine.graph.export_packed import export_packed
from vengine.graph.half_weights import write_half_weights
from vengine.graph.mixed_precision import write_half, write_half_int8
from vengine.graph.pipeline import PIPELINES, apply
from vengine.graph.quantize import MODEL_FILE, finish, quantize_dynamic, quantize_ir, quantize_static
from vengine.graph.sensitivity import Ladder, climb
from vengine.graph.weight_only import write_weight_only
from vengine.lifetime import die_with
from vengine.types import PassResult, Source

if TYPE_CHECKING:
    import numpy as np

T = TypeVar("T")
PASSES_FILE = "passes.json"
LADDER_FILE = "ladder.json"
_FEW = 8  # calls on which a keep-list is searched: each costs a run for each question
USER_FAULT = 2  # exit code: the job asks for what can't be; its last lines say what


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to build. `kind` is one of `_BUILDERS`.

    "back-to-float" makes another artefact of what an "int8-static" job left in `raw`; "ladder" makes none, and
    measures on it which units should be taken back.
    """

    kind: str
    model: Path
    target: Path
    calibration: Path | None = None
    transformer: bool = True
    half_range: bool = False
    op_types: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    pipelines: tuple[str, ...] = ()  # of `graph.pipeline.PIPELINES`
    source: Source | None = None  # what a packed graph is exported from, and what pipelines are checked with
    portable: bool = False
    raw: Path | None = None
    in_float: tuple[str, ...] = ()
    saved_ms: tuple[tuple[str, float], ...] = ()  # by operator of the graph, as the engine tells
    relative: Literal["own", "spread"] = "own"
    seconds: float = 60.0
    threads: int = 1
    tight: bool = False  # the keep-list is searched until the error is a quarter of what it was
    keep_io_types: bool = True


def build(job: Job) -> tuple[PassResult, ...]:
    """Run the job in this process."""
    return _BUILDERS[job.kind](job)


def _packed(job: Job) -> tuple[PassResult, ...]:
    assert job.source is not None
    return export_packed(job.source, job.target)


def _passes(job: Job) -> tuple[PassResult, ...]:
    assert job.source is not None
    return apply(job.model, job.target, [step for word in job.pipelines for step in PIPELINES[word]], job.source)


def _static(job: Job) -> tuple[PassResult, ...]:
    words = {"op_types": job.op_types, "keep": job.keep}
    feeds = _calibration(job)
    if job.model.suffix == ".xml":
        return quantize_ir(
            job.model, job.target, feeds, transformer=job.transformer, half_range=job.half_range, **words
        )
    return quantize_static(
        job.model,
        job.target,
        feeds,
        transformer=job.transformer,
        half_range=job.half_range,
        portable=job.portable,
        **words,
    )


def _back_to_float(job: Job) -> tuple[PassResult, ...]:
    assert job.raw is not None
    return finish(job.model, job.raw, job.target, in_float=job.in_float, portable=job.portable)


def _ladder(job: Job) -> tuple[PassResult, ...]:
    from vengine.graph.switchboard import Switchboard

    assert job.raw is not None
    raw, seconds = job.raw / MODEL_FILE, 0.7 * job.seconds
    board = Switchboard(job.model, raw, _calibration(job), relative=job.relative, threads=job.threads, seconds=seconds)
    told = dict(job.saved_ms)
    # A fused kernel is told for each operator in it: a unit's time is that of one of them, not their sum.
    saved = {u.name: max((told[n] for n in u.nodes if n in told), key=abs, default=0.0) for u in board.units}
    climb(board, saved, job.seconds, lambda ladder: write_ladder(job.target, ladder))
    return ()


def _dynamic(job: Job) -> tuple[PassResult, ...]:
    words = {"op_types": job.op_types, "keep": job.keep}
    return quantize_dynamic(job.model, job.target, half_range=job.half_range, **words)


def _half_weights(job: Job) -> tuple[PassResult, ...]:
    return write_half_weights(job.model, job.target, keep=job.keep, keep_io_types=job.keep_io_types)


def _weight_only(job: Job) -> tuple[PassResult, ...]:
    return write_weight_only(job.model, job.target, 4 if job.kind == "int4-weights" else 8, keep=job.keep)


def _half(job: Job) -> tuple[PassResult, ...]:
    write = write_half_int8 if job.kind == "int8-bf16" else write_half
    return write(
        job.model,
        job.target,
        "fp16" if job.kind == "fp16" else "bf16",
        spread(sorted(_calibration(job), key=_size), _FEW),
        keep=job.keep,
        op_types=job.op_types,
        keep_io_types=job.keep_io_types,
        tight=job.tight,
    )


_BUILDERS: Mapping[str, Callable[[Job], tuple[PassResult, ...]]] = {
    "packed": _packed,
    "passes": _passes,
    "int8-static": _static,
    "back-to-float": _back_to_float,
    "ladder": _ladder,
    "int8-dynamic": _dynamic,
    "fp16-weights": _half_weights,
    "int8-weights": _weight_only,
    "int4-weights": _weight_only,
    "fp16": _half,
    "bf16": _half,
    "int8-bf16": _half,
}


def _calibration(job: Job) -> list[dict[str, np.ndarray]]:
    assert job.calibration is not None
    return read_feeds(job.calibration)


def write_ladder(folder: Path, ladder: Ladder) -> None:
    """Keep the best so far: whole, or as it was before."""
    part = folder / f"{LADDER_FILE}.part"
    part.write_text(json.dumps(to_json(ladder)))
    part.replace(folder / LADDER_FILE)


def read_ladder(folder: Path) -> Ladder:
    """Inverse of `write_ladder`."""
    return from_json(Ladder, json.loads((folder / LADDER_FILE).read_text()))


def spread(items: Sequence[T], count: int) -> list[T]:
    """So many of the items, evenly spaced, the first and the last among them."""
    if len(items) <= count:
        return list(items)
    return [items[i * (len(items) - 1) // (count - 1)] for i in range(count)]


def _size(feed: Mapping[str, Any]) -> int:
    return sum(int(array.size) for array in feed.values())


def write_feeds(path: Path, feeds: list[dict[str, np.ndarray]]) -> None:
    """Keep calibration feeds: one .npz, keys "number:name"."""
    import numpy as np

    arrays: dict[str, Any] = {f"{i}:{name}": value for i, feed in enumerate(feeds) for name, value in feed.items()}
    np.savez(path, **arrays)


def read_feeds(path: Path) -> list[dict[str, np.ndarray]]:
    """Inverse of `write_feeds`; nothing is unpickled."""
    import numpy as np

    feeds: dict[int, dict[str, np.ndarray]] = {}
    with np.load(path, allow_pickle=False) as archive:
        for key in archive.files:
            number, name = key.split(":", 1)
            feeds.setdefault(int(number), {})[name] = archive[key]
    return [feeds[i] for i in sorted(feeds)]


def main() -> int:
    """Read the job, build, write the passes' results; a fault goes to stderr in one line."""
    die_with(int(sys.argv[2]))  # a run that resumes builds in the same folder
    job = from_json(Job, json.loads(Path(sys.argv[1]).read_text()))
    try:
        passes = build(job)
    except VengineError as error:
        print(error.what, file=sys.stderr)
        return USER_FAULT
    part = job.target / f"{PASSES_FILE}.part"
    part.write_text(json.dumps(to_json(passes)))
    part.replace(job.target / PASSES_FILE)  # whole or absent: its presence says that the artefact is complete
    return 0


if __name__ == "__main__":
    sys.exit(main())
