"""`vengine bench A [B …]`: sources and bundles in one race, each in a process of its own, by turns.

A source runs as its author meant it: what `optimize` calls the original. A bundle runs as it would here: its plan,
its variants, its measured profiles. Ratios are to the first target.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vengine.bundle.read import Bundle, open_bundle
from vengine.digests import to_json
from vengine.errors import UsageError
from vengine.types import Source, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from vengine.engines.process import WorkerSession
    from vengine.text import Encoding
    from vengine.tune.race import Load, Times

    Feeds = dict[str, np.ndarray]

TEXT_SHAPES = ((1, 16), (1, 128), (8, 128))  # when none are asked for
TENSOR_SHAPES = ((1, 1), (8, 1))
_LIST = 128  # texts drawn from the lengths, as one list
_ARRIVING = 32  # a source gets the list in batches of so many, in the order of arrival
_BATCH_TOKENS = 512  # a bundle that cuts nothing gets batches of so many, by length
_ROUNDS = (5, 40)
Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, kw_only=True)
class _Target:
    """One contender before it is loaded."""

    name: str
    model: Source | Bundle
    inputs: tuple[TensorSpec, ...]
    max_tokens: int | None
    reads_texts: bool

    @property
    def kind(self) -> str:
        return "bundle" if isinstance(self.model, Bundle) else "source"


def bench(
    targets: Sequence[str | Path],
    shapes: Sequence[tuple[int, int]] = (),
    lengths: str | Path | Sequence[int] | None = None,
    *,
    threads: int | None = None,
    seconds: float = 60.0,
    seed: int = 0,
    progress: Tell | None = None,
) -> dict[str, Any]:
    """Race models against each other.

    Args:
        targets: sources (as for `optimize`) and bundles, in any mix; the first is what the others are compared with.
        shapes: calls of batch × length tokens; () takes 1×16, 1×128 and 8×128, or batches 1 and 8 of a tensor model.
        lengths: a file, or tokens a text: also race a list of 128 texts of such lengths. A source gets it in batches
            of 32 in the order of arrival, a bundle sorts it by length.
        threads: for every contender; None: this machine's for sources, the measured ones for bundles.
        seconds: the time box; five rounds are done even when it is over.
        progress: called with events (see `vengine.report.progress`).

    Returns:
        `targets` [{name, kind, digest, runs, threads, peak_rss_bytes}], `rows` [{load, cells [{ms, ratio, rounds}]}]
        with cells in the order of the targets, `machine`. `ms` and `ratio` are intervals (value, low, high); a ratio
        above 1 is faster than the first target; the first one's is null.

    Raises:
        VengineError: a target can't be opened, or a shape is longer than a model's longest text.
    """
    from vengine.hardware import machine, threads_for
    from vengine.tune.race import Contender, race

    here = machine()
    opened = [_open(str(target), name) for target, name in zip(targets, _names(targets), strict=True)]
    arriving = _arriving(lengths, opened, seed)
    loads = _loads(opened, shapes, arriving)
    with ExitStack() as stack:
        workers: dict[str, WorkerSession] = {}
        for target in opened:
            worker = workers[target.name] = _start(target, threads, threads_for(here, threads))
            stack.callback(worker.close)
            worker.pause()
        contenders = [
            Contender(name=t.name, worker=workers[t.name], feeds=_feeder(t, arriving, seed), together=True)
            for t in opened
        ]
        times = race(contenders, loads, rounds=_ROUNDS, seconds=seconds, seed=seed, tell=progress or (lambda _: None))
        return {
            "targets": [_facts(t, workers[t.name]) for t in opened],
            "rows": [_row(load, opened, times) for load in loads],
            "machine": to_json(here),
        }


def _names(targets: Sequence[str | Path]) -> list[str]:
    """The targets as they were written; a second one of the same name gets a number."""
    words = [str(target) for target in targets]
    if not words:
        raise UsageError("nothing to race", next_step="name one or more sources or bundles")
    return [w if words.index(w) == i else f"{w} ({words[: i + 1].count(w)})" for i, w in enumerate(words)]


def _open(target: str, name: str) -> _Target:
    from vengine.bundle import place
    from vengine.bundle.format import MANIFEST

    path = Path(target)
    is_bundle = (path / MANIFEST).is_file() or (path.is_file() and place.is_pack(path)) or path.suffix == ".vengine"
    if is_bundle:
        bundle = open_bundle(path)
        content = bundle.manifest.content
        return _Target(
            name=name,
            model=bundle,
            inputs=content.inputs,
            max_tokens=content.max_tokens,
            reads_texts=bundle.tokenizer is not None,
        )
    from vengine.api.inspect import inspect

    source = inspect(target)
    return _Target(
        name=name,
        model=source,
        inputs=source.inputs,
        max_tokens=source.max_tokens,
        reads_texts=source.tokenizer is not None,
    )


def _arriving(lengths: str | Path | Sequence[int] | None, targets: Sequence[_Target], seed: int) -> tuple[int, ...]:
    """Lengths of the list's texts: quantiles of what was given, within every model's longest text, shuffled."""
    if lengths is None:
        return ()
    if not all(t.reads_texts for t in targets):
        raise UsageError("--lengths are lengths of texts, and a model here reads tensors", next_step="use --shape")
    from vengine.workload import read_lengths

    given = sorted(read_lengths(lengths) if isinstance(lengths, (str, Path)) else lengths)
    limit = min((t.max_tokens for t in targets if t.max_tokens), default=given[-1])
    drawn = [min(given[(2 * i + 1) * len(given) // (2 * _LIST)], limit) for i in range(_LIST)]
    random.Random(seed).shuffle(drawn)
    return tuple(drawn)


def _loads(targets: Sequence[_Target], shapes: Sequence[tuple[int, int]], arriving: Sequence[int]) -> tuple[Load, ...]:
    from vengine.tune.race import Load

    texts = any(t.reads_texts for t in targets)
    chosen = tuple(shapes) or (() if arriving else TEXT_SHAPES if texts else TENSOR_SHAPES)
    longest = max((length for _, length in chosen), default=0)
    for target in targets:
        if shapes and target.max_tokens and longest > target.max_tokens:
            raise UsageError(
                f"a shape of {longest:,} tokens, and {target.name} reads at most {target.max_tokens:,}",
                where="--shape",
                next_step=f"take at most {target.max_tokens:,}",
            )
    cells = tuple(Load(name=f"{batch}x{length}", batch=batch, length=length) for batch, length in chosen)
    return (*cells, Load(name=f"list of {len(arriving)}")) if arriving else cells


def _start(target: _Target, threads: int | None, threads_here: int) -> WorkerSession:
    """The target in a process of its own, as a user would run it here."""
    if isinstance(target.model, Bundle):
        return _start_bundle(target.model, threads)
    from vengine.tune.original import original_variant
    from vengine.tune.trial import open_worker

    return open_worker(original_variant(target.model, threads_here), None)


def _start_bundle(bundle: Bundle, threads: int | None) -> WorkerSession:
    from vengine.bundle.choose import plan_without
    from vengine.bundle.load import exclusions, profile_of, this_machine
    from vengine.engines.base import Opening
    from vengine.engines.process import WorkerSession

    here, content = this_machine(), bundle.manifest.content
    plan = plan_without(content, exclusions(bundle, here))
    openings = {}
    for digest in dict.fromkeys(entry.variant for entry in plan.entries):
        variant = bundle.manifest.variant(digest)
        bundle.check_files(variant.files)
        openings[digest] = Opening(
            engine=variant.recipe.engine,
            path=bundle.path_of(variant),
            precision=variant.recipe.precision,
            profile=profile_of(bundle, variant, threads, here),
            task=content.task,
        )
    return WorkerSession.planned(plan, openings)


def _feeder(target: _Target, arriving: Sequence[int], seed: int) -> Callable[[Load], list[Feeds]]:
    """What this contender is asked for a load. All get calls of the same sizes; ids are of its own vocabulary."""

    def feeds(load: Load) -> list[Feeds]:
        if load.batch:
            return [_call(target, load.batch, load.length, seed)]
        encodings = [_encoding(target, length, seed + i) for i, length in enumerate(arriving)]
        return [_padded(target, [encodings[i] for i in group]) for group in _groups(target, arriving)]

    return feeds


def _groups(target: _Target, arriving: Sequence[int]) -> list[list[int]]:
    from vengine.text import batches

    if isinstance(target.model, Bundle):
        cuts = [v.recipe.profile.chunk_tokens for v in target.model.manifest.content.variants]
        return batches(list(arriving), max((cut for cut in cuts if cut), default=_BATCH_TOKENS))
    places = list(range(len(arriving)))
    return [places[i : i + _ARRIVING] for i in range(0, len(places), _ARRIVING)]


def _call(target: _Target, batch: int, length: int, seed: int) -> Feeds:
    if target.reads_texts:
        return _padded(target, [_encoding(target, length, seed + i) for i in range(batch)])
    if isinstance(target.model, Bundle):
        return _resized(target, target.model, batch, length)
    from vengine.sources import example_feeds

    return example_feeds(target.model, batch, length, seed=seed)


def _padded(target: _Target, encodings: list[Encoding]) -> Feeds:
    from vengine.text import feeds

    return dict(feeds(encodings, [spec.name for spec in target.inputs], _pad_id(target)))


def _pad_id(target: _Target) -> int:
    if isinstance(target.model, Bundle):
        return target.model.manifest.content.pad_id
    from vengine.sources import pad_id

    return pad_id(target.model)


def _encoding(target: _Target, length: int, seed: int) -> Encoding:
    """A text of so many tokens: valid ids, no padding."""
    import numpy as np

    from vengine.text import Encoding

    if isinstance(target.model, Bundle):
        golden = target.model.golden(target.model.manifest.evidence.golden.inputs)
        ids = golden["input_ids"]
        real = ids[golden["attention_mask"] == 1] if "attention_mask" in golden else ids.reshape(-1)
        ids = np.resize(np.roll(real, seed), length).astype(np.int64)
    else:
        from vengine.sources import example_feeds

        ids = example_feeds(target.model, 1, length, seed=seed)["input_ids"][0]
    return Encoding(ids=ids, type_ids=np.zeros(length, dtype=np.int64), truncated=False)


def _resized(target: _Target, bundle: Bundle, batch: int, length: int) -> Feeds:
    """The golden inputs, repeated or cut to the size: always values that the model accepts."""
    import numpy as np

    golden, sizes = bundle.golden(bundle.manifest.evidence.golden.inputs), {"batch": batch, "length": length}
    return {
        spec.name: np.resize(golden[spec.name], _shape(spec, golden[spec.name].shape, sizes)) for spec in target.inputs
    }


def _shape(spec: TensorSpec, seen: Sequence[int], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else sizes.get(d, seen[i]) for i, d in enumerate(spec.shape))


def _facts(target: _Target, worker: WorkerSession) -> dict[str, Any]:
    model = target.model
    return {
        "name": target.name,
        "kind": target.kind,
        "digest": model.digest,
        "runs": worker.name,
        "precision_run": worker.precision_run,
        "peak_rss_bytes": worker.peak_rss_bytes,
    }


def _row(load: Load, targets: Sequence[_Target], times: Times) -> dict[str, Any]:
    from vengine.tune.race import median

    first = targets[0].name
    cells = []
    for target in targets:
        ms = times.ms[target.name][load.name]
        ratio = None if target.name == first else to_json(times.ratio(load.name, of=target.name, to=first))
        cells.append({"ms": to_json(median(ms)), "ratio": ratio, "rounds": len(ms)})
    return {"load": load.name, "batch": load.batch, "length": load.length, "cells": cells}
