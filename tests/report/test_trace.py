"""A trace is valid in its format, its events lie inside the call, and nothing from a model breaks it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from vengine.engines.recording import Node, Recording
from vengine.report.trace import START, trace

NODES = (
    Node(name="outer", kind="If", share="rest", start_ms=0.1, span_ms=1.5, ms=0.5),
    Node(
        name='a"\n\x1b[31m\u202e',
        kind="MatMul",
        share="products",
        start_ms=0.2,
        span_ms=1.0,
        ms=1.0,
        kernel="brgemm",
        precision="int8",
        output=(8, 128),
        flops=2e9,
        moved_bytes=1e6,
    ),
)


def events(text: str) -> list[dict[str, Any]]:
    found = json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert set(found) <= {"traceEvents", "displayTimeUnit"}
    return list(found["traceEvents"])


def test_every_event_has_what_its_format_asks_for() -> None:
    found = events(trace(Recording(wall_ms=2.0, nodes=NODES, timeline=True), "model"))
    complete = [e for e in found if e["ph"] == "X"]
    assert len(complete) == 1 + len(NODES)
    for event in complete:
        assert event["name"]
        assert {"pid", "tid", "ts", "dur", "cat"} <= set(event)
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        assert event["ts"] + event["dur"] <= 2000
    assert {e["ph"] for e in found} == {"X", "M"}
    assert [e["args"]["name"] for e in found if e["name"] == "process_name"] == ["model"]
    tracks = {e["tid"] for e in found if e["name"] == "thread_name"}
    assert {e["tid"] for e in complete} == tracks


def test_a_node_says_what_is_known_of_it() -> None:
    outer, product = events(trace(Recording(wall_ms=2.0, nodes=NODES, timeline=True), "model"))[-2:]
    assert (product["ts"], product["dur"], product["cat"]) == (200, 1000, "products")
    assert product["args"] == {
        "operator": "MatMul",
        "kernel": "brgemm",
        "precision": "int8",
        "output": "8x128",
        "own_ms": 1.0,
        "operations": 2e9,
        "operations_per_s": 2e12,
        "moved_bytes": 1e6,
    }
    assert outer["args"] == {"operator": "If", "own_ms": 0.5}


def test_nothing_from_a_model_breaks_out_of_its_string() -> None:
    text = trace(Recording(wall_ms=2.0, nodes=NODES, timeline=True), "evil\x1b]0;\u202e")
    assert "\x1b" not in text
    assert "\\u001b" not in text
    assert "\\u202e" not in text
    assert text.startswith(START)


@pytest.mark.parametrize(("timeline", "says"), [(True, False), (False, True)])
def test_a_trace_says_when_its_nodes_are_only_laid_end_to_end(timeline: bool, says: bool) -> None:
    found = events(trace(Recording(wall_ms=2.0, nodes=NODES, timeline=timeline), "m"))
    names = [e["args"]["name"] for e in found if e["name"] == "thread_name"]
    assert any("end to end" in name for name in names) is says
