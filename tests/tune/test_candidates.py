"""Which recipes are tried on which CPU, and that nothing is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from vengine.graph.quantize import COULD_SATURATE
from vengine.tune.candidates import HALF_RANGE, PORTABLE, ROWS, candidates, required_isa
from vengine.types import Machine, PassResult, Recipe, RuntimeProfile, Settings, Source, TensorSpec

ALL = ("torch", "onnxruntime", "openvino")


def machine(*isa: str) -> Machine:
    return Machine(
        cpu="test",
        isa=isa,
        physical_cores=2,
        cores_allowed=2.0,
        memory_bytes=1 << 34,
        memory_available_bytes=1 << 33,
        os="Linux",
        python="3.11",
    )


def source(kind: str = "huggingface") -> Source:
    return Source(
        kind=kind,  # type: ignore[arg-type]
        name="m",
        location="m",
        path=Path("m"),
        task="embedding",
        digest="sha256:0",
        licence="unknown",
        parameters=1,
        weight_bytes=4,
        inputs=(TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length")),),
        outputs=(),
    )


FULL = machine("avx2", "avx512f", "bf16", "vnni")
FP32 = {"openvino fp32", "onnxruntime fp32"}
BF16 = {"openvino bf16", "openvino int8-static-bf16"}
INT8 = {"openvino int8-static", "onnxruntime int8-static", "onnxruntime int8-dynamic"}


@pytest.mark.parametrize(
    ("here", "settings", "tried"),
    [
        (FULL, Settings(), FP32 | BF16 | INT8),
        (FULL, Settings(level="safe"), FP32),
        (FULL, Settings(precision="fp32"), FP32),
        (FULL, Settings(precision="bf16"), {"openvino bf16"}),
        (FULL, Settings(precision="mixed"), BF16),
        (FULL, Settings(precision="int8"), INT8 | {"openvino int8-static-bf16"}),
        (FULL, Settings(engines=("onnxruntime",)), {r for r in FP32 | INT8 if r.startswith("onnx")}),
        (machine("avx2"), Settings(), FP32 | INT8),
        (FULL, Settings(force_fp32=("MatMul",)), FP32 | INT8 | {"openvino int8-static-bf16"}),
    ],
)
def test_what_is_tried(here: Machine, settings: Settings, tried: set[str]) -> None:
    recipes, refused = candidates(source(), here, settings, 2, ALL)
    assert {r.label for r in recipes} == tried
    assert all(t.reason for t in refused)


def test_every_row_of_the_level_is_tried_or_refused_with_a_reason() -> None:
    recipes, refused = candidates(source("openvino"), machine("avx2"), Settings(), 2, ("openvino",))
    assert len(recipes) + len(refused) == len(ROWS)
    assert {t.recipe.label: t.reason for t in refused}["onnxruntime fp32"].startswith("onnxruntime is not installed")


@pytest.mark.parametrize(
    ("here", "kind", "label", "passes"),
    [
        (FULL, "huggingface", "openvino int8-static", ()),
        (FULL, "huggingface", "onnxruntime int8-dynamic", ()),
        (machine("avx2"), "huggingface", "openvino int8-static", (PORTABLE,)),
        (machine("avx2"), "huggingface", "onnxruntime int8-dynamic", (HALF_RANGE,)),
        (machine("avx2"), "openvino", "openvino int8-static", (HALF_RANGE,)),
    ],
)
def test_int8_without_vnni_saves_bits(here: Machine, kind: str, label: str, passes: tuple[str, ...]) -> None:
    assert {r.label: r for r in candidates(source(kind), here, Settings(), 2, ALL)[0]}[label].passes == passes


@pytest.mark.parametrize(
    ("precision", "words", "unsafe", "flags"),
    [
        ("int8-static", (), None, ("vnni",)),
        ("int8-static", (), 2, ("vnni",)),
        ("int8-static", (), 0, ()),
        ("int8-static", (PORTABLE,), 0, ()),
        ("int8-static", (PORTABLE,), 1, ("vnni",)),  # a node that the pass had to leave
        ("int8-static", (HALF_RANGE,), None, ()),
        ("int8-dynamic", (HALF_RANGE,), None, ()),
        ("int8-dynamic", (), None, ("vnni",)),
        ("int8-static-bf16", (PORTABLE,), 0, ("bf16",)),
        ("fp32", (), None, ()),
    ],
)
def test_portable_is_what_was_proven(
    precision: str, words: tuple[str, ...], unsafe: int | None, flags: tuple[str, ...]
) -> None:
    recipe = Recipe(engine="openvino", precision=precision, profile=RuntimeProfile(threads=1), passes=words)
    told = () if unsafe is None else (PassResult(name=COULD_SATURATE, exactness="bitwise", matched=unsafe),)
    assert required_isa(recipe, told) == flags


def test_equal_threads_for_every_contender() -> None:
    assert {r.profile.threads for r in candidates(source(), FULL, Settings(), 3, ALL)[0]} == {3}
