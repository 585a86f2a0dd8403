"""Do packed rows and chunks pay, on traffic that comes together? `make bench-packing`; some 6 minutes on 2 quiet cores.

The model is all-MiniLM-L6-v2, static int8. Every ratio comes from interleaved rounds with equal threads; what is
compared is one artefact driven in other ways, and the plan that `optimize` chose for windows of 32 texts.
"""

from __future__ import annotations

import random
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import _work as work
from _results import Row, publish_part
from optimize import planned, singles
from vengine.api.optimize import optimize
from vengine.bundle.read import open_bundle
from vengine.cache import default_cache
from vengine.sources import open_source
from vengine.text import batches, padded_length
from vengine.tune.race import Contender, Load, Times, race
from vengine.tune.trial import open_worker
from vengine.types import Interval, RuntimeProfile, Settings, Variant

WINDOW = 32
MIXED, SHORT, LARGE = Load(name="mixed"), Load(name="short"), Load(name="8x256", batch=8, length=256)
CHUNKS = (256, 512, 1024)


def main() -> None:
    """Optimise for windows of 32 texts, race the plan against other ways to run them, then chunks against one call."""
    with tempfile.TemporaryDirectory() as name:
        source = open_source(work.MINILM, cache=default_cache() / "sources")
        out = Path(name) / "minilm.vengine"
        report = optimize(
            source,
            lengths=work.mixed_lengths(),
            concurrency=WINDOW,
            settings=Settings(time_seconds=200),
            out=out,
            progress=lambda event: print(event, file=sys.stderr),
        )
        plain = next(v for v in singles(report) if v.recipe.label.startswith("openvino int8-static"))
        with ExitStack() as stack:
            one = stack.enter_context(open_worker(plain, None))
            plan = stack.enter_context(planned(open_bundle(out)))
            contenders = [
                Contender(name="padded", worker=one, feeds=_padded),
                Contender(name="one at a time", worker=one, feeds=_alone),
                Contender(name="sorted", worker=one, feeds=_sorted),
                Contender(name="plan", worker=plan, feeds=_padded),
            ]
            times = race(contenders, (MIXED, SHORT), rounds=(9, 15), seconds=90, seed=5)
        shipped = ", ".join(dict.fromkeys(f"{v['engine']} {v['precision']}" for v in report["variants"]))
        publish_part("depth", "packing", [*_window_rows(times, shipped), *chunk_rows(plain)])


def _windows(load: Load) -> list[list[int]]:
    if load.name == SHORT.name:
        draw = random.Random(3)
        return [[draw.randint(8, 24) for _ in range(WINDOW)]]
    lengths = work.mixed_lengths()
    return [lengths[i : i + WINDOW] for i in range(0, len(lengths), WINDOW)]


def _padded(load: Load) -> work.Feeds:
    return [work.call(window, max(window)) for window in _windows(load)]


def _alone(load: Load) -> work.Feeds:
    return [work.call([n], padded_length(n)) for window in _windows(load) for n in window]


def _sorted(load: Load) -> work.Feeds:
    """Sorted inside the window and cut at 512 tokens, as the text runner does for variants that don't pack."""
    groups = [[window[i] for i in group] for window in _windows(load) for group in batches(window, 512)]
    return [work.call(group, padded_length(max(group))) for group in groups]


def _window_rows(times: Times, shipped: str) -> list[Row]:
    better = max(("one at a time", "sorted"), key=lambda name: times.ratio(MIXED.name, of=name, to="padded").value)
    return [
        _row(
            f"mixed lengths in windows of {WINDOW}: {against} ÷ the plan ({shipped})",
            times.ratio(MIXED.name, of="plan", to=name),
            goal,
        )
        for name, against, goal in (
            ("padded", "padded as they arrive", 2.5),
            (better, f"{better}, the better way", 1.15),
        )
    ] + [
        _row(
            f"{WINDOW} texts of 8 to 24 tokens together: one at a time ÷ the plan",
            times.ratio(SHORT.name, of="plan", to="one at a time"),
            3.0,
        )
    ]


def _row(what: str, ratio: Interval, goal: float) -> Row:
    return Row(
        what=what,
        target=f"≥ {goal:g}",
        measured=ratio.value,
        low=ratio.low,
        high=ratio.high,
        met=ratio.value >= goal,
    )


def chunk_rows(plain: Variant) -> list[Row]:
    """8 × 256 in chunks on a stream a core, against one call: time, and what the process grows by."""
    profile = replace(plain.recipe.profile, chunk_tokens=None, streams=1, row_tokens=None)
    ways = {"one call": profile} | {
        f"chunks of {chunk}": replace(profile, streams=profile.threads, chunk_tokens=chunk) for chunk in CHUNKS
    }
    grown: dict[str, int] = {}
    with ExitStack() as stack:
        contenders = []
        for name, way in ways.items():
            worker = stack.enter_context(open_worker(_driven(plain, way), None))
            worker.time([work.call([8], 8)], repeats=3)
            before = worker.peak_rss_bytes
            worker.time([work.call([256] * 8, 256)], repeats=3)
            grown[name] = worker.peak_rss_bytes - before
            worker.pause()
            contenders.append(Contender(name=name, worker=worker, feeds=lambda _: [work.call([256] * 8, 256)]))
        times = race(contenders, (LARGE,), rounds=(9, 15), seconds=60, seed=6)
    chunked = [n for n in ways if n != "one call"]
    faster = [n for n in chunked if times.ratio(LARGE.name, of=n, to="one call").low > 1.0]
    # Of those that are faster beyond doubt, the one that needs least memory.
    best = min(faster or chunked, key=lambda n: grown[n])
    ratio = times.ratio(LARGE.name, of=best, to="one call")
    share = grown[best] / grown["one call"]
    return [
        Row(
            what=f"8x256: one call ÷ {best} tokens on {profile.threads} streams",
            target="> 1",
            measured=ratio.value,
            low=ratio.low,
            high=ratio.high,
            met=ratio.low > 1.0,
        ),
        Row(
            what=f"8x256: activation memory of {best} tokens ÷ that of one call "
            f"({grown[best] >> 20} and {grown['one call'] >> 20} MiB)",
            target="≤ 0.25",
            measured=share,
            met=share <= 0.25,
        ),
    ]


def _driven(variant: Variant, profile: RuntimeProfile) -> Variant:
    return replace(variant, recipe=replace(variant.recipe, profile=profile))


if __name__ == "__main__":
    main()
