"""From recordings to a table: everything adds up to the call, and what isn't known stays unknown."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vengine.api.node_table import middle, table
from vengine.engines.ceilings import Ceiling, Ceilings
from vengine.engines.recording import Node, Recording

MATMUL = Node(
    name="m",
    kind="MatMul",
    share="products",
    start_ms=0,
    span_ms=2,
    ms=2,
    precision="fp32",
    flops=4e9,
    moved_bytes=4e6,
)
COPY = Node(name="t", kind="Transpose", share="moves", start_ms=2, span_ms=1, ms=1)
ADD = Node(name="a", kind="Add", share="rest", start_ms=3, span_ms=0.5, ms=0.5)
CEILINGS = Ceilings(
    threads=2, fp32=Ceiling(value=4e12, by="numpy"), memory=Ceiling(value=10e9, by="a copy"), int8=None, bf16=None
)


def call(*nodes: Node, wall: float = 4.0) -> Recording:
    return Recording(wall_ms=wall, nodes=nodes, timeline=True)


def test_nodes_and_gap_add_up_to_the_call() -> None:
    found = table([call(MATMUL, COPY, ADD)], CEILINGS)
    assert (found["wall_ms"], found["nodes_ms"], found["gap_ms"], found["gap_part"]) == (4.0, 3.5, 0.5, 0.125)
    assert [(s["name"], s["nodes"], s["ms"], s["part"]) for s in found["shares"]] == [
        ("products", 1, 2.0, 0.5),
        ("moves", 1, 1.0, 0.25),
        ("rest", 1, 0.5, 0.125),
    ]
    assert sum(s["part"] for s in found["shares"]) + found["gap_part"] == pytest.approx(1)
    for rows in (found["kinds"], found["nodes"]):
        assert sum(row["part"] for row in rows) + found["gap_part"] == pytest.approx(1)
    assert [n["name"] for n in found["nodes"]] == ["m", "t", "a"]


def test_nodes_that_tell_more_than_the_call_leave_no_negative_gap() -> None:
    found = table([call(MATMUL, COPY, wall=2.5)], None)
    assert (found["gap_ms"], found["gap_part"]) == (0, 0)
    assert sum(s["part"] for s in found["shares"]) == pytest.approx(1)


def test_the_middle_half_counts() -> None:
    calls = [call(ADD, wall=wall) for wall in (100, 1, 5, 6, 4, 0.5, 7, 90)]
    assert [r.wall_ms for r in middle(calls)] == [4, 5, 6, 7]
    assert table(calls, None)["wall_ms"] == 5.5
    assert [r.wall_ms for r in middle(calls[:1])] == [100]
    assert len(middle([call(ADD)] * 8)) == 8  # means of all of them


def test_a_node_that_runs_in_each_chunk_is_one_row() -> None:
    again = replace(MATMUL, start_ms=5, flops=2e9, moved_bytes=1e6, ms=1)
    (row,) = table([call(MATMUL, again), call(MATMUL, again)], CEILINGS)["nodes"]
    assert (row["runs"], row["ms"], row["flops"], row["moved_bytes"]) == (2, 3, 6e9, 5e6)
    assert row["flops_per_s"] == pytest.approx(6e9 / 3e-3)


@pytest.mark.parametrize(
    ("node", "rate", "of_roof", "bound"),
    [
        # 1000 operations a byte: fed 10e12, above the peak of 4e12.
        (MATMUL, 2e12, 0.5, "compute"),
        # 100 a byte: fed 1e12 at most.
        (replace(MATMUL, moved_bytes=4e7, ms=8), 5e11, 0.5, "memory"),
        (replace(MATMUL, moved_bytes=None), 2e12, 0.5, "compute"),
        (replace(MATMUL, precision="int8"), 2e12, None, None),  # no ceiling was measured
        (replace(MATMUL, precision=""), 2e12, None, None),
        (replace(MATMUL, flops=None), None, None, None),
        (replace(MATMUL, ms=0), None, None, None),
        (COPY, None, None, None),
    ],
)
def test_the_roofline(node: Node, rate: float | None, of_roof: float | None, bound: str | None) -> None:
    (row,) = table([call(node, wall=10)], CEILINGS)["nodes"]
    assert (row["flops_per_s"], row["of_roof"], row["bound"]) == (
        rate if rate is None else pytest.approx(rate),
        of_roof if of_roof is None else pytest.approx(of_roof),
        bound,
    )


def test_one_run_of_unknown_size_makes_the_nodes_rate_unknown() -> None:
    (row,) = table([call(MATMUL, replace(MATMUL, flops=None))], CEILINGS)["nodes"]
    assert (row["flops"], row["flops_per_s"]) == (None, None)


def test_the_overall_rate_leaves_out_what_is_unknown() -> None:
    found = table([call(MATMUL, replace(MATMUL, name="x", flops=None), COPY, wall=9)], CEILINGS)
    assert found["flops_per_s"] == pytest.approx(2e12)
    assert table([call(COPY)], CEILINGS)["flops_per_s"] is None


def test_operators_of_one_kind_and_precision_are_one_row() -> None:
    rows = table([call(MATMUL, replace(MATMUL, name="n"), replace(MATMUL, name="q", precision="int8"))], None)["kinds"]
    assert [(r["name"], r["precision"], r["nodes"]) for r in rows] == [("MatMul", "fp32", 2), ("MatMul", "int8", 1)]
