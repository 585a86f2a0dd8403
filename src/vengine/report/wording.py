"""How numbers and other people's texts are written, the same in every form of the report.

Numbers keep the digits that the measurement supports. Units stand behind a no-break space.
"""

from __future__ import annotations

import math
import unicodedata
from typing import Any

from vengine.types import Interval

MISSING = "–"
_NBSP = "\u00a0"
_MINUS = "\u2212"


def number(value: Any) -> float | None:
    """`value` as a finite float, or None: what a report lacks must not become a zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def interval(data: Any, *, value: str = "value") -> Interval | None:
    """Read {value, low, high} (or {ratio, low, high}); a missing bound falls on the value itself."""
    if not isinstance(data, dict):
        return None
    middle = number(data.get(value))
    if middle is None:
        return None
    low, high = number(data.get("low")), number(data.get("high"))
    return Interval(value=middle, low=middle if low is None else low, high=middle if high is None else high)


def digits(value: float, significant: int = 3) -> str:
    """`value` with so many significant digits, thousands grouped, a true minus sign."""
    if value == 0:
        return "0"
    places = max(0, significant - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}".replace("-", _MINUS)


def times(value: float | None) -> str:
    """A ratio: "4.73×"."""
    return MISSING if value is None else _ratio(value) + "×"


def spread(ratio: Interval | None) -> str:
    """The interval of a ratio: "4.64–4.82"."""
    return MISSING if ratio is None else f"{_ratio(ratio.low)}–{_ratio(ratio.high)}"


def times_range(ratio: Interval | None) -> str:
    """A ratio with its interval: "4.73× (4.64–4.82)"."""
    return MISSING if ratio is None else f"{times(ratio.value)} ({spread(ratio)})"


def _ratio(value: float) -> str:
    return digits(value) if value >= 10 else f"{value:.2f}"


def percent(fraction: float | None, *, sign: bool = False) -> str:
    """A fraction as per cent: 0.0032 → "0.32 %", −0.25 → "−25 %"."""
    if fraction is None:
        return MISSING
    value = fraction * 100
    places = 0 if abs(value) >= 10 else 1 if abs(value) >= 1 else 2
    text = f"{abs(value):.{places}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if text == "0":
        return f"0{_NBSP}%"
    mark = _MINUS if value < 0 else "+" if sign else ""
    return f"{mark}{text}{_NBSP}%"


def saved(ratio: float | None) -> str:
    """A speed-up as time: 4.0 → "75 % less time", 0.8 → "25 % more time"."""
    if ratio is None or ratio <= 0:
        return MISSING
    less = 1 - 1 / ratio
    # Rounded to "100 %" it would read as no time at all.
    amount = f"{min(less * 100, 99.99):.4g}{_NBSP}%" if less > 0.99 else percent(abs(less))
    return f"{amount} {'less' if less >= 0 else 'more'} time"


def milliseconds(value: float | None) -> str:
    """A duration given in milliseconds: "0.74 ms", "63 ms", "1.2 s"."""
    if value is None:
        return MISSING
    if value >= 1000:
        return seconds(value / 1000)
    return f"{digits(value, 3 if value >= 100 else 2)}{_NBSP}ms"


def seconds(value: float | None) -> str:
    """A duration given in seconds: "9.4 s", "3 min 32 s"."""
    if value is None:
        return MISSING
    if value < 60:
        return f"{digits(value, 2)}{_NBSP}s" if round(value, 1) < 60 else f"1{_NBSP}min"
    minutes, rest = divmod(round(value), 60)
    if minutes >= 60:
        return f"{minutes // 60}{_NBSP}h {minutes % 60}{_NBSP}min"
    return f"{minutes}{_NBSP}min" + (f" {rest}{_NBSP}s" if rest else "")


def size(value: float | None) -> str:
    """Bytes in decimal units: "23 MB", "1.2 GB"."""
    if value is None:
        return MISSING
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            amount = value / scale
            return f"{digits(amount, 2) if amount < 10 else f'{amount:,.0f}'}{_NBSP}{unit}"
    return f"{value:.0f}{_NBSP}B"


def score(value: float | None) -> str:
    """A metric or a cosine: four places, more where only more can tell it from 1."""
    if value is None:
        return MISSING
    text = f"{value:.4f}"
    if text == "1.0000" and value < 1:
        text = f"{value:.6f}"
    return text.replace("-", _MINUS)


def clean(value: Any, limit: int | None = None) -> str:
    """Somebody else's text on one line: no control or direction marks, at most `limit` characters.

    Escape sequences could repaint a terminal, direction overrides could fake a sentence.
    """
    text = "".join(_visible(c) for c in str(value))
    text = " ".join(text.split())
    if limit is not None and len(text) > limit:
        text = text[: limit - 1].rstrip() + "…"
    return text


def _visible(character: str) -> str:
    if character in "\t\n\r\u2028\u2029":
        return " "
    if unicodedata.category(character) in ("Cc", "Cs") or "\u202a" <= character <= "\u202e":
        return "\ufffd"
    return "\ufffd" if "\u2066" <= character <= "\u2069" else character


def cells_wide(text: str) -> int:
    """Columns that a text takes in a fixed-width grid: East Asian wide characters take two."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    marks = sum(unicodedata.combining(c) > 0 for c in text)
    return len(text) + wide - marks
