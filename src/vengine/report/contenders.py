"""What took part: the original, each trial and the bundle, read leniently from a report dictionary."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal

from vengine.report.wording import clean, interval, number
from vengine.types import PIPELINE_WORDS, Interval

Role = Literal["original", "tried", "shipped", "bundle"]
Status = Literal["ok", "refused", "failed", "skipped"]
Report = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One row of the report. What was not measured is None."""

    label: str
    role: Role
    status: Status
    digest: str = ""
    reason: str = ""
    ratio: Interval | None = None  # original time ÷ this time on the workload
    drop: Interval | None = None  # relative loss of the metric, positive = worse
    value: float | None = None  # the metric itself
    worst: float | None = None
    invariance: float | None = None
    rss_bytes: float | None = None
    seconds: float | None = None


def contenders(report: Report) -> tuple[Contender, ...]:
    """The original first, the trials in the order tried, the bundle (as it ships) last."""
    tried = [_trial(t) for t in rows(report, "trials")]
    shipped = _shipped(report, tried)
    tried = [replace(c, role="shipped") if i in shipped else c for i, c in enumerate(tried)]
    labels = _distinct(tried, rows(report, "trials"))
    tried = [replace(c, label=label) for c, label in zip(tried, labels, strict=True)]
    return (_original(report), *tried, *_bundle(report))


def kind(row: Contender) -> str:
    """How a contender is drawn: by its role, or hollow where it was refused."""
    return row.role if row.status == "ok" else "refused"


def rows(report: Report, key: str) -> list[dict[str, Any]]:
    """The list of objects under `key`; anything else in there is left out."""
    value = report.get(key)
    return [v for v in value if isinstance(v, dict)] if isinstance(value, (list, tuple)) else []


def texts(data: dict[str, Any], key: str) -> list[str]:
    """The list of texts under `key`, made harmless; whatever is no list is empty."""
    value = data.get(key)
    return [clean(v) for v in value] if isinstance(value, (list, tuple)) else []


def part(report: Report, *keys: str) -> dict[str, Any]:
    """The object under `keys`, or an empty one."""
    value: Any = report
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def budget(report: Report) -> float:
    """The largest relative drop that the user allows."""
    value = number(part(report, "budget").get("max_drop"))
    return 0.01 if value is None else value


def metric(report: Report) -> str:
    """The name of what was compared."""
    name = part(report, "accuracy").get("metric") or part(report, "original").get("metric")
    return clean(name or "accuracy", 60)


def optimized(report: Report) -> bool:
    """Whether something other than the original ships."""
    return bool(report.get("met")) and bool(rows(report, "variants"))


def recipe_label(recipe: dict[str, Any]) -> str:
    """For people, as `Recipe.label`: "openvino int8-static", "onnxruntime fp32 fused"."""
    passes = recipe.get("passes")
    words = [word for word in passes if word in PIPELINE_WORDS] if isinstance(passes, list | tuple) else []
    if part(recipe, "profile").get("row_tokens"):
        words.append("packed")
    return clean(" ".join((str(recipe.get("engine", "?")), str(recipe.get("precision", "?")), *words)), 60)


def winner(report: Report) -> Contender:
    """What ships: the bundle, or the original where nothing better was found."""
    found = contenders(report)
    return found[-1] if found[-1].role == "bundle" else found[0]


def _original(report: Report) -> Contender:
    data = part(report, "original")
    rss = number(data.get("peak_rss_bytes"))
    return Contender(
        label=f"original ({recipe_label(data)})",
        role="original",
        status="ok",
        ratio=Interval(value=1.0, low=1.0, high=1.0),
        drop=Interval(value=0.0, low=0.0, high=0.0),
        value=number(data.get("value")),
        rss_bytes=rss if rss is not None else number(part(report, "memory").get("original_rss")),
    )


def _trial(data: dict[str, Any]) -> Contender:
    verdict = part(data, "verdict")
    status: Status = data["status"] if data.get("status") in ("ok", "refused", "skipped") else "failed"
    return Contender(
        label=recipe_label(part(data, "recipe")),
        role="tried",
        status=status,
        digest=str(part(data, "variant").get("digest", "")),
        reason=clean(data.get("reason", "")),
        ratio=interval(data.get("ratio")),
        drop=None if unmeasured(verdict) else interval(verdict.get("drop")),
        value=None if unmeasured(verdict) else number(verdict.get("optimized")),
        worst=number(verdict.get("worst")),
        invariance=_worst_company(part(data, "invariance")),
        rss_bytes=number(data.get("peak_rss_bytes")),
        seconds=number(data.get("seconds")),
    )


def unmeasured(verdict: dict[str, Any]) -> bool:
    """Whether the comparison ended before any metric: its drop of 100 % was never measured."""
    return verdict.get("metric") in ("shape", "finite", "scale", "shift", "error", "wrong sample")


def shipped_labels(report: Report) -> list[str]:
    """A label for each of `variants`, with what differs in the profile where one recipe is driven in two ways."""
    found = rows(report, "variants")
    profiles = [part(v, "profile") for v in found]
    named = [recipe_label(v) for v in found]
    rivals = [[p for name, p in zip(named, profiles, strict=True) if name == one] for one in named]
    return [_with_profile(*row) for row in zip(named, profiles, rivals, strict=True)]


def _worst_company(data: dict[str, Any]) -> float | None:
    values = [number(data.get(f"alone_vs_{k}")) for k in ("batch", "padded", "neighbours")]
    values += [number(check.get("similarity")) for check in rows(data, "checks")]
    known = [v for v in values if v is not None]
    return min(known) if known else None


def _shipped(report: Report, tried: list[Contender]) -> set[int]:
    """Indices of the trials whose variant is in the bundle: by digest, else the first of that name."""
    found: set[int] = set()
    for variant in rows(report, "variants") if optimized(report) else []:
        exact = [i for i, c in enumerate(tried) if c.digest and c.digest == variant.get("digest")]
        named = [i for i, c in enumerate(tried) if c.label == recipe_label(variant) and c.status == "ok"]
        found.update((exact or named)[:1])
    return found


def _bundle(report: Report) -> list[Contender]:
    if not optimized(report):
        return []
    accuracy, variants = part(report, "accuracy"), rows(report, "variants")
    ratio = interval(part(report, "speedup", "workload"), value="ratio")
    count = len({v.get("digest") for v in variants})
    label = "the bundle" if count == 1 else f"the bundle ({count} variants)"
    return [
        Contender(
            label=label,
            role="bundle",
            status="ok",
            digest=str(report.get("digest", "")),
            ratio=ratio,
            drop=drop_of(accuracy),
            value=number(accuracy.get("optimized")),
            worst=number(accuracy.get("worst")),
            invariance=_worst_company(part(report, "invariance")),
            rss_bytes=number(part(report, "memory").get("optimized_rss")),
        )
    ]


def drop_of(accuracy: dict[str, Any]) -> Interval | None:
    """`drop` as an interval, also where the report holds a bare number."""
    bare = number(accuracy.get("drop"))
    return interval(accuracy.get("drop")) if bare is None else Interval(value=bare, low=bare, high=bare)


def _distinct(tried: list[Contender], trials: list[dict[str, Any]]) -> list[str]:
    """Labels, with what differs in the profile where engine and precision alone repeat."""
    profiles = [part(t, "recipe", "profile") | {"floats": _floats(part(t, "recipe"))} for t in trials]
    counts = Counter(c.label for c in tried)
    labels = [
        c.label if counts[c.label] == 1 else _with_profile(c.label, profile, _rivals(c.label, tried, profiles))
        for c, profile in zip(tried, profiles, strict=True)
    ]
    seen: Counter[str] = Counter()
    for i, label in enumerate(labels):
        seen[label] += 1
        if seen[label] > 1:
            labels[i] = f"{label} #{seen[label]}"
    return labels


def _rivals(label: str, tried: list[Contender], profiles: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [p for c, p in zip(tried, profiles, strict=True) if c.label == label]


def _with_profile(label: str, profile: dict[str, Any], rivals: list[dict[str, Any]]) -> str:
    words = [
        _profile_words(key, profile.get(key))
        for key in ("floats", "threads", "streams", "row_tokens", "chunk_tokens", "spinning", "arena")
        if len({str(r.get(key)) for r in rivals}) > 1
    ]
    return " · ".join([label, *[w for w in words if w]])


def _floats(recipe: dict[str, Any]) -> int:
    """How many nodes of an int8 graph were taken back into float."""
    return sum(word.startswith("float:") for word in texts(recipe, "passes"))


def _profile_words(key: str, value: Any) -> str:
    if key == "floats":
        return f"{value} in float" if value else ""
    if key == "row_tokens":
        return f"rows of {value}" if value else ""
    if key == "chunk_tokens":
        return f"≤ {value} tokens" if value else "uncut"
    if isinstance(value, bool):
        return key if value else f"no {key}"
    return f"{value} {key.removesuffix('s') if value == 1 else key}"
