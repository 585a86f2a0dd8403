"""One watched call in the Trace Event format, which ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from vengine.report.wording import clean

if TYPE_CHECKING:
    from vengine.engines.recording import Node, Recording

START = '{"traceEvents":'
"""How every trace file of ours begins: what begins otherwise is somebody else's, and isn't replaced."""
_PROCESS, _CALL, _NODES = 1, 1, 2


def trace(recording: Recording, name: str) -> str:
    """The file's text: a track for the call, and one for its nodes.

    Times are microseconds from the start of the call. Where the engine tells durations only, the nodes lie end to end,
    and the file says so.
    """
    laid = "" if recording.timeline else ", laid end to end: the engine tells durations only"
    events: list[dict[str, Any]] = [
        _label("process_name", 0, clean(name)),
        _label("thread_name", _CALL, "call"),
        _label("thread_name", _NODES, f"nodes{laid}"),
        {"ph": "X", "name": "call", "cat": "call", "ts": 0, "dur": _us(recording.wall_ms), **_on(_CALL)},
        *(_event(node) for node in recording.nodes),
    ]
    body = ",\n".join(json.dumps(event, ensure_ascii=True, allow_nan=False) for event in events)
    return f'{START} [\n{body}\n], "displayTimeUnit": "ms"}}\n'


def _event(node: Node) -> dict[str, Any]:
    told = {
        "operator": clean(node.kind),
        "kernel": clean(node.kernel),
        "precision": clean(node.precision),
        "output": None if node.output is None else "x".join(map(str, node.output)),
        "own_ms": round(node.ms, 4),
        "operations": node.flops,
        "operations_per_s": node.flops / node.ms * 1000 if node.flops and node.ms > 0 else None,
        "moved_bytes": node.moved_bytes,
    }
    return {
        "ph": "X",
        "name": clean(node.name),
        "cat": node.share,
        "ts": _us(node.start_ms),
        "dur": _us(node.span_ms),
        **_on(_NODES),
        "args": {key: value for key, value in told.items() if value not in ("", None)},
    }


def _label(what: str, track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, **_on(track), "args": {"name": name}}


def _on(track: int) -> dict[str, int]:
    return {"pid": _PROCESS, "tid": track}


def _us(milliseconds: float) -> float:
    return round(milliseconds * 1000, 3)
