"""Lints, each with what it must find and what it must leave alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from tests.graph.graphs import model, node, pair, random

from vengine.graph import lints
from vengine.types import PassResult

X = {"x": ("float32", ["n", 16])}
WIDE = random([16, 64], 4)
DEAD = WIDE.copy()
DEAD[:, 5] = 0
TINY = WIDE.copy()
TINY[0, 0] = 1e-40
CODES = np.random.default_rng(0).integers(-100, 100, [16, 64]).astype(np.int8)
CUT = CODES.copy()
CUT[:, 3] = np.where(CODES[:, 3] < 0, -127, 127)


def product(weights: np.ndarray) -> Any:
    return model([node("MatMul", ["x", "w"], "y")], X, ["y"], w=weights)


def masked(op: str, value: float) -> Any:
    return model([node(op, ["x", "m"], "y")], X, ["y"], m=np.array([0, value] * 8, np.float32))


def two(first: np.ndarray, second: np.ndarray) -> Any:
    nodes = [node("MatMul", ["x", "w"], "a"), node("MatMul", ["x", "v"], "b"), node("Add", ["a", "b"], "y")]
    return model(nodes, X, ["y"], w=first, v=second)


def quantized(codes: np.ndarray, bias: float = 0.0, scale: float = 0.01) -> Any:
    read = node("DequantizeLinear", ["wq", "ws", "wz"], "w", axis=1)
    nodes = [*pair("x", "d"), read, node("MatMul", ["d", "w"], "a"), node("Add", ["a", "bias"], "y")]
    count = codes.shape[1]
    return model(
        nodes,
        X,
        ["y"],
        wq=codes,
        ws=np.full(count, scale, np.float32),
        wz=np.zeros(count, np.int8),
        bias=np.full(count, bias, np.float32),
        s=np.float32(0.05),
        z=np.uint8(128),
    )


@pytest.mark.parametrize(
    ("lint", "proto", "found"),
    [
        (lints.float_min_masks, masked("Add", -np.inf), 1),
        (lints.float_min_masks, masked("Add", float(np.finfo(np.float32).min)), 1),
        (lints.float_min_masks, masked("Add", -10000.0), 0),
        (lints.float_min_masks, masked("Div", -np.inf), 0),
        (lints.denormals, product(TINY), 1),
        (lints.denormals, product(WIDE), 0),
        (lints.denormals, product(np.zeros_like(WIDE)), 0),
        (lints.dead_channels, product(DEAD), 1),
        (lints.dead_channels, product(WIDE), 0),
        (lints.dead_channels, product(np.where(np.eye(16, 64) + np.eye(16, 64, -1) > 9, 0, WIDE)), 0),
        (lints.tied_weights, two(WIDE, WIDE), 1),
        (lints.tied_weights, two(WIDE, DEAD), 0),
        (lints.tied_weights, two(WIDE[:, :8], WIDE[:, :8]), 0),  # too small to matter
        (lints.bias_overflow, quantized(CODES, bias=2e6, scale=1e-2), 1),
        (lints.bias_overflow, quantized(CODES, bias=2e5, scale=1e-2), 0),
        (lints.bias_overflow, product(WIDE), 0),
        (lints.saturated_channels, quantized(CUT), 1),
        (lints.saturated_channels, quantized(CODES), 0),
    ],
)
def test_a_lint_finds_what_it_must_and_nothing_else(
    lint: Callable[[ir.Model], PassResult], proto: Any, found: int
) -> None:
    graph = ir.from_proto(proto)
    result = lint(graph)
    assert result.matched == found
    assert len(result.refusals) == found
    assert all(reason for _, reason in result.refusals)
    together = {r.name for r in (*lints.before(graph), *lints.after(graph))}
    assert (result.name in together) is bool(found)
