"""From a recipe in fp16 or bf16 to the file that an engine opens, and what that engine then runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.graphs import model, node, random

from vengine.engines.base import get_engine
from vengine.errors import EngineError, UsageError
from vengine.graph.mixed_precision import KEEP_PASS
from vengine.hardware import has_bf16, machine
from vengine.tune.build import Workshop
from vengine.types import Recipe, RuntimeProfile, Variant

WIDTH = 64
PROFILE = RuntimeProfile(threads=1)
wants_bf16 = pytest.mark.skipif(not has_bf16(machine().isa), reason="this CPU has no bf16")


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    """Three products; between the second and the third, a norm."""
    named = {f"w{i}": random([WIDTH, WIDTH], i) / 20 for i in range(3)}
    nodes = [
        node("MatMul", ["x", "w0"], "a"),
        node("Relu", ["a"], "b"),
        node("MatMul", ["b", "w1"], "c"),
        node("LayerNormalization", ["c", "one"], "d"),
        node("MatMul", ["d", "w2"], "y"),
    ]
    made = model(nodes, {"x": ("float32", ["n", WIDTH])}, ["y"], **named, one=np.ones(WIDTH, np.float32))
    onnx.save(made, tmp_path / "model.onnx")
    calibration = [{"x": random([3, WIDTH], seed) / 3} for seed in range(12)]
    return Workshop(
        model=tmp_path / "model.onnx", directory=tmp_path / "built", calibration=calibration, transformer=False
    )


def recipe(precision: str, *passes: str, engine: str = "openvino") -> Recipe:
    return Recipe(engine=engine, precision=precision, profile=PROFILE, passes=passes, exactness="lossy")


def answers(variant: Variant, feeds: dict[str, Any], precision: str = "") -> Any:
    session = get_engine(variant.recipe.engine).open(
        variant.directory / variant.entry, precision or variant.recipe.precision, PROFILE
    )
    try:
        return session.run(feeds)["y"]
    finally:
        session.close()


def ran(variant: Variant, products: Sequence[str]) -> list[str]:
    """The precision of each of these products in the compiled graph."""
    import openvino

    from vengine.engines.openvino_trace import facts_of

    graph = openvino.Core().read_model(variant.directory / variant.entry)
    compiled = openvino.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    facts = facts_of(compiled).values()
    return [next(f.precision for f in facts if f.kind == "FullyConnected" and name in f.origins) for name in products]


@wants_bf16
@pytest.mark.parametrize(
    ("words", "precisions"),
    [
        ((), ["bf16", "bf16"]),
        (("keep:matmul_c",), ["bf16", "fp32"]),
        (("keep:MatMul", "keep:matmul_a"), None),
        (("only:matmul_a",), ["bf16", "fp32"]),
    ],
    ids=["none", "a node", "a type and a node: nothing left", "only a node"],
)
def test_the_engine_runs_what_the_file_says(
    words: tuple[str, ...], precisions: list[str] | None, shop: Workshop
) -> None:
    wanted = recipe("mixed-bf16", *words, "keep-list")
    variant = shop.build(wanted)
    feeds = {"x": random([5, WIDTH], 99) / 3}
    if precisions is None:
        with pytest.raises(EngineError, match="no matrix product runs in bf16"):
            answers(variant, feeds)
        return
    assert ran(variant, ["matmul_a", "matmul_c"]) == precisions
    plain = shop.build(recipe("fp32"))
    want, got = answers(plain, feeds), answers(variant, feeds)
    assert 0 < np.abs(want - got).max() < 0.05 * np.abs(want).max()
    assert variant.size_bytes < plain.size_bytes
    kept = next(p for p in variant.passes if p.name == KEEP_PASS)
    assert "layernormalization_d" in {name for name, _ in kept.refusals}


@wants_bf16
def test_a_hint_would_take_kept_nodes_along(shop: Workshop) -> None:
    """Why a mixed file has a precision of its own."""
    variant, feeds = shop.build(recipe("mixed-bf16", "keep-list")), {"x": random([5, WIDTH], 99) / 3}
    with pytest.raises(EngineError, match="bf16 although fp32"):
        answers(variant, feeds, precision="fp32")


@wants_bf16
def test_bf16_beside_int8_needs_a_product_that_is_left(shop: Workshop) -> None:
    with pytest.raises(UsageError, match="no product is left"):
        shop.build(recipe("int8-static-mixed-bf16", "keep-list"))
    with pytest.raises(UsageError, match="nothing was converted"):
        shop.build(recipe("int8-static-mixed-bf16", "keep:matmul_c", "keep-list"))


def test_fp16_weights_are_half_the_bytes(shop: Workshop) -> None:
    plain, narrow = shop.build(recipe("fp32")), shop.build(recipe("fp16-weights"))
    assert narrow.entry == "model.xml"
    assert narrow.size_bytes < 0.75 * plain.size_bytes, "an IR of this size is half graph"
    feeds = {"x": random([5, WIDTH], 99) / 3}
    want, got = answers(plain, feeds), answers(narrow, feeds)
    assert 0 < np.abs(want - got).max() < 0.01 * np.abs(want).max()


@pytest.mark.parametrize(("precision", "moved"), [("int8-weights", 0.03), ("int4-weights", 0.3)])
def test_weights_of_few_bits(precision: str, moved: float, shop: Workshop) -> None:
    plain, narrow = shop.build(recipe("fp32")), shop.build(recipe(precision))
    assert narrow.required_isa == (), "it computes in fp32, on any CPU"
    weights = narrow.directory / "model.bin"
    assert weights.stat().st_size < 0.35 * 4 * sum(w.size for w in initialisers(plain))
    feeds = {"x": random([5, WIDTH], 99) / 3}
    want, got = answers(plain, feeds), answers(narrow, feeds)
    assert 0 < np.abs(want - got).max() < moved * np.abs(want).max()


def initialisers(variant: Variant) -> list[Any]:
    graph = onnx.load(variant.directory / variant.entry).graph
    return [onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer]


@pytest.mark.parametrize("precision", ["fp16", "fp16-weights"])
def test_fp16_outside_too(precision: str, shop: Workshop) -> None:
    engine = "onnxruntime" if precision == "fp16" else "openvino"
    got = answers(shop.build(recipe(precision, "half-io", engine=engine)), {"x": random([5, WIDTH], 99) / 3})
    assert got.dtype == np.float16


def test_an_unknown_word_names_the_nearest(shop: Workshop) -> None:
    with pytest.raises(UsageError, match="nearest is 'matmul_c'"):
        shop.build(recipe("mixed-bf16", "keep:matmul_cc", "keep-list"))
