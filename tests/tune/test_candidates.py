"""Which recipes are tried on which CPU, and that nothing is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from vengine.tune.candidates import ROWS, candidates, required_isa
from vengine.types import Machine, Settings, Source, TensorSpec

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
FP32 = {"openvino fp32", "onnxruntime fp32", "onnxruntime fp32 fused"}
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


def test_int8_without_vnni_keeps_a_bit_free_and_is_portable() -> None:
    plain = {r.label: r for r in candidates(source(), FULL, Settings(), 2, ALL)[0]}["openvino int8-static"]
    safe = {r.label: r for r in candidates(source(), machine("avx2"), Settings(), 2, ALL)[0]}["openvino int8-static"]
    assert (plain.passes, required_isa(plain)) == ((), ("vnni",))
    assert (safe.passes, required_isa(safe)) == (("half-range-weights",), ())


def test_equal_threads_for_every_contender() -> None:
    assert {r.profile.threads for r in candidates(source(), FULL, Settings(), 3, ALL)[0]} == {3}
