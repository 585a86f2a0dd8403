"""One sentence through the original and the shipped variants, side by side, for people to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vengine.engines.process import WorkerSession
from vengine.tune.prepare import Prepared
from vengine.tune.trial import open_plan

if TYPE_CHECKING:
    import numpy as np

    from vengine.api.shipping import Shipment
    from vengine.engines.base import Outputs
    from vengine.types import Source

_SENTENCES = (
    "The parcel arrived two days late, but the driver called ahead and was very kind.",
    "涡轮增压让同一台发动机跑得更快。",
)
_SHOWN_VALUES = 6
_ROUNDS = 5


def side_by_side(shipment: Shipment) -> list[dict[str, Any]]:
    """Run each sentence through both; [] for a model without a tokenizer."""
    if shipment.prepared.tokenizer is None:
        return []
    served = {entry.variant for entry in shipment.plan.entries}
    variants = [v for v in shipment.variants if v.digest in served]
    with open_plan(shipment.plan, variants, shipment.prepared.source.task) as shipped:
        return [_row(text, shipment.prepared, shipment.original.worker, shipped) for text in _SENTENCES]


def _row(text: str, prepared: Prepared, original: WorkerSession, shipped: WorkerSession) -> dict[str, Any]:
    from vengine.text import feeds

    assert prepared.tokenizer is not None
    call = feeds(prepared.tokenizer.encode([text]), prepared.names, prepared.tokenizer.pad_id)
    before, after = original.run(call), shipped.run(call)
    name = next(iter(before))
    times = _by_turns(original, shipped, call)
    return {
        "text": text,
        "output": name,
        "original": _shown(before[name]),
        "optimized": _shown(after[name]),
        "original_answer": _words(before, prepared.source),
        "optimized_answer": _words(after, prepared.source),
        "cosine": _cosine(before[name], after[name]),
        "original_ms": times[0],
        "optimized_ms": times[1],
    }


def _words(outputs: Outputs, source: Source) -> str:
    """A classifier's answer with its probability, a scorer's number; "" where the outputs are vectors."""
    from vengine.verify.agreement import class_name, decisions, probabilities
    from vengine.verify.label_sets import answered_sets

    if "logits" not in outputs or source.task not in ("classification", "scoring"):
        return ""
    logits = outputs["logits"].reshape(len(outputs["logits"]), -1)
    if source.task == "scoring":
        return f"{float(logits[0, 0]):.4f}"
    if source.several_labels:
        return ", ".join(class_name(source.labels, int(i)) for i in answered_sets(logits)[0].nonzero()[0]) or "none"
    best = int(decisions(logits)[0])
    return f"{class_name(source.labels, best)} {float(probabilities(logits)[0, best]):.4f}"


def _shown(values: np.ndarray) -> list[float]:
    return [round(float(v), 5) for v in values.ravel()[:_SHOWN_VALUES]]


def _cosine(one: np.ndarray, two: np.ndarray) -> float:
    import numpy as np

    a, b = one.ravel().astype(np.float64), two.ravel().astype(np.float64)
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-30))


def _by_turns(original: WorkerSession, shipped: WorkerSession, call: dict[str, Any]) -> tuple[float, float]:
    """Median milliseconds of both, warm, each while the other one is stopped."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for worker, times in zip((original, shipped), found, strict=True):
            times.append(min(worker.time([call], repeats=3)[1:]))
            worker.pause()
    one, other = (round(sorted(times)[_ROUNDS // 2], 3) for times in found)
    return one, other
