"""fp16 and bf16 with a keep-list that is found: models made to break, sound ones, and the types in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.graphs import model, node, ops, random, run

from vengine.errors import UsageError
from vengine.graph.half_precision import HALF_TYPES, cast_faults, check, lost_weights
from vengine.graph.keep_list import TOLERANCE, find_keep_list
from vengine.graph.mixed_precision import KEEP_PASS, MODEL_FILE, write_half
from vengine.graph.rounding import Rounding

WIDTH = 16


def weight(*shape: int, seed: int = 0, scale: float = 1.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale / np.sqrt(shape[0])).astype(np.float32)


def saved(proto: Any, folder: Path) -> Path:
    path = folder / MODEL_FILE
    onnx.save(proto, path)
    return path


def huge_logits(scale: float = 160) -> Any:
    """Attention whose scores reach some 100,000: beyond fp16."""
    nodes = [
        node("MatMul", ["x", "wq"], "q"),
        node("MatMul", ["x", "wk"], "k"),
        node("Transpose", ["k"], "kt", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], "scores"),
        node("Softmax", ["scores"], "p", axis=-1),
        node("MatMul", ["p", "x"], "c"),
        node("MatMul", ["c", "wo"], "o"),
        node("Add", ["o", "x"], "r"),
        node("MatMul", ["r", "w1"], "f"),
        node("Relu", ["f"], "g"),
        node("MatMul", ["g", "w2"], "y"),
    ]
    named = {name: weight(WIDTH, WIDTH, seed=seed) for seed, name in enumerate(("wo", "w1", "w2"))}
    both = {"wq": weight(WIDTH, WIDTH, scale=scale, seed=3), "wk": weight(WIDTH, WIDTH, scale=scale, seed=4)}
    return model(nodes, {"x": ("float32", ["n", "t", WIDTH])}, ["y"], **both, **named)


def large_logits() -> Any:
    """Attention whose scores reach some 10,000: bf16 knows them to a multiple of 64."""
    return huge_logits(scale=40)


def deep_sum() -> Any:
    """A mean of many values, written as a sum and a quotient: the sum is beyond fp16, the mean is not."""
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("Abs", ["a"], "b"),
        node("ReduceSum", ["b", "axes"], "s", keepdims=1),
        node("Div", ["s", "count"], "m"),
        node("Mul", ["m", "w2"], "y"),
    ]
    named = {"w": weight(WIDTH, WIDTH, scale=40), "w2": weight(1, WIDTH, seed=3)}
    numbers = {"axes": np.array([1]), "count": np.array(4000, np.float32)}
    return model(nodes, {"x": ("float32", ["n", "t", WIDTH])}, ["y"], **named, **numbers)


def tiny_norm() -> Any:
    """A norm over values of 1e-5: their squares are 0 in fp16."""
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("Mul", ["a", "a"], "squares"),
        node("ReduceMean", ["squares", "axes"], "mean", keepdims=1),
        node("Sqrt", ["mean"], "root"),
        node("Div", ["a", "root"], "n"),
        node("MatMul", ["n", "w2"], "y"),
    ]
    named = {"w": weight(WIDTH, WIDTH, scale=1e-5), "w2": weight(WIDTH, WIDTH, seed=1)}
    return model(nodes, {"x": ("float32", ["n", "t", WIDTH])}, ["y"], **named, axes=np.array([-1]))


def sound() -> Any:
    nodes = [
        node("MatMul", ["x", "w1"], "a"),
        node("Relu", ["a"], "b"),
        node("Reshape", ["b", "shape"], "c"),
        node("MatMul", ["c", "w2"], "y"),
    ]
    named = {"w1": weight(WIDTH, WIDTH), "w2": weight(WIDTH, WIDTH, seed=1), "shape": np.array([0, -1, WIDTH])}
    return model(nodes, {"x": ("float32", ["n", "t", WIDTH])}, ["y"], **named)


def masked() -> Any:
    """Minus infinity in a mask is not a value that overflows."""
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("Where", ["mask", "a", "floor"], "m"),
        node("Max", ["m", "zero"], "r"),
        node("MatMul", ["r", "w"], "y"),
    ]
    inputs = {"x": ("float32", ["n", "t", WIDTH]), "mask": ("bool", ["n", "t", 1])}
    numbers = {"floor": np.array(-np.inf, np.float32), "zero": np.array(0, np.float32)}
    return model(nodes, inputs, ["y"], w=weight(WIDTH, WIDTH), **numbers)


def cancelling(depth: int = 6) -> Any:
    """A thousand added and taken away again: no value is large, and what is left of the small ones is rounding."""
    nodes = []
    for i in range(depth):
        nodes += [node("MatMul", ["x" if not i else f"r{i - 1}", "w"], f"p{i}"), node("Tanh", [f"p{i}"], f"r{i}")]
    nodes += [
        node("Add", [f"r{depth - 1}", "much"], "a"),
        node("Sub", ["a", "much"], "s"),
        node("MatMul", ["s", "w"], "y"),
    ]
    numbers = {"w": weight(WIDTH, WIDTH, scale=2), "much": np.array(1000, np.float32)}
    return model(nodes, {"x": ("float32", ["n", "t", WIDTH])}, ["y"], **numbers)


def feeds(proto: Any, tokens: int, seed: int, batch: int = 1) -> dict[str, Any]:
    made: dict[str, Any] = {"x": random([batch, tokens, WIDTH], seed) / 3}
    if any(value.name == "mask" for value in proto.graph.input):
        made["mask"] = np.arange(tokens)[None, :, None].repeat(batch, 0) < max(1, tokens - 2)
    return made


SCORING = {"matmul_q", "matmul_k", "matmul_scores", "softmax_p"}
CASES = [
    pytest.param("fp16", huge_logits, SCORING, id="fp16: huge logits"),
    pytest.param("bf16", large_logits, SCORING, id="bf16: large logits"),
    pytest.param("fp16", deep_sum, {"reducesum_s", "div_m"}, id="fp16: deep sum"),
    pytest.param(
        "fp16", tiny_norm, {"matmul_a", "mul_squares", "reducemean_mean", "sqrt_root", "div_n"}, id="fp16: norm"
    ),
    pytest.param("bf16", tiny_norm, {"reducemean_mean"}, id="bf16: it has the range for tiny values"),
    pytest.param("fp16", sound, set(), id="fp16: sound"),
    pytest.param("bf16", sound, set(), id="bf16: sound"),
    pytest.param("fp16", masked, set(), id="fp16: a mask of minus infinity"),
    pytest.param("bf16", masked, set(), id="bf16: a mask of minus infinity"),
]


@pytest.mark.parametrize(("kind", "make", "most"), CASES)
def test_what_stays_is_found_and_is_little(kind: str, make: Callable[[], Any], most: set[str], tmp_path: Path) -> None:
    proto = make()
    path, half = saved(proto, tmp_path), HALF_TYPES[kind]
    tokens = 4000 if make is deep_sum else 48
    found = find_keep_list(path, half, [feeds(proto, tokens, s) for s in range(3)])
    assert found.error <= TOLERANCE
    assert set(found.nodes) <= most, {k.node: k.reason for k in found.kept}
    assert all(k.reason for k in found.kept)
    others = [feeds(proto, tokens + 5, 99, batch=2)]  # sizes that nothing was searched on
    assert Rounding(path, half, others).error(found.nodes) <= 2 * TOLERANCE


@pytest.mark.parametrize(
    ("kind", "make"), [("fp16", huge_logits), ("bf16", large_logits), ("fp16", deep_sum), ("fp16", tiny_norm)]
)
def test_plain_conversion_fails_where_the_found_list_passes(kind: str, make: Callable[[], Any], tmp_path: Path) -> None:
    proto, tokens = make(), 4000 if make is deep_sum else 48
    found = find_keep_list(saved(proto, tmp_path), HALF_TYPES[kind], [feeds(proto, tokens, s) for s in range(6)])
    assert found.plain_error > 3 * TOLERANCE >= found.error


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_what_no_rule_sees_is_found_by_bisection(kind: str, tmp_path: Path) -> None:
    proto = cancelling()
    found = find_keep_list(saved(proto, tmp_path), HALF_TYPES[kind], [feeds(proto, 12, s) for s in range(3)])
    assert set(found.nodes) == {"add_a", "sub_s"}
    assert found.plain_error > 3 * TOLERANCE > 3 * found.error
    assert found.runs <= 16, "15 nodes: two bisections, and each found node is given up once"
    assert all("outputs' error" in kept.reason for kept in found.kept)


def test_a_tight_list_is_a_quarter_of_the_error(tmp_path: Path) -> None:
    proto = sound()
    path, samples = saved(proto, tmp_path), [feeds(proto, 12, s) for s in range(3)]
    loose, tight = (find_keep_list(path, HALF_TYPES["bf16"], samples, tight=t) for t in (False, True))
    assert loose.nodes == ()
    assert tight.error <= loose.error / 4
    assert tight.nodes


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
@pytest.mark.parametrize("make", [sound, masked, huge_logits, tiny_norm, deep_sum])
def test_the_file_has_the_types_that_it_says(kind: str, make: Callable[[], Any], tmp_path: Path) -> None:
    proto = make()
    path = saved(proto, tmp_path)
    tokens = 4000 if make is deep_sum else 48
    converted, kept = write_half(path, tmp_path / "out", kind, [feeds(proto, tokens, s) for s in range(2)])
    made = onnx.load(tmp_path / "out" / MODEL_FILE)
    assert kept.name == KEEP_PASS
    assert converted.matched + kept.matched == len(Rounding(path, HALF_TYPES[kind], []).names)
    assert [o.type.tensor_type.elem_type for o in made.graph.output] == [onnx.TensorProto.FLOAT]
    if kind == "fp16":
        other = feeds(proto, tokens + 3, 50, batch=2)
        want, got = run(proto, other)["y"], run(made, other)["y"]
        assert np.linalg.norm(want - got) <= 2 * TOLERANCE * np.linalg.norm(want)


def test_half_the_bytes(tmp_path: Path) -> None:
    named = {"w1": weight(256, 256), "w2": weight(256, 256, seed=1)}
    proto = model(
        [node("MatMul", ["x", "w1"], "a"), node("MatMul", ["a", "w2"], "y")],
        {"x": ("float32", ["n", 256])},
        ["y"],
        **named,
    )
    write_half(saved(proto, tmp_path), tmp_path / "out", "fp16", [{"x": random([2, 256])}])
    size = sum(f.stat().st_size for f in (tmp_path / "out").iterdir())
    assert size < 0.51 * (tmp_path / MODEL_FILE).stat().st_size


@pytest.mark.parametrize(("keep_io_types", "kind"), [(True, 1), (False, 10)], ids=["fp32 outside", "fp16 outside"])
def test_types_of_inputs_and_outputs(keep_io_types: bool, kind: int, tmp_path: Path) -> None:
    proto = sound()
    samples = [feeds(proto, 5, 0)]
    write_half(saved(proto, tmp_path), tmp_path / "out", "fp16", samples, keep_io_types=keep_io_types)
    made = onnx.load(tmp_path / "out" / MODEL_FILE)
    assert {v.type.tensor_type.elem_type for v in (*made.graph.input, *made.graph.output)} == {kind}
    assert ops(made).count("Cast") == (2 if keep_io_types else 0)


@pytest.mark.parametrize(
    ("words", "fp32"),
    [
        ({}, set()),
        ({"keep": ["matmul_y"]}, {"matmul_y"}),
        ({"keep": ["MatMul"]}, {"matmul_a", "matmul_y"}),
        ({"op_types": ["MatMul"]}, {"relu_b"}),
        ({"op_types": ["relu_b"]}, {"matmul_a", "matmul_y"}),
    ],
    ids=["all", "a node", "a type", "only a type", "only a node"],
)
def test_the_users_words(words: dict[str, Any], fp32: set[str], tmp_path: Path) -> None:
    proto = sound()
    _, kept = write_half(saved(proto, tmp_path), tmp_path / "out", "bf16", [feeds(proto, 5, 0)], **words)
    made = onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "out" / MODEL_FILE))
    types = {v.name: v.type.tensor_type.elem_type for v in (*made.graph.value_info, *made.graph.output)}
    assert {name for name, _ in kept.refusals} == fp32
    assert {n.name for n in made.graph.node if n.op_type in ("MatMul", "Relu") and types[n.output[0]] == 1} == fp32


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"keep": ["matmul_yy"]}, "'matmul_yy' is neither .* nearest is 'matmul_y'"),
        ({"op_types": ["Matmul"]}, "'Matmul' is neither .* nearest is 'MatMul'"),
        ({"keep": ["MatMul", "Relu"]}, "nothing was converted"),
    ],
)
def test_words_that_mean_nothing_are_refused(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    proto = sound()
    with pytest.raises(UsageError, match=message) as caught:
        write_half(saved(proto, tmp_path), tmp_path / "out", "fp16", [feeds(proto, 5, 0)], **words)
    assert caught.value.next_step


def test_a_graph_with_branches_is_refused(tmp_path: Path) -> None:
    from onnx import helper

    def branch(name: str) -> Any:
        out = helper.make_tensor_value_info(name, 1, ["n", 4])
        return helper.make_graph([helper.make_node("Identity", ["x"], [name], name=name)], name, [], [out])

    choose = helper.make_node("If", ["c"], ["y"], name="if_y", then_branch=branch("a"), else_branch=branch("b"))
    proto = model([choose], {"x": ("float32", ["n", 4]), "c": ("bool", [])}, ["y"])
    with pytest.raises(UsageError, match="branches"):
        write_half(saved(proto, tmp_path), tmp_path / "out", "fp16", [{"x": random([1, 4]), "c": np.array(True)}])


@pytest.mark.parametrize(
    ("values", "kind", "lost"),
    [
        ([1.0, 0.0, -3.5], "fp16", (0, 0, 0)),
        ([1e-9, 1e-6, 1.0], "fp16", (1, 1, 0)),
        ([7e4, 1.0], "fp16", (0, 0, 1)),
        ([1e-9, 1e-6, 7e4], "bf16", (0, 0, 0)),
    ],
)
def test_lost_weights_are_counted(values: list[float], kind: str, lost: tuple[int, int, int]) -> None:
    assert lost_weights([np.array(values, np.float32)], HALF_TYPES[kind]) == lost


def test_lost_weights_are_told_and_not_clamped(tmp_path: Path) -> None:
    small = weight(WIDTH, WIDTH)
    small[0, :3] = 1e-9
    small[1, :2] = 1e-6
    proto = model([node("MatMul", ["x", "w"], "y")], {"x": ("float32", ["n", WIDTH])}, ["y"], w=small)
    converted, _ = write_half(saved(proto, tmp_path), tmp_path / "out", "fp16", [{"x": random([2, WIDTH])}])
    told = " ".join(reason for _, reason in converted.refusals)
    assert "3 of 256 become 0" in told
    assert "2 of 256 lose digits" in told
    stored = onnx.numpy_helper.to_array(onnx.load(tmp_path / "out" / MODEL_FILE).graph.initializer[0])
    assert (stored[0, :3] == 0).all()


@pytest.mark.parametrize(
    ("types", "faults"),
    [([10, 1], 0), ([10, 1, 10], 1), ([1], 1), ([10], 0)],
    ids=["there and back", "pair", "idle", "one"],
)
def test_casts_that_are_faults(types: list[int], faults: int) -> None:
    names = ["x", *(f"c{i}" for i in range(len(types)))]
    chain = [node("Cast", [names[i]], names[i + 1], to=kind) for i, kind in enumerate(types)]
    from onnx import helper

    graph = helper.make_graph(
        chain,
        "casts",
        [helper.make_tensor_value_info("x", 1, ["n"])],
        [helper.make_tensor_value_info(names[-1], types[-1], ["n"])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    assert len(list(cast_faults(onnx.shape_inference.infer_shapes(proto)))) == faults


def test_a_cast_whose_type_does_not_fit_is_found(tmp_path: Path) -> None:
    proto = sound()
    write_half(saved(proto, tmp_path), tmp_path / "out", "fp16", [feeds(proto, 5, 0)])
    path = tmp_path / "out" / MODEL_FILE
    made = onnx.load(path)
    next(n for n in made.graph.node if n.op_type == "Cast").attribute[0].i = 11
    onnx.save(made, path)
    with pytest.raises(Exception, match=r"(?i)type"):
        check(path, HALF_TYPES["fp16"])
