"""Does the default time box find what an hour finds? `make bench-budget`; up to 70 minutes on 2 quiet cores.

The same question is asked twice from nothing, with 5 minutes and with 60; then both bundles race on the workload. A
search ends early when every recipe was tried and the races are narrow.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import _work as work
from _results import Row, publish_part
from optimize import planned
from vengine.api.optimize import optimize
from vengine.bundle.read import Bundle, open_bundle
from vengine.cache import default_cache
from vengine.sources import open_source
from vengine.text import padded_length
from vengine.tune.race import Contender, Load, race
from vengine.types import Settings

MINUTES = (5, 60)
MIX = Load(name="mix")


def main() -> None:
    """Search twice, race once."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        contenders, took = [], []
        for minutes in MINUTES:
            started = time.monotonic()
            bundle = _searched(Path(name) / f"{minutes}.vengine", minutes)
            took.append((time.monotonic() - started) / 60)
            worker = stack.enter_context(planned(bundle))
            worker.pause()
            contenders.append(Contender(name=str(minutes), worker=worker, feeds=_singles))
        times = race(contenders, (MIX,), rounds=(15, 25), seconds=60, seed=8)
    short, long = (str(minutes) for minutes in MINUTES)
    ratio = times.ratio(MIX.name, of=short, to=long)
    row = Row(
        what=f"speed found in {short} minutes ÷ in {long} (used: {took[0]:.0f} and {took[1]:.0f}), single texts",
        target="≥ 0.9",
        measured=ratio.value,
        low=ratio.low,
        high=ratio.high,
        met=ratio.value >= 0.9,
    )
    publish_part("depth", "budget", [row])


def _searched(out: Path, minutes: int) -> Bundle:
    optimize(
        open_source(work.MINILM, cache=default_cache() / "sources"),
        lengths=work.mixed_lengths(),
        settings=Settings(time_seconds=60.0 * minutes),
        out=out,
        resume=False,
        progress=lambda event: print(event, file=sys.stderr),
    )
    return open_bundle(out)


def _singles(_: Load) -> work.Feeds:
    return [work.call([n], padded_length(n)) for n in work.mixed_lengths()[:128]]


if __name__ == "__main__":
    main()
