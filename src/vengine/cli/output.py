"""Where words go: people read standard output, or standard error when `--json` gives standard output to machines."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vengine.digests import to_json

if TYPE_CHECKING:
    from rich.console import Console


def prepare_streams() -> None:
    """Let a stray byte in a file name or a narrow locale never end a run: escape what can't be written."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def console(as_json: bool) -> Console:
    """The rich console for people: standard error when standard output belongs to a machine."""
    from rich.console import Console

    return Console(stderr=as_json, highlight=False)


def json_line(value: Any) -> None:
    """Print one line of JSON as the last line. ASCII, no NaN: a number that isn't finite becomes null."""
    sys.stderr.flush()
    print(json.dumps(_finite(to_json(value)), ensure_ascii=True, allow_nan=False, default=str), flush=True)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's arrays and numbers
        return _finite(value.tolist())
    return value
