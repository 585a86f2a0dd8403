"""`soak`: many requests of many shapes, a look at the memory after each few, and a verdict on what grows.

It runs where a bundle would run: in a worker process of its own, every variant of the plan loaded, the garbage
collector switched on. The phases differ in what is new in them, and that is how a leak, a cache of shapes and an arena
are told apart (`growth`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

from vengine.api.growth import Growth, Limits, Look, Phase, judge
from vengine.api.places import page_place, write_whole
from vengine.api.subjects import Subject, subject_of
from vengine.api.traffic import Shape, Traffic, lengths_of, traffic
from vengine.cache import default_cache
from vengine.digests import to_json
from vengine.engines.process import WorkerSession
from vengine.errors import UsageError
from vengine.hardware import machine as this_machine

PER_THOUSAND_BYTES = 64 << 10
"""What a thousand requests may leave behind: 64 MiB after a million of them."""
_SHARES: tuple[tuple[Phase, float], ...] = (
    ("warm-up", 0.2),
    ("one shape", 0.2),
    ("known shapes", 0.2),
    ("new shapes", 0.15),
    ("all shapes", 0.25),
)
_LOOKS = 40  # about so many in each phase
_MOST_CALLS = 32  # sent at once
_MOST_REPEATS = 64


def soak(
    target: str | Path,
    *,
    minutes: float = 5.0,
    data: str | Path | None = None,
    threads: int | None = None,
    limit: int | None = None,
    per_thousand: int = PER_THOUSAND_BYTES,
    seed: int = 0,
    page: str | Path | None = None,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Run a bundle or a source for a while and say whether its memory grows.

    Args:
        target: a bundle, or a source as `optimize` takes it.
        minutes: how long, loading not counted; above 0.
        data: a file of texts whose lengths are run; None draws lengths from 4 to 256 tokens.
        threads: for every variant; None takes the measured ones, or this machine's.
        limit: bytes that the process may hold, after a million more requests too; None takes twice what it holds when
            it is warm, for the cache of shapes alone.
        per_thousand: bytes that a thousand requests of known shapes may leave behind.
        seed: the same seed asks the same.
        page: a file for all of it as one HTML page.
        cache: where sources are fetched to; None takes the usual place.

    Returns:
        `outcome` (pass, fail, undecided), `findings` (worst first), `looks` (one a few requests: phase, seconds,
        requests, shapes, memory in bytes, ms of one and the same call), the trends `memory` and `python` (bytes a
        request), `shape` (bytes a new shape) and `latency` (milliseconds a request), `grown` (lines of Python that hold
        more than when it was warm), `given_back` (bytes, by `malloc_trim` at the end), and what ran.

    Raises:
        UsageError: a number is out of range, or the page can't be written there.
        VengineError: the target can't be opened, or its process died.
    """
    if minutes <= 0 or per_thousand < 0:
        raise UsageError("a soak takes some time, and allows no less than nothing", next_step="give --minutes 5")
    place = None if page is None else page_place(page)
    machine = this_machine()
    subject = subject_of(target, machine, threads, cache or default_cache())
    lengths = [] if data is None else lengths_of(data, subject)
    with subject.worker() as worker:
        asked = traffic(subject, worker.inputs, lengths, seed)
        run = _Run(worker=worker, asked=asked, seconds=60 * minutes, draw=Random(seed))
        for phase, share in _SHARES:
            run.phase(phase, share)
        grown, given_back = worker.watch_python(), worker.trim()
        peak = worker.peak_rss_bytes
    limits = _limits(run.looks, limit, per_thousand)
    found = judge(run.looks, limits, possible=asked.possible, given_back=given_back)
    result = {
        **_what(subject, asked, seed),
        **_told(found),
        "limits": to_json(limits),
        "looks": to_json(run.looks),
        "grown": to_json(grown),
        "given_back": given_back,
        "peak_rss_bytes": peak,
        "page": None if place is None else str(place),
        "machine": to_json(machine),
    }
    if place is not None:
        from vengine.report.soak_page import soak_page

        write_whole(place, soak_page(result, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"), "the page", "--html")
    return result


def _what(subject: Subject, asked: Traffic, seed: int) -> dict[str, Any]:
    return {
        "name": subject.name,
        "kind": subject.kind,
        "digest": subject.digest,
        "variants": [f"{o.engine} {o.precision}" for o in subject.openings.values()],
        "threads": max(o.profile.threads for o in subject.openings.values()),
        "possible_shapes": asked.possible,
        "seed": seed,
    }


def _told(found: Growth) -> dict[str, Any]:
    return {
        "outcome": found.outcome,
        "findings": to_json(found.findings),
        "memory": to_json(found.memory),
        "python": to_json(found.python),
        "shape": to_json(found.shape),
        "latency": to_json(found.latency),
    }


def _limits(looks: Sequence[Look], limit: int | None, per_thousand: int) -> Limits:
    warm = [look.memory.rss_bytes for look in looks if look.phase == "warm-up"]
    total = 2 * warm[-1] if limit is None else limit
    return Limits(per_thousand_bytes=per_thousand, total_bytes=total, stated=limit is not None)


@dataclass(kw_only=True)
class _Run:
    """The state of one soak: what was asked so far, and what was seen."""

    worker: WorkerSession
    asked: Traffic
    seconds: float
    draw: Random
    looks: list[Look] = field(default_factory=list)
    met: dict[Shape, None] = field(default_factory=dict)  # in the order in which they were met
    requests: int = 0
    started: float = field(default_factory=time.monotonic)
    pace: float = 0.0  # seconds a request, lately

    def phase(self, phase: Phase, share: float) -> None:
        """Ask what belongs to this phase for its share of the time."""
        until = time.monotonic() + share * self.seconds
        shapes = self._shapes(phase)
        while True:
            few = [shape for shape in (next(shapes, None) for _ in range(self._count(phase))) if shape is not None]
            if not few:
                break
            self._round(phase, few)
            if time.monotonic() >= until:
                break
        if phase == "warm-up":
            self.worker.watch_python()  # what is there when it is warm counts for nothing later

    def _shapes(self, phase: Phase) -> Iterator[Shape]:
        if phase == "warm-up":
            yield self.asked.usual
            yield from self.asked.familiar
        if phase == "new shapes":
            yield from self.asked.fresh
            return
        pool = [self.asked.usual] if phase == "one shape" else list(self.met)
        while True:
            yield self.draw.choice(pool or [self.asked.usual])

    def _count(self, phase: Phase) -> int:
        """How many calls until the next look."""
        if phase == "new shapes" or not self.pace:
            return 1
        share = dict(_SHARES)[phase]
        return max(1, min(_MOST_CALLS, int(share * self.seconds / _LOOKS / self.pace)))

    def _repeats(self, phase: Phase, calls: int) -> int:
        if phase in ("new shapes", "warm-up"):
            return 1
        wanted = dict(_SHARES)[phase] * self.seconds / _LOOKS / max(self.pace, 1e-6)
        return max(1, min(_MOST_REPEATS, int(wanted / calls)))

    def _round(self, phase: Phase, shapes: Sequence[Shape]) -> None:
        """Some calls, the usual one last: its time tells whether answers become slower."""
        calls = [self.asked.feeds(shape) for shape in shapes]
        usual = self.asked.feeds(self.asked.usual)
        started = time.monotonic()
        repeats = self._repeats(phase, len(calls) + 1)
        ms, memory = self.worker.soak([*calls, usual], repeats=repeats)
        self.requests += len(ms)
        self.pace = (time.monotonic() - started) / len(ms)
        self.met |= dict.fromkeys((*shapes, self.asked.usual))
        look = Look(
            phase=phase,
            seconds=time.monotonic() - self.started,
            requests=self.requests,
            shapes=len(self.met),
            memory=memory,
            ms=min(
                ms[len(calls) :: len(calls) + 1]
            ),  # the others waited for something: a busy machine isn't a slower call
        )
        self.looks.append(look)
