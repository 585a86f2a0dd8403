"""Each pass as a table: what it must match, what it must not, and how exact it is, measured with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.graph.graphs import model, node, ops, pair, random, rewritten, run

from vengine.graph.passes import idle_quantizers, late_dequantize, unsigned_activations

F, I8, U8 = np.float32, np.int8, np.uint8
X = {"x": ("float32", ["n", 4])}
Q3 = {name: ("float32", ["n", 3, 8]) for name in ("q", "k", "v")}
IDS = {"ids": ("int64", ["n"])}
WEIGHT = {"w": np.arange(-8, 8, dtype=I8).reshape(4, 4), "ws": F(0.1), "wz": I8(0)}
WEIGHT_PAIR = [node("DequantizeLinear", ["w", "ws", "wz"], "wf")]


# --- idle-quantizers ----------------------------------------------------------------------------------------


def attention(quantised: str = "k", *, moves: bool = False, also: bool = False, leaves: bool = False) -> Any:
    """Attention whose input `quantised` passes a pair; perhaps moved in between, perhaps read by others as well."""
    nodes = [*pair(quantised, "after")]
    source, weights = "after", {"s": F(0.05), "z": U8(128)}
    if moves:
        nodes += [node("Transpose", ["after"], "t", perm=[0, 2, 1]), node("Transpose", ["t"], "u", perm=[0, 2, 1])]
        source = "u"
    inputs = [source if name == quantised else name for name in ("q", "k", "v")]
    nodes.append(node("Attention", inputs, "y", q_num_heads=2, kv_num_heads=2))
    outputs = ["y", "after"] if leaves else ["y"]
    if also:
        weights |= {"w": np.ones((8, 2), dtype=F)}
        nodes.append(node("MatMul", ["after", "w"], "p"))
        outputs.append("p")
    return model(nodes, Q3, outputs, **weights)


def product() -> Any:
    return model(
        [*pair("x", "a"), *WEIGHT_PAIR, node("MatMul", ["a", "wf"], "y")], X, ["y"], s=F(0.05), z=U8(128), **WEIGHT
    )


def softmax() -> Any:
    return model([*pair("x", "a"), node("Softmax", ["a"], "y")], X, ["y"], s=F(0.05), z=U8(128))


@pytest.mark.parametrize(
    ("graph", "matched", "refused"),
    [
        pytest.param(attention, 1, 0, id="before attention"),
        pytest.param(lambda: attention("v", moves=True), 1, 0, id="before attention, behind transposes"),
        pytest.param(softmax, 1, 0, id="before softmax"),
        pytest.param(lambda: attention(leaves=True), 0, 1, id="must not: an output of the graph"),
        pytest.param(product, 0, 0, id="must not: before an integer product"),
        pytest.param(lambda: attention(also=True), 0, 1, id="must not: a product needs it too"),
        pytest.param(
            lambda: model([*WEIGHT_PAIR, node("Softmax", ["wf"], "y")], X, ["y"], **WEIGHT),
            0,
            0,
            id="must not: a weight",
        ),
    ],
)
def test_idle_quantizers(graph: Callable[[], Any], matched: int, refused: int) -> None:
    proto = graph()
    result, made = rewritten(idle_quantizers, proto)
    assert (result.matched, len(result.refusals), result.exactness) == (matched, refused, "lossy")
    assert ops(made).count("QuantizeLinear") == ops(proto).count("QuantizeLinear") - matched
    shape = [2, 3, 8] if "q" in {i.name for i in proto.graph.input} else [2, 4]
    feeds = {i.name: random(shape, seed) / 3 for seed, i in enumerate(proto.graph.input)}
    before, after = run(proto, feeds), run(made, feeds)
    for name, value in before.items():
        if not matched:
            np.testing.assert_array_equal(after[name], value)
        else:  # the rounding that is gone: no more than its step moves through
            np.testing.assert_allclose(after[name], value, atol=0.05)


def test_idle_quantizers_leave_what_the_float_graph_would_answer() -> None:
    proto = attention()
    float_only = model([node("Attention", ["q", "k", "v"], "y", q_num_heads=2, kv_num_heads=2)], Q3, ["y"])
    feeds = {name: random([2, 3, 8], seed) for seed, name in enumerate(Q3)}
    made = rewritten(idle_quantizers, proto)[1]
    np.testing.assert_array_equal(run(made, feeds)["y"], run(float_only, feeds)["y"])
    assert not np.array_equal(run(proto, feeds)["y"], run(float_only, feeds)["y"]), "the pair did round"


# --- unsigned-activations -----------------------------------------------------------------------------------


def signed(zero: int = -3, *, computed: bool = False) -> Any:
    """An activation pair in int8 before a product with int8 weights."""
    nodes = [*WEIGHT_PAIR, *pair("x", "a"), node("MatMul", ["a", "wf"], "y")]
    weights = {"s": F(0.05), **WEIGHT}
    if computed:
        nodes.insert(0, node("Cast", ["zf"], "z", to=3))
        return model(nodes, X, ["y"], zf=F(-3), **weights)
    return model(nodes, X, ["y"], z=I8(zero), **weights)


def shared() -> Any:
    """Two pairs with one zero point."""
    nodes = [*pair("x", "a"), node("Relu", ["a"], "b"), *pair("b", "y")]
    return model(nodes, X, ["y"], s=F(0.05), z=I8(5))


@pytest.mark.parametrize(
    ("graph", "matched", "refused"),
    [
        pytest.param(signed, 1, 0, id="int8 activation"),
        pytest.param(lambda: signed(-128), 1, 0, id="lowest zero point"),
        pytest.param(lambda: signed(127), 1, 0, id="highest zero point"),
        pytest.param(shared, 2, 0, id="two pairs share a zero point"),
        pytest.param(product, 0, 0, id="must not: unsigned already"),
        pytest.param(lambda: signed(computed=True), 0, 2, id="must not: a zero point that is computed"),
        pytest.param(
            lambda: model([*WEIGHT_PAIR, node("MatMul", ["x", "wf"], "y")], X, ["y"], **WEIGHT),
            0,
            0,
            id="must not: weights",
        ),
    ],
)
def test_unsigned_activations_are_bitwise_the_same(graph: Callable[[], Any], matched: int, refused: int) -> None:
    proto = graph()
    result, made = rewritten(unsigned_activations, proto)
    assert (result.matched, len(result.refusals), result.exactness) == (matched, refused, "bitwise")
    # Large values saturate at both ends; they must do so at the same place.
    for scale in (0.01, 1.0, 100.0):
        feeds = {"x": random([5, 4]) * F(scale)}
        for name, value in run(proto, feeds).items():
            np.testing.assert_array_equal(run(made, feeds)[name], value)
    if matched:
        quantised = {n.output[0] for n in made.graph.node if n.op_type == "QuantizeLinear"}
        zeros = {n.input[2] for n in made.graph.node if n.op_type == "QuantizeLinear"}
        types = {w.name: w.data_type for w in made.graph.initializer}
        assert quantised
        assert {types[z] for z in zeros} == {2}, "uint8"


# --- late-dequantize ----------------------------------------------------------------------------------------


def table(
    *,
    scale: Any = 0.02,
    zero: Any = 0,
    axis: int = 0,
    gather_axis: int = 0,
    also: bool = False,
    fed: bool = False,
) -> Any:
    """DequantizeLinear(table) → Gather, in all the ways it may look."""
    nodes = [
        node("DequantizeLinear", ["t", "s", "z"] if zero is not None else ["t", "s"], "f", axis=axis),
        node("Gather", ["f", "ids"], "y", axis=gather_axis),
    ]
    outputs = ["y"]
    if also:
        nodes.append(node("ReduceSum", ["f"], "sum", keepdims=0))
        outputs.append("sum")
    weights = {"s": F(scale)} | ({"z": I8(zero)} if zero is not None else {})
    integers = np.random.default_rng(3).integers(-128, 128, (6, 4)).astype(I8)
    if fed:
        return model(nodes, {**IDS, "t": ("int8", [6, 4])}, outputs, **weights)
    return model(nodes, IDS, outputs, t=integers, **weights)


ROWS = np.linspace(0.001, 0.3, 6).astype(F)
COLUMNS = np.linspace(0.001, 0.3, 4).astype(F)


@pytest.mark.parametrize(
    ("graph", "matched", "reason"),
    [
        pytest.param(table, 1, "", id="one scale"),
        pytest.param(lambda: table(zero=None), 1, "", id="no zero point"),
        pytest.param(lambda: table(scale=ROWS, zero=np.zeros(6, I8)), 1, "", id="a scale for each row"),
        pytest.param(lambda: table(zero=1), 0, "zero point", id="must not: a zero point"),
        pytest.param(
            lambda: table(scale=ROWS, zero=np.arange(6).astype(I8)), 0, "zero point", id="must not: zero points"
        ),
        pytest.param(
            lambda: table(scale=COLUMNS, zero=np.zeros(4, I8), axis=1), 0, "columns", id="must not: scales of columns"
        ),
        pytest.param(lambda: table(gather_axis=1), 0, "rows", id="must not: looks up columns"),
        pytest.param(lambda: table(also=True), 0, "others", id="must not: others read the floats"),
        pytest.param(lambda: table(fed=True), 0, "constant", id="must not: the table is an input"),
    ],
)
def test_late_dequantize_is_bitwise_the_same(graph: Callable[[], Any], matched: int, reason: str) -> None:
    proto = graph()
    result, made = rewritten(late_dequantize, proto)
    assert (result.matched, result.exactness) == (matched, "bitwise")
    assert [reason in why for _, why in result.refusals] == ([] if matched else [True])
    assert ("DequantizeLinear" in ops(made)) is not bool(matched)
    feeds: dict[str, Any] = {"ids": np.array([3, 0, 2, 3, 1])}
    if len(proto.graph.input) > 1:
        feeds["t"] = np.ones((6, 4), I8)
    for name, value in run(proto, feeds).items():
        np.testing.assert_array_equal(run(made, feeds)[name], value)


def test_a_table_that_is_looked_up_twice_stays() -> None:
    nodes = [
        node("DequantizeLinear", ["t", "s"], "f"),
        node("Gather", ["f", "ids"], "y"),
        node("Gather", ["f", "ids"], "y2"),
    ]
    proto = model(nodes, IDS, ["y", "y2"], t=np.ones((6, 4), I8), s=F(0.5))
    result, _ = rewritten(late_dequantize, proto)
    assert (result.matched, len(result.refusals)) == (0, 2)
