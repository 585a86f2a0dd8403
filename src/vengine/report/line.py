"""The report as one JSON line, for scripts: what `--json` prints last."""

from __future__ import annotations

import json
import math
from typing import Any

from vengine.report.contenders import Report, drop_of, part, recipe_label, rows, unmeasured

_WHOLE = ("bundle", "digest", "met", "outcome", "task", "original", "speedup", "memory", "refused")
_ORIGINAL = ("engine", "precision", "peak_rss_bytes", "metric", "value")
_VARIANT = ("engine", "precision", "digest", "tokens_min", "tokens_max")
_ACCURACY = ("metric", "original", "optimized", "verdict", "samples")


def json_line(report: Report) -> str:
    """One line of strict JSON, keys as documented for `vengine optimize --json`; no NaN, no line break."""
    return json.dumps(summary(report), ensure_ascii=False, allow_nan=False)


def summary(report: Report) -> dict[str, Any]:
    """The facts of a report that a script asks for; a number that is not finite becomes None."""
    accuracy = part(report, "accuracy")
    drop = drop_of(accuracy)
    chosen = {key: report.get(key) for key in _WHOLE}
    chosen["original"] = {k: part(report, "original").get(k) for k in _ORIGINAL}
    chosen["variants"] = [{k: v.get(k) for k in _VARIANT} for v in rows(report, "variants")]
    chosen["accuracy"] = {k: accuracy.get(k) for k in _ACCURACY} | {"drop": drop.value if drop else None}
    chosen["trials"] = [_trial(t) for t in rows(report, "trials")]
    return {key: _finite(value) for key, value in chosen.items()}


def _trial(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "recipe": recipe_label(part(data, "recipe")),
        "status": data.get("status"),
        "reason": data.get("reason", ""),
        "ratio": part(data, "ratio").get("value"),
        "drop": None if unmeasured(part(data, "verdict")) else part(data, "verdict", "drop").get("value"),
        "peak_rss_bytes": data.get("peak_rss_bytes"),
        "seconds": data.get("seconds"),
    }


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
