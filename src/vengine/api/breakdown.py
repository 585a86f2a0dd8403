"""Where one call spends its time, node by node: in the original, and in what the plan sends such a call to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vengine.api.node_table import table
from vengine.engines.planned import entry_for
from vengine.tune.trial import open_worker

if TYPE_CHECKING:
    from vengine.api.shipping import Shipment
    from vengine.engines.base import Feeds
    from vengine.engines.process import WorkerSession
    from vengine.tune.race import Load
    from vengine.types import Variant

_NODES, _KINDS = 20, 12  # so many of the slowest are kept
_NODE_KEYS = ("name", "kind", "precision", "share", "ms", "part")
_KIND_KEYS = ("name", "precision", "share", "nodes", "ms", "part")
_WATCHED_MS, _MOST_CALLS = 1000.0, 20


def breakdown(shipment: Shipment) -> list[dict[str, Any]]:
    """One row for the original and one for what ships, both of the same call: a single one of usual length.

    Returns:
        Rows of `who` ("original" or "bundle"), `engine`, `precision`, `batch`, `length`, and of `node_table.table`:
        `wall_ms`, `gap_ms`, `gap_part`, `shares`, and the slowest of `kinds` and `nodes`, all in milliseconds. Where
        the original is what ships, its row alone.
    """
    load = usual_call(shipment.prepared.cells, shipment.prepared.workload.lengths)
    call = shipment.prepared.work(load, None)[0][0]
    original = shipment.original
    found = [_row("original", original.variant, original.worker, load, call)]
    original.worker.pause()
    if shipment.found.plan is None:
        return found
    digest = entry_for(shipment.plan, load.batch, load.batch * load.length).variant
    variant = next(v for v in shipment.variants if v.digest == digest)
    with open_worker(variant, None, shipment.prepared.source.task) as worker:
        return [*found, _row("bundle", variant, worker, load, call)]


def usual_call(cells: Sequence[Load], lengths: Sequence[int]) -> Load:
    """The measured shape that is nearest to one sample of median length."""
    usual = sorted(lengths)[len(lengths) // 2] if lengths else 1
    return min(cells, key=lambda cell: (cell.batch, abs(cell.length - usual)))


def _row(who: str, variant: Variant, worker: WorkerSession, load: Load, call: Feeds) -> dict[str, Any]:
    one_ms = min(worker.time([call], repeats=3))
    repeats = max(1, min(_MOST_CALLS, int(_WATCHED_MS / max(one_ms, 1e-3))))
    told = table(worker.record([call], repeats=repeats), None)
    return {
        "who": who,
        "engine": variant.recipe.engine,
        "precision": variant.recipe.precision,
        "batch": load.batch,
        "length": load.length,
        **{key: told[key] for key in ("wall_ms", "gap_ms", "gap_part", "shares")},
        "kinds": [_only(kind, _KIND_KEYS) for kind in told["kinds"][:_KINDS]],
        "nodes": [_only(node, _NODE_KEYS) for node in told["nodes"][:_NODES]],
    }


def _only(row: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: row[key] for key in keys}
