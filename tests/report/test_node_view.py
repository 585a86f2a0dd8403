"""What people see of a profile: the facts, at any width, and nothing that repaints the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from vengine.api.node_table import table
from vengine.digests import to_json
from vengine.engines.ceilings import Ceiling, Ceilings
from vengine.engines.recording import Node, Recording
from vengine.report.node_view import print_profile

EVIL = "\x1b[31m[red]名[/red]\u202e"
PRODUCT = Node(
    name="encoder.layer.0.attention.self.query.of.a.very.long.name.that.ends.here",
    kind="FullyConnected",
    share="products",
    start_ms=0,
    span_ms=1.5,
    ms=1.5,
    precision="int8",
    output=(8, 128, 1536),
    flops=3e9,
    moved_bytes=1e6,
)
OTHERS = [
    Node(name=f"n{i}", kind=f"Op{i}", share="rest", start_ms=2, span_ms=0.02, ms=0.02 - i / 1000) for i in range(12)
]
CEILINGS = Ceilings(
    threads=2,
    fp32=Ceiling(value=2e11, by="numpy"),
    int8=Ceiling(value=4e12, by="openvino"),
    memory=Ceiling(value=17e9, by="a copy"),
)


def result(*nodes: Node, **more: Any) -> dict[str, Any]:
    recording = Recording(wall_ms=2.0, nodes=nodes, timeline=False)
    return {
        "name": "minilm.vengine",
        "kind": "bundle",
        "digest": "sha256:" + "0" * 64,
        "engine": "openvino",
        "precision": "int8-static",
        "precision_run": "int8-static",
        "threads": 2,
        "streams": 1,
        "chunk_tokens": None,
        "inputs": [{"name": "input_ids", "dtype": "int64", "shape": [8, 128]}],
        "plain_ms": {"value": 1.9, "low": 1.85, "high": 1.95},
        **table([recording], CEILINGS),
        "timeline": False,
        "ceilings": to_json(CEILINGS),
        "trace": None,
        "page": None,
        "machine": {"cpu": "Some CPU"},
        **more,
    }


def seen(value: Any, width: int = 100) -> str:
    file = io.StringIO()
    print_profile(value, Console(file=file, width=width, force_terminal=False))
    return file.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ["minilm.vengine", "openvino int8-static, 2 threads", "input_ids int64[8x128]", "Some CPU"],
        ["1.9 ms (1.85 to 1.95)", "watched 2.0 ms"],
        ["fp32 200 GFLOP/s", "bf16 not measurable here", "int8 4,000 GOP/s", "memory 17.0 GB/s"],
        ["matrix products", "memory moves", "everything else", "between nodes", "75 %"],
        ["FullyConnected", "8x128x1536", "2,000", "50 %", "compute", ".ends.here"],
        ["The 10 nodes that take the most", "5 more"],
    ],
)
def test_people_see_the_facts(words: list[str]) -> None:
    text = seen(result(PRODUCT, *OTHERS)).replace("\u00a0", " ")
    assert [w for w in words if w not in text] == []


@pytest.mark.parametrize("width", [80, 100, 140])
def test_nothing_that_is_a_number_is_cut(width: int) -> None:
    text = seen(result(PRODUCT, *OTHERS), width)
    assert max(len(line) for line in text.splitlines()) <= width
    cut = [word for word in text.split() if word.endswith("…")]
    assert cut == []


def test_ten_nodes_and_no_more() -> None:
    text = seen(result(PRODUCT, *OTHERS))
    shown = [i for i in range(12) if f" n{i} " in text]
    assert shown == list(range(9))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"precision": "reference", "precision_run": "fp32"}, "reference, which is fp32"),
        ({"streams": 2}, "2 streams (watched one at a time)"),
        ({"chunk_tokens": 512}, "chunks of 512 tokens"),
        ({"trace": "out.json"}, "trace: out.json"),
        ({"threads": 1}, "1 thread\n"),
    ],
)
def test_how_it_ran_is_told(facts: dict[str, Any], words: str) -> None:
    assert words in "\n".join(line.rstrip() for line in seen(result(PRODUCT, **facts)).splitlines())


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("model.encoder.layer.{}.output.dense", "…{}.output.dense"),
        ("model.encoder.layer.{}.intermediate.intermediate_of_some_length_and_more_act_fn", "_act_fn"),
    ],
)
def test_layers_are_told_apart(name: str, shown: str) -> None:
    text = seen(result(*(replace(PRODUCT, name=name.format(i), ms=0.5) for i in range(3))), 100)
    rows = [line.split()[0] for line in text.splitlines() if "FullyConnected int8" in line and "8x128" in line]
    assert len(set(rows)) == 3
    assert [f"…{i}" in row for i, row in enumerate(rows)] == [True] * 3
    assert all(shown.format(i) in row for i, row in enumerate(rows))


@pytest.mark.parametrize(
    ("low", "high", "watched", "busy"),
    [(1.85, 1.95, 2.0, False), (1.85, 2.6, 2.0, True), (2.9, 3.0, 2.0, True), (1.85, 1.95, 4.0, False)],
)
def test_a_busy_machine_is_named(low: float, high: float, watched: float, busy: bool) -> None:
    text = seen(result(PRODUCT, plain_ms={"value": low, "low": low, "high": high}, wall_ms=watched))
    assert ("something else uses this machine" in text) is busy


def test_a_call_whose_sizes_are_unknown_has_no_rate() -> None:
    text = seen(result(replace(PRODUCT, flops=None, output=None)))
    assert "GOP/s" in text
    row = next(line for line in text.splitlines() if ".ends.here" in line)
    assert row.count("–") == 4  # output, rate, share of the best, bound


def test_nothing_from_a_file_repaints_the_terminal() -> None:
    evil = replace(PRODUCT, name=EVIL, kind=EVIL, kernel=EVIL, precision=EVIL)
    text = seen(result(evil, name=EVIL, trace=EVIL, machine={"cpu": EVIL}), 200)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]名[/red]" in text, "markup in somebody's text is text"
