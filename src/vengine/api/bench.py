"""`bench`: sources and bundles raced against each other, interleaved, each in a process of its own.

The first target is the reference: every ratio is its time ÷ the other's. All get the same threads. A source runs as its
author meant it: torch in fp32, or ONNX Runtime with all optimisation off.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vengine.api.calls import call, token_ids
from vengine.api.subjects import Subject, subject_of
from vengine.cache import default_cache
from vengine.digests import to_json
from vengine.engines.process import WorkerSession
from vengine.errors import UsageError
from vengine.hardware import machine as this_machine
from vengine.hardware import threads_for
from vengine.types import Machine

if TYPE_CHECKING:
    import numpy as np

    from vengine.tune.race import Contender, Load

DEFAULT_SHAPES = ((1, 16), (1, 128), (8, 128))
_DRAWN = 48  # texts of the --lengths mix in one pass
_ROUNDS = (7, 15)


@dataclass(frozen=True, kw_only=True)
class _Entrant:
    subject: Subject
    worker: WorkerSession

    @property
    def name(self) -> str:
        return self.subject.name


def bench(
    targets: Sequence[str | Path],
    shapes: Sequence[tuple[int, int]] = (),
    lengths: str | Path | Sequence[int] | None = None,
    *,
    threads: int | None = None,
    seconds: float = 60.0,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Race targets.

    Args:
        targets: bundles, or sources as `optimize` takes them; at least one.
        shapes: (batch, length) calls; default 1×16, 1×128 and 8×128, or batches of 1 and 8 without a length.
        lengths: tokens a text, or a file of them: a mix of single calls is raced too.
        threads: for every target; None takes this machine's.
        seconds: the time box; seven rounds are done in any case.

    Returns:
        {"targets": [{name, peak_rss_bytes}], "rows": [{shape, cells: [{ms, ratio}]}], "machine", "threads"}; ms and
        ratio are intervals (95 %, bootstrap over rounds).

    Raises:
        VengineError: a target can't be opened, or can't take a shape.
    """
    from vengine.tune.race import median, race
    from vengine.workload import read_lengths

    if not targets:
        raise UsageError("there is nothing to race", next_step="name at least one source or bundle")
    mix = sorted(read_lengths(lengths) if isinstance(lengths, (str, Path)) else lengths or ())
    machine = this_machine()
    count = threads_for(machine, threads)
    with ExitStack() as stack:
        entrants = [_open(Path(t), machine, count, cache or default_cache(), stack) for t in targets]
        loads = _loads(shapes or (() if lengths is not None else _default_shapes(entrants)), lengths)
        _refuse_misfits(entrants, [*(load.length for load in loads), *mix])
        ids = _token_ids(entrants)
        contenders = [_contender(f"{i} {e.name}", e, mix, ids) for i, e in enumerate(entrants)]
        times = race(contenders, loads, rounds=_ROUNDS, seconds=seconds, seed=0)
        peaks = [e.worker.peak_rss_bytes for e in entrants]
    first = contenders[0].name
    return {
        "targets": [{"name": e.name, "peak_rss_bytes": peak} for e, peak in zip(entrants, peaks, strict=True)],
        "rows": [
            {
                "shape": load.name,
                "cells": [
                    {
                        "ms": to_json(median(times.ms[c.name][load.name])),
                        "ratio": to_json(times.ratio(load.name, of=c.name, to=first)),
                    }
                    for c in contenders
                ],
            }
            for load in loads
        ],
        "threads": count,
        "machine": to_json(machine),
    }


def _loads(shapes: Sequence[tuple[int, int]], lengths: object) -> list[Load]:
    from vengine.tune.race import Load

    loads = [Load(name=f"{b}x{n}", batch=b, length=n) for b, n in shapes]
    return loads if lengths is None else [*loads, Load(name="lengths")]


def _default_shapes(entrants: Sequence[_Entrant]) -> Sequence[tuple[int, int]]:
    """1×16, 1×128 and 8×128; for models without a length, batches of 1 and 8."""
    long = any(len(s.shape) > 1 and isinstance(s.shape[1], str) for e in entrants for s in e.worker.inputs)
    return DEFAULT_SHAPES if long else ((1, 1), (8, 1))


def _refuse_misfits(entrants: Sequence[_Entrant], lengths: Sequence[int]) -> None:
    """Every target must be able to take every length, else they would not be raced on the same work."""
    longest = max(lengths, default=0)
    for entrant in entrants:
        if entrant.subject.max_tokens is not None and longest > entrant.subject.max_tokens:
            raise UsageError(
                f"a call has {longest} tokens, and the longest text of {entrant.name} has {entrant.subject.max_tokens}",
                next_step="give shorter shapes and lengths",
            )


def _open(target: Path, machine: Machine, threads: int, cache: Path, stack: ExitStack) -> _Entrant:
    subject = subject_of(target, machine, threads, cache)
    worker = subject.worker()
    stack.callback(worker.close)
    worker.pause()
    return _Entrant(subject=subject, worker=worker)


def _token_ids(entrants: Sequence[_Entrant]) -> tuple[int, int]:
    """One range for all targets, so that all get the same ids: inside the smallest vocabulary."""
    return token_ids([e.subject.vocabulary for e in entrants])


def _contender(name: str, entrant: _Entrant, mix: Sequence[int], ids: tuple[int, int]) -> Contender:
    from vengine.tune.race import Contender

    drawn = [mix[(2 * i + 1) * len(mix) // (2 * _DRAWN)] for i in range(_DRAWN)] if mix else []

    def feeds(load: Load) -> list[dict[str, np.ndarray]]:
        if load.batch:
            return [call(entrant.worker.inputs, load.batch, load.length, load.length, ids)]
        return [call(entrant.worker.inputs, 1, n, entrant.subject.width(n), ids) for n in drawn]

    return Contender(name=name, worker=entrant.worker, feeds=feeds)
