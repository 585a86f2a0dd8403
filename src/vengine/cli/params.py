"""How words on the command line become numbers with units. Each type says what it accepts when it refuses."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import click

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_BYTES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_NUMBER = r"\d+(?:\.\d+)?|\.\d+"


class Duration(click.ParamType[float]):
    """`90s`, `5m`, `1.5h`, `1h30m`, `90` → seconds (float), above zero, at most a week."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse; a number passes as seconds."""
        if isinstance(value, (int, float)):
            return float(value)
        text = str(value).strip().lower()
        parts = re.findall(rf"({_NUMBER})(min|[smh]?)", text)
        if not parts or "".join(n + u for n, u in parts) != text or (len(parts) > 1 and any(not u for _, u in parts)):
            self.fail(f"{value!r} is not a duration; write 90s, 5m or 1h", param, ctx)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if not 0 < seconds <= 7 * 86400:
            self.fail(f"{value!r} must be above zero and at most a week", param, ctx)
        return seconds


class Fraction(click.ParamType[float]):
    """`1%` or `0.01` → 0.01, from 0 up to but not including 1."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse; a float passes as the fraction that it is."""
        if isinstance(value, float):
            return value
        match = re.fullmatch(rf"({_NUMBER})\s*(%?)", str(value).strip())
        if not match:
            self.fail(f"{value!r} is not a share; write 1% or 0.01", param, ctx)
        share = float(match[1]) / (100.0 if match[2] else 1.0)
        if not 0 <= share < 1:
            meant = "" if match[2] else f" — did you mean {match[1]}%?"
            self.fail(f"{value!r} is {share:.0%}; a share lies between 0% and 100%{meant}", param, ctx)
        return share


class Size(click.ParamType[int]):
    """`2G`, `512M`, `1.5GiB`, `1000000` → bytes (int). Units are powers of 1024."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse; an integer passes as bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(rf"({_NUMBER})\s*([kmgt]?)(?:i?b)?", str(value).strip().lower())
        if not match:
            self.fail(f"{value!r} is not a size; write 512M or 2G", param, ctx)
        size = math.floor(float(match[1]) * _BYTES[match[2]])
        if not 1 <= size < 1 << 60:
            self.fail(f"{value!r} must be at least one byte", param, ctx)
        return size


class Shape(click.ParamType[tuple[int, int]]):
    """`8x256` → (8, 256): batch × length in tokens."""

    name = "BATCHxLENGTH"
    LIMIT = 1 << 20  # tokens in one call

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        """Parse; a pair passes as it is."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,7})[x×*](\d{1,7})", str(value).strip().lower())
        batch, length = (int(match[1]), int(match[2])) if match else (0, 0)
        if batch < 1 or length < 1:
            self.fail(f"{value!r} is not a shape; write batch x length, as 8x256", param, ctx)
        if batch * length > self.LIMIT:
            self.fail(f"{value!r} is {batch * length:,} tokens in one call; at most {self.LIMIT:,}", param, ctx)
        return batch, length


class Names(click.ParamType[tuple[str, ...]]):
    """`openvino,onnxruntime` → ("openvino", "onnxruntime")."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Parse; a tuple passes as it is."""
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(","))
        if not all(names):
            self.fail(f"{value!r} has an empty name; write names with commas between", param, ctx)
        return tuple(dict.fromkeys(names))


def default(config: type, field: str) -> Any:
    """The default of a dataclass's field: the one place where a default is written."""
    found = {f.name: f for f in dataclasses.fields(config)}[field]
    assert found.default is not dataclasses.MISSING, f"{config.__name__}.{field} has no plain default"
    return found.default


as_json = click.option(
    "--json", "as_json", is_flag=True, help="One JSON line on standard output; people's text goes to standard error."
)
threads = click.option(
    "--threads", type=click.IntRange(1, 1024), default=None, help="For every variant.  [default: as measured]"
)
