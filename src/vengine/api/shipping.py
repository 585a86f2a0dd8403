"""From what the search found to what ships: the bundle's parts, its golden answers, and the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import vengine
from vengine.bundle.format import Gain, Timing
from vengine.bundle.golden import Golden, text_golden
from vengine.bundle.write import Draft, Parts, prepare
from vengine.digests import to_json
from vengine.sources import example_feeds
from vengine.tune.candidates import IN_FLOAT
from vengine.tune.prepare import WORKLOAD, Prepared
from vengine.tune.search import Found
from vengine.tune.trial import Original, open_worker
from vengine.types import Budget, Cell, Interval, Invariance, Machine, Plan, PlanEntry, Settings, Trial, Variant

if TYPE_CHECKING:
    from vengine.graph.sensitivity import Ladder
    from vengine.tune.race import Times

_GOLDEN_ROWS = 3


@dataclass(frozen=True, kw_only=True)
class Shipment:
    """Everything that the bundle and its report are made of."""

    found: Found
    prepared: Prepared
    original: Original
    kept: Variant  # what ships where nothing better may
    machine: Machine
    budget: Budget
    settings: Settings
    threads: int
    ladder: Ladder | None = None  # of nodes that int8 hurts, where that had to be measured

    @property
    def plan(self) -> Plan:
        """The found plan, or one that sends everything to the original."""
        return self.found.plan or Plan(entries=(PlanEntry(variant=self.kept.digest, tokens_min=1),))

    @property
    def variants(self) -> tuple[Variant, ...]:
        """What the plan names, and the fallback."""
        ships = [t.variant for t in self.found.winners if t.variant] if self.found.plan else []
        return tuple({v.digest: v for v in [*ships, self.fallback]}.values())

    @property
    def fallback(self) -> Variant:
        """The variant for every CPU: a verified portable one, else the original itself."""
        trial = self.found.fallback if self.found.plan else None
        return trial.variant if trial is not None and trial.variant is not None else self.kept

    @property
    def leader(self) -> Trial | None:
        """The trial whose verdict the bundle carries: the plan's most lossy variant, judged by its measured drop."""
        return max(self.found.winners, key=lambda t: t.verdict.drop.high if t.verdict else 0.0, default=None)


def draft_bundle(shipment: Shipment) -> Draft:
    """Run the golden inputs through each variant, and name everything."""
    source, leader = shipment.prepared.source, shipment.leader
    return prepare(
        Parts(
            source=source,
            variants=shipment.variants,
            plan=shipment.plan,
            fallback=shipment.fallback.digest,
            golden=_golden(shipment),
            machine=shipment.machine,
            created=now(),
            vengine=vengine.__version__,
            met=shipment.found.outcome == "pass",
            pad_id=shipment.prepared.tokenizer.pad_id if shipment.prepared.tokenizer else 0,
            verdict=leader.verdict if leader else None,
            invariance=_invariance(shipment),
            timings=tuple(Timing(variant=name, cells=cells) for name, cells in tables(shipment).items()),
            gains=tuple(Gain(where=name, ratio=ratio) for name, ratio in gains(shipment).items()),
            original_rss_bytes=shipment.original.worker.peak_rss_bytes,
            optimized_rss_bytes=shipment.found.planned_rss_bytes,
        )
    )


def now() -> str:
    """This moment, UTC, ISO 8601."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _golden(shipment: Shipment) -> Golden:
    source = shipment.prepared.source
    texts: tuple[tuple[str, ...], ...] = ()
    if shipment.prepared.tokenizer is not None and source.tokenizer is not None:
        texts, inputs = text_golden(
            source.tokenizer,
            names=shipment.prepared.names,
            pad_id=shipment.prepared.tokenizer.pad_id,
            max_tokens=source.max_tokens,
            pairs=any(s.pair is not None for s in shipment.prepared.samples) and source.task == "scoring",
        )
    else:
        free = all(isinstance(spec.shape[0], str) for spec in source.inputs if spec.shape)
        inputs = example_feeds(source, _GOLDEN_ROWS if free else 1, 16, seed=7)
    outputs = {}
    for variant in shipment.variants:
        with open_worker(variant, None, source.task) as worker:
            outputs[variant.digest] = worker.run(inputs)
    return Golden(inputs=inputs, outputs=outputs, texts=texts)


def tables(shipment: Shipment) -> dict[str, tuple[Cell, ...]]:
    """Measured tables by variant digest, "original" and "bundle"."""
    loads = shipment.prepared.cells
    found = shipment.found
    rows: dict[str, tuple[Cell, ...]] = {}
    if found.times is not None:
        rows |= {name: found.times.cells(name, loads) for name in found.times.ms}
    if found.planned is not None:
        rows |= {name: found.planned.cells(name, loads) for name in ("original", "bundle")}
    return rows


def gains(shipment: Shipment) -> dict[str, Interval]:
    """Original time ÷ bundle time, on the workload and on each cell."""
    times: Times | None = shipment.found.planned
    if times is None or shipment.found.plan is None:
        return {}
    names = [WORKLOAD.name, *(load.name for load in shipment.prepared.cells)]
    return {name: times.ratio(name, of="bundle", to="original") for name in names}


def report_of(shipment: Shipment, *, bundle: str, digest: str, command: Sequence[str]) -> dict[str, Any]:
    """The report as JSON values (format 1; see docs/report-format.md)."""
    found, prepared, original = shipment.found, shipment.prepared, shipment.original
    leader, source = shipment.leader, shipment.prepared.source
    verdict = leader.verdict if leader else None
    return {
        "format": 1,
        "vengine": vengine.__version__,
        "created": now(),
        "command": " ".join(command),
        "bundle": bundle,
        "digest": digest,
        "met": found.outcome == "pass",
        "outcome": found.outcome,
        "why": found.why,
        "task": source.task,
        "source": to_json(source) | {"path": source.path.name, "tokenizer": source.tokenizer and source.tokenizer.name},
        "machine": to_json(shipment.machine),
        "threads": shipment.threads,
        "workload": _workload(prepared),
        "budget": to_json(shipment.budget),
        "settings": to_json(shipment.settings),
        "original": {
            "engine": original.variant.recipe.engine,
            "precision": original.variant.recipe.precision,
            "peak_rss_bytes": original.worker.peak_rss_bytes,
            "cells": to_json(tables(shipment).get("original", ())),
            "metric": verdict.metric if verdict else None,
            "value": verdict.original if verdict else None,
            "noise": to_json(original.noise),
        },
        "trials": [_trial(t) for t in found.trials],
        "variants": _variants(shipment),
        "fallback": _named(shipment.fallback),
        "cells": to_json(tables(shipment)),
        "speedup": {name: _ratio(ratio) for name, ratio in gains(shipment).items()},
        "sensitivity": _sensitivity(shipment),
        "accuracy": _accuracy(leader or _nearest(found)),
        "invariance": to_json(_invariance(shipment)),
        "memory": {"original_rss": original.worker.peak_rss_bytes, "optimized_rss": found.planned_rss_bytes},
        "refused": [{"recipe": t.recipe.label, "reason": t.reason} for t in found.trials if t.status != "ok"],
        "reproduce": [" ".join(command), f"vengine verify {bundle}", f"vengine bench {source.location} {bundle}"],
    }


def _sensitivity(shipment: Shipment) -> list[dict[str, Any]]:
    """What quantising each node alone costs and saves, and whether the plan keeps it in float."""
    if shipment.ladder is None:
        return []
    words = {word for trial in shipment.found.winners for word in trial.recipe.passes}
    return [
        {
            "name": hurt.unit,
            "damage": hurt.damage,
            "saved_ms": hurt.saved_ms,
            "kept": f"{IN_FLOAT}{hurt.unit}" in words,
        }
        for hurt in shipment.ladder.hurts
    ]


def _workload(prepared: Prepared) -> dict[str, Any]:
    workload = prepared.workload
    lengths = sorted(workload.lengths)
    edges = [e for e in (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512) if e < 2 * lengths[-1]] or [lengths[-1]]
    bounds = [0, *edges]
    return {
        "origin": workload.origin,
        "samples": len(prepared.samples),
        "labelled": workload.labelled,
        "synthetic": workload.synthetic,
        "objective": workload.objective,
        "concurrency": workload.concurrency,
        "lengths": {
            "mean": sum(lengths) / len(lengths),
            "p50": lengths[len(lengths) // 2],
            "p95": lengths[int(0.95 * (len(lengths) - 1))],
            "max": lengths[-1],
            "histogram": [[top, sum(low < n <= top for n in lengths)] for low, top in zip(bounds, edges, strict=False)],
        },
    }


def _trial(trial: Trial) -> dict[str, Any]:
    """A trial without this machine's paths."""
    row: dict[str, Any] = to_json(trial)
    if row["variant"] is not None:
        del row["variant"]["directory"]
    return row


def _variants(shipment: Shipment) -> list[dict[str, Any]]:
    by_digest = {v.digest: v for v in shipment.variants}
    return [
        _named(by_digest[entry.variant])
        | {
            "tokens_min": entry.tokens_min,
            "tokens_max": entry.tokens_max,
            "batch_min": entry.batch_min,
            "fill_min": entry.fill_min,
            "size_bytes": by_digest[entry.variant].size_bytes,
            "required_isa": list(by_digest[entry.variant].required_isa),
            "profile": to_json(by_digest[entry.variant].recipe.profile),
        }
        for entry in shipment.plan.entries
    ]


def _named(variant: Variant) -> dict[str, Any]:
    return {"engine": variant.recipe.engine, "precision": variant.recipe.precision, "digest": variant.digest}


def _ratio(ratio: Interval) -> dict[str, float]:
    return {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}


def _nearest(found: Found) -> Trial | None:
    """Of an undecided search, the trial that wants the fewest more samples: what is known so far."""
    open_ones = [t for t in found.trials if t.verdict is not None and t.verdict.outcome == "undecided"]
    if found.outcome != "undecided":
        return None
    return min(open_ones, key=lambda t: t.verdict.more_samples if t.verdict else 0, default=None)


def _accuracy(leader: Trial | None) -> dict[str, Any] | None:
    if leader is None or leader.verdict is None:
        return None
    v = leader.verdict
    return {
        "recipe": leader.recipe.label,
        "metric": v.metric,
        "original": v.original,
        "optimized": v.optimized,
        "drop": to_json(v.drop),
        "verdict": v.outcome,
        "samples": v.samples,
        "implies": v.implies,
        "worst": v.worst,
        "worst_sample": v.worst_sample,
        "flipped": list(v.flipped),
        "changed": v.changed,
        "changes": to_json(v.changes),
        "error": v.error,
        "noise": v.noise,
        "reason": v.reason,
    }


def _invariance(shipment: Shipment) -> Invariance | None:
    """The leader's, and how the plan itself answered after its race and with other threads."""
    found = shipment.leader.invariance if shipment.leader else None
    return replace(found, checks=(*found.checks, *shipment.found.later)) if found else None
