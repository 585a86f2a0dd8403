"""The clean-up passes as tables: what each must match, what it must not, and that answers stay the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.graphs import model, node, ops, random, rewritten, run

from vengine.graph.passes import (
    drop_identities,
    drop_nan_guards,
    drop_unused,
    finite_masks,
    fold_constants,
    plain_transposes,
    reduce_masks,
    share_initializers,
)

F = np.float32
X = {"x": ("float32", ["n", 4])}
KEYS = {"x": ("float32", ["b", 2, "s", 3])}
SCORES = {"x": ("float32", ["b", 2, "s", "s"]), "seen": ("bool", ["b", 1, 1, "s"])}
MASK = {"mask": ("bool", ["batch", "length"]), "x": ("float32", ["batch", "length"])}
SMALL = {"zero": F(0), "low": F(np.finfo(F).min), "infinite": F(-np.inf)}


# --- fold-constants, drop-identities, drop-unused, share-initializers -------------------------------------------


def folded(size: int = 4) -> Any:
    """x + (a × b), both of them constants."""
    weights = {"a": np.arange(size, dtype=F), "b": np.full(size, 3, F)}
    feeds = {"x": ("float32", ["n", size])}
    return model([node("Mul", ["a", "b"], "c"), node("Add", ["x", "c"], "y")], feeds, ["y"], **weights)


def spread() -> Any:
    """A vector that would be a hundred thousand numbers if it were folded."""
    nodes = [node("Expand", ["a", "shape"], "c"), node("Add", ["x", "c"], "y")]
    weights = {"a": np.ones((1, 4), F), "shape": np.array([25000, 4])}
    return model(nodes, {"x": ("float32", [25000, 4])}, ["y"], **weights)


def idle(*steps: Any) -> Any:
    return model([*steps, node("Relu", ["a"], "y")], X, ["y"], zero=F(0), one=F(1), two=F(2), ratio=F(0))


def joined() -> Any:
    return model([node("Identity", ["x"], "y")], X, ["y"])


def unread() -> Any:
    nodes = [node("Relu", ["x"], "y"), node("Exp", ["w"], "e")]
    return model(nodes, X, ["y"], w=np.ones(4, F))


def twice(other: Any) -> Any:
    nodes = [node("Add", ["x", "a"], "s"), node("Add", ["s", "b"], "y")]
    return model(nodes, X, ["y"], a=np.arange(4, dtype=F), b=other)


@pytest.mark.parametrize(
    ("rule", "graph", "matched", "left"),
    [
        pytest.param(fold_constants, folded, 1, ["Add"], id="fold: two constants"),
        pytest.param(fold_constants, lambda: folded(9000), 0, ["Add", "Mul"], id="fold, must not: a large weight"),
        pytest.param(fold_constants, spread, 0, ["Add", "Expand"], id="fold, must not: the file would grow"),
        pytest.param(drop_identities, lambda: idle(node("Identity", ["x"], "a")), 1, ["Relu"], id="identity"),
        pytest.param(drop_identities, lambda: idle(node("Add", ["x", "zero"], "a")), 1, ["Relu"], id="x + 0"),
        pytest.param(drop_identities, lambda: idle(node("Mul", ["x", "one"], "a")), 1, ["Relu"], id="x × 1"),
        pytest.param(drop_identities, lambda: idle(node("Cast", ["x"], "a", to=1)), 1, ["Relu"], id="cast"),
        pytest.param(
            drop_identities, lambda: idle(node("Transpose", ["x"], "a", perm=[0, 1])), 1, ["Relu"], id="transpose"
        ),
        pytest.param(
            drop_identities, lambda: idle(node("Mul", ["x", "two"], "a")), 0, ["Mul", "Relu"], id="must not: x × 2"
        ),
        pytest.param(
            drop_identities, lambda: idle(node("Sub", ["zero", "x"], "a")), 0, ["Relu", "Sub"], id="must not: 0 − x"
        ),
        pytest.param(drop_identities, joined, 0, ["Identity"], id="must not: from an input to an output"),
        pytest.param(drop_unused, unread, 2, ["Relu"], id="unused: a node and its weight"),
        pytest.param(drop_unused, folded, 0, ["Add", "Mul"], id="unused, must not: all is read"),
        pytest.param(
            share_initializers, lambda: twice(np.arange(4, dtype=F)), 1, ["Add", "Add"], id="share: the same bytes"
        ),
        pytest.param(
            share_initializers, lambda: twice(-np.arange(4, dtype=F)), 0, ["Add", "Add"], id="share, must not: others"
        ),
        pytest.param(
            share_initializers,
            lambda: twice(np.arange(4, dtype=F).reshape(1, 4)),
            0,
            ["Add", "Add"],
            id="share, must not: another shape",
        ),
    ],
)
def test_what_is_needless_goes(rule: Any, graph: Callable[[], Any], matched: int, left: list[str]) -> None:
    proto = graph()
    result, made = rewritten(rule, proto)
    assert (result.name, result.matched, ops(made)) == (rule.NAME, matched, left)
    _same(proto, made, {"x": random([d.dim_value or 3 for d in proto.graph.input[0].type.tensor_type.shape.dim])})


def test_tied_weights_are_kept_once() -> None:
    _, made = rewritten(share_initializers, twice(np.arange(4, dtype=F)))
    assert len(made.graph.initializer) == 1


def test_an_output_that_is_an_input_says_why_it_stays() -> None:
    result, _ = rewritten(drop_identities, joined())
    assert result.refusals == (("identity_y", "it joins an input of the graph to an output"),)


# --- plain-transposes -------------------------------------------------------------------------------------------


def tower(*, flat: str = "flat", four: str = "four", perm: tuple[int, ...] = (0, 2, 1), also: bool = False) -> Any:
    """Reshape, transpose, reshape back, with shapes computed from the value's own."""
    nodes = [
        node("Shape", ["x"], "shape"),
        node("Slice", ["shape", "m1", "end"], "d"),
        node("Slice", ["shape", "m2", "m1"], "c"),
        node("Slice", ["shape", "start", "m2"], "ab"),
        node("Concat", ["m1", "c", "d"], "flat", axis=0),
        node("Concat", ["m1", "d", "c"], "swapped", axis=0),
        node("Concat", ["ab", "d", "c"], "four", axis=0),
        node("Reshape", ["x", flat], "x3"),
        node("Transpose", ["x3"], "t3", perm=list(perm)),
        node("Reshape", ["t3", four], "t4"),
        node("Relu", ["t4"], "y"),
    ]
    ends = {"m1": [-1], "m2": [-2], "start": [-(1 << 62)], "end": [1 << 62], "fixed": [2, 2, 3, 5]}
    outputs = ["y", "t3"] if also else ["y"]
    return model(nodes, KEYS, outputs, **{k: np.array(v) for k, v in ends.items()})


@pytest.mark.parametrize(
    ("graph", "matched", "reason"),
    [
        pytest.param(tower, 1, "", id="the key of an attention"),
        pytest.param(lambda: tower(also=True), 1, "", id="the middle is read elsewhere too, and stays for that"),
        pytest.param(lambda: tower(flat="swapped"), 0, "more than flatten", id="must not: it reorders"),
        pytest.param(lambda: tower(four="fixed"), 0, "doesn't restore", id="must not: another shape"),
        pytest.param(lambda: tower(perm=(0, 1, 2)), 0, None, id="must not: nothing is transposed"),
    ],
)
def test_plain_transposes_are_bitwise_the_same(graph: Callable[[], Any], matched: int, reason: str | None) -> None:
    proto = graph()
    result, made = rewritten(plain_transposes, proto)
    assert result.matched == matched
    assert [reason in why for _, why in result.refusals if reason] == ([True] if reason else [])
    assert ("Transpose" in ops(made) and "Slice" not in ops(made)) is (matched == 1 and len(proto.graph.output) == 1)
    for batch, length in ((2, 5), (1, 1), (3, 7)) if "fixed" not in proto.graph.node[-2].input else ((2, 5),):
        _same(proto, made, {"x": random([batch, 2, length, 3])})


# --- reduce-masks -----------------------------------------------------------------------------------------------


def looked_up(*, backwards: bool = False, swap: bool = False, least: int = 0) -> Any:
    """A mask as transformers writes it today: looked up at every (row, position) and combined with what is true."""
    parts = ["j5", "i5"] if swap else ["i5", "j5"]
    counted = ["last_0", "minus", "minus"] if backwards else ["zero", "length_0", "one"]
    nodes = [
        node("Shape", ["x"], "batch_1", start=0, end=1),
        node("Shape", ["x"], "length_1", start=1, end=2),
        node("Squeeze", ["batch_1"], "batch_0"),
        node("Squeeze", ["length_1"], "length_0"),
        node("Range", ["zero", "batch_0", "one"], "i"),
        node("Sub", ["length_0", "one"], "last_0"),
        node("Range", counted, "j"),
        node("Unsqueeze", ["i", "after"], "i4"),
        node("Unsqueeze", ["j", "before"], "j4"),
        node("Unsqueeze", ["j", "around"], "q4"),
        node("Max", ["i4", "j4"], "both"),
        node("Shape", ["both"], "all"),
        node("Expand", ["i4", "all"], "i_all"),
        node("Expand", ["j4", "all"], "j_all"),
        node("Unsqueeze", ["i_all", "last"], "i5"),
        node("Unsqueeze", ["j_all", "last"], "j5"),
        node("Concat", parts, "at", axis=-1),
        node("GatherND", ["mask", "at"], "found"),
        node("GreaterOrEqual", ["q4", "least"], "ge"),
        node("And", ["true", "ge"], "always"),
        node("And", ["always", "found"], "seen"),
        node("Where", ["seen", "yes", "no"], "y"),
    ]
    numbers = {"zero": 0, "one": 1, "minus": -1, "least": least, "last": [-1]}
    axes = {"after": [1, 2, 3], "before": [0, 1, 2], "around": [0, 1, 3]}
    weights: dict[str, Any] = {name: np.array(n) for name, n in (numbers | axes).items()}
    made = model(nodes, MASK, ["y"], true=np.array(True), yes=F(1), no=F(0), **weights)
    _state(made, onnx.TensorProto.INT64, i4=["batch", 1, 1, 1], j4=[1, 1, 1, "length"], q4=[1, 1, "length", 1])
    _state(made, onnx.TensorProto.BOOL, ge=[1, 1, "length", 1], always=[1, 1, "length", 1])
    made.graph.doc_string = "swapped" if swap else ""
    _state(made, onnx.TensorProto.BOOL, found=["batch", 1, 1, "length"], seen=["batch", 1, "length", "length"])
    return made


def _state(proto: Any, dtype: int, **shapes: list[Any]) -> None:
    """The shapes that an exporter states, and onnx's own inference doesn't find."""
    for known in [known for known in proto.graph.value_info if known.name in shapes]:
        proto.graph.value_info.remove(known)
    proto.graph.value_info.extend(onnx.helper.make_tensor_value_info(n, dtype, dims) for n, dims in shapes.items())


@pytest.mark.parametrize(
    ("graph", "matched", "gone"),
    [
        pytest.param(looked_up, 3, True, id="as exporters write it"),
        pytest.param(lambda: looked_up(least=1), 2, False, id="must not combine: the first position is hidden"),
        pytest.param(lambda: looked_up(backwards=True), 1, False, id="must not: positions in reverse"),
        pytest.param(lambda: looked_up(swap=True), 2, False, id="must not look up: columns before rows"),
    ],
)
def test_reduced_masks_are_bitwise_the_same(graph: Callable[[], Any], matched: int, gone: bool) -> None:
    proto = graph()
    result, made = rewritten(reduce_masks, proto)
    assert ("GatherND" not in ops(made) and "And" not in ops(made)) is gone
    assert result.matched == matched
    square = proto.graph.doc_string == "swapped"  # its look-up fails elsewhere
    for batch, length in ((1, 1), (3, 3)) if square else ((1, 1), (1, 6), (3, 5), (5, 3)):
        mask = np.random.default_rng(batch).random((batch, length)) > 0.4
        mask[-1] = False
        _same(proto, made, {"mask": mask, "x": random([batch, length])})


# --- finite-masks, drop-nan-guards ------------------------------------------------------------------------------


def guarded(hidden: str = "low", *, replacement: str = "zero", also: bool = False, added: str = "bias") -> Any:
    """Softmax of masked scores behind a test for NaN."""
    nodes = [
        node("Where", ["seen", "zero", hidden], "bias"),
        node("Add", ["x", added], "masked"),
        node("Softmax", ["masked"], "s", axis=-1),
        node("IsNaN", ["s"], "bad"),
        node("Where", ["bad", replacement, "s"], "y"),
    ]
    outputs = ["y"]
    if also:
        nodes.append(node("Exp", [hidden], "e"))
        outputs.append("e")
    nodes.append(node("Identity", ["y"], "z"))
    outputs[0] = "z"
    return model(nodes, SCORES, outputs, one=F(1), **SMALL)


@pytest.mark.parametrize(
    ("graph", "finite", "dropped", "reason"),
    [
        pytest.param(guarded, 0, 1, "", id="a finite mask"),
        pytest.param(lambda: guarded("infinite"), 1, 1, "", id="a mask of −∞ becomes finite first"),
        pytest.param(
            lambda: guarded("infinite", also=True), 0, 0, "infinite", id="must not: −∞ is read elsewhere as well"
        ),
        pytest.param(lambda: guarded(replacement="one"), 0, 0, "0", id="must not: another number than 0"),
        pytest.param(lambda: guarded(added="x"), 0, 0, "added", id="must not: what is added is fed"),
    ],
)
def test_guards_go_where_no_nan_can_come(graph: Callable[[], Any], finite: int, dropped: int, reason: str) -> None:
    proto = graph()
    first, between = rewritten(finite_masks, proto)
    second, made = rewritten(drop_nan_guards, between)
    assert (first.matched, second.matched) == (finite, dropped)
    assert [reason in why for _, why in second.refusals] == ([] if dropped else [True])
    assert ("IsNaN" in ops(made)) is not bool(dropped)
    for batch, length in ((2, 4), (1, 1), (3, 9)):
        seen = np.random.default_rng(0).random((batch, 1, 1, length)) > 0.3
        seen[..., 0] = True
        feeds = {"x": random([batch, 2, length, length]), "seen": seen}
        _same(proto, made, feeds)
        hidden = run(made, {**feeds, "seen": np.zeros_like(seen)})
        assert all(np.isfinite(value).all() for value in hidden.values() if value.ndim == 4), "a fully masked row"


def test_a_mask_of_infinity_says_who_else_reads_it() -> None:
    result, _ = rewritten(finite_masks, guarded("infinite", also=True))
    assert result.refusals == (("infinite", "it also reaches Exp exp_e"),)


def _same(before: Any, after: Any, feeds: dict[str, Any]) -> None:
    """The same bits under the same names."""
    want, got = run(before, feeds), run(after, feeds)
    assert list(want) == list(got)
    for name, value in want.items():
        np.testing.assert_array_equal(got[name], value)
