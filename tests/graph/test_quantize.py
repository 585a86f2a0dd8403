"""The quantisers: what the user's words do, what is refused, and that the same inputs give the same bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.graphs import model, node, random, run

from vengine.digests import digest_tree
from vengine.errors import UsageError
from vengine.graph.quantize import MODEL_FILE, quantize_dynamic, quantize_ir, quantize_static

WIDTH = 16
FEEDS = [{"x": random([3, WIDTH], seed) / 3} for seed in range(8)]


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Two products with an activation between them: nodes "first" and "second"."""
    rng = np.random.default_rng(0)
    weights = {n: (rng.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32) for n in ("w1", "w2")}
    nodes = [node("MatMul", ["x", "w1"], "a"), node("Relu", ["a"], "b"), node("MatMul", ["b", "w2"], "y")]
    proto = model(nodes, {"x": ("float32", ["n", WIDTH])}, ["y"], **weights)
    path = tmp_path / MODEL_FILE
    onnx.save(proto, path)
    return path


def static(path: Path, target: Path, **words: Any) -> Any:
    return quantize_static(path, target, FEEDS, transformer=False, **words)


def products(target: Path, op: str) -> int:
    """How many products run in integers: as MatMulInteger, or with a dequantised weight."""
    graph = onnx.load(target / MODEL_FILE).graph
    if op == "dynamic":
        return sum(n.op_type == "MatMulInteger" for n in graph.node)
    dequantised = {n.output[0] for n in graph.node if n.op_type == "DequantizeLinear"}
    return sum(n.op_type == "MatMul" and n.input[1] in dequantised for n in graph.node)


@pytest.mark.parametrize(("quantize", "kind"), [(static, "static"), (quantize_dynamic, "dynamic")])
@pytest.mark.parametrize(
    ("words", "count"),
    [
        ({}, 2),
        ({"op_types": ["MatMul"]}, 2),
        ({"op_types": ["matmul_y"]}, 1),
        ({"keep": ["matmul_y"]}, 1),
        ({"keep": ["Relu"]}, 2),
    ],
    ids=["all", "a type", "one node", "all but one node", "another type is kept"],
)
def test_what_is_quantised(
    quantize: Callable[..., Any], kind: str, words: dict[str, Any], count: int, plain: Path, tmp_path: Path
) -> None:
    results = quantize(plain, tmp_path / "out", **words)
    assert results[0].matched > 0
    assert products(tmp_path / "out", kind) == count
    made = onnx.load(tmp_path / "out" / MODEL_FILE)
    for feeds in FEEDS[:2]:
        want, got = run(onnx.load(plain), feeds)["y"], run(made, feeds)["y"]
        assert 0 < np.abs(want - got).max() < 0.1 * np.abs(want).max()


@pytest.mark.parametrize("quantize", [static, quantize_dynamic], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"keep": ["Conv"]}, "'Conv' is neither"),
        ({"op_types": ["Gelu"]}, "'Gelu' is neither"),
        ({"keep": ["MatMul", "no_such_node"]}, "'no_such_node' is neither"),
        ({"keep": ["MatMul", "Relu"]}, "nothing was quantised"),
    ],
)
def test_words_that_mean_nothing_are_refused(
    quantize: Callable[..., Any], words: dict[str, Any], message: str, plain: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        quantize(plain, tmp_path / "out", **words)
    assert caught.value.next_step


def test_activations_are_unsigned_and_weights_signed(plain: Path, tmp_path: Path) -> None:
    static(plain, tmp_path / "out")
    graph = onnx.load(tmp_path / "out" / MODEL_FILE).graph
    types = {w.name: w.data_type for w in graph.initializer}
    assert {types[n.input[2]] for n in graph.node if n.op_type == "QuantizeLinear"} == {onnx.TensorProto.UINT8}
    assert {types[n.input[0]] for n in graph.node if n.input[0] in types} <= {onnx.TensorProto.INT8, 1}


def test_half_range_weights_leave_a_bit_free(plain: Path, tmp_path: Path) -> None:
    def largest(target: Path) -> int:
        weights = [w for w in onnx.load(target / MODEL_FILE).graph.initializer if w.data_type == onnx.TensorProto.INT8]
        return max(int(np.abs(onnx.numpy_helper.to_array(w).astype(int)).max()) for w in weights)

    static(plain, tmp_path / "full")
    static(plain, tmp_path / "half", half_range=True)
    assert largest(tmp_path / "full") > 64 >= largest(tmp_path / "half")


@pytest.mark.parametrize("quantize", [static, quantize_dynamic], ids=["static", "dynamic"])
def test_the_same_inputs_give_the_same_bytes(quantize: Callable[..., Any], plain: Path, tmp_path: Path) -> None:
    digests = set()
    for name in ("one", "two"):
        quantize(plain, tmp_path / name)
        digests.add(
            digest_tree(tmp_path / name, [p for p in (tmp_path / name).iterdir() if p.name.startswith("model")])
        )
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("words", "count"),
    [({}, 2), ({"keep": ["matmul_a"]}, 1), ({"op_types": ["MatMul"]}, 2)],
    ids=["all", "keep", "only"],
)
def test_an_openvino_ir_obeys_the_same_words(words: dict[str, Any], count: int, plain: Path, tmp_path: Path) -> None:
    import openvino as ov

    ov.save_model(ov.convert_model(plain), tmp_path / "ir.xml", compress_to_fp16=False)
    quantize_ir(tmp_path / "ir.xml", tmp_path / "out", FEEDS, transformer=False, **words)
    ops = ov.Core().read_model(tmp_path / "out" / "model.xml").get_ops()
    assert sum(op.get_element_type().to_string() == "i8" for op in ops if op.get_type_name() == "Constant") == count


def test_an_openvino_ir_refuses_words_that_mean_nothing(plain: Path, tmp_path: Path) -> None:
    import openvino as ov

    ov.save_model(ov.convert_model(plain), tmp_path / "ir.xml")
    with pytest.raises(UsageError, match="'Conv' is neither"):
        quantize_ir(tmp_path / "ir.xml", tmp_path / "out", FEEDS, transformer=False, keep=["Conv"])
