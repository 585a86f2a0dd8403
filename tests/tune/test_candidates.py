"""Which recipes are tried on which CPU, and that nothing is dropped in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from vengine.graph.quantize import COULD_SATURATE
from vengine.tune.candidates import HALF_RANGE, PORTABLE, ROWS, candidates, required_isa, second_thoughts
from vengine.types import (
    Interval,
    Machine,
    Objective,
    Outcome,
    PassResult,
    Recipe,
    RuntimeProfile,
    Settings,
    Source,
    TensorSpec,
    Trial,
    TrialStatus,
    Verdict,
)

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
MIXED = {"openvino mixed-bf16", "openvino int8-static-mixed-bf16"}
FEW_BITS = {"openvino int8-weights", "openvino int4-weights"}
INT8 = {"openvino int8-static", "onnxruntime int8-static", "onnxruntime int8-dynamic"}


@pytest.mark.parametrize(
    ("here", "settings", "tried"),
    [
        (FULL, Settings(), FP32 | BF16 | INT8),
        (FULL, Settings(level="safe"), FP32),
        (FULL, Settings(precision="fp32"), FP32),
        (FULL, Settings(precision="bf16"), {"openvino bf16"}),
        (FULL, Settings(precision="mixed"), BF16),
        (FULL, Settings(precision="int8"), INT8 | {"openvino int8-static-bf16", "openvino int8-weights"}),
        (FULL, Settings(precision="int4"), {"openvino int4-weights"}),
        (FULL, Settings(engines=("onnxruntime",)), {r for r in FP32 | INT8 if r.startswith("onnx")}),
        (machine("avx2"), Settings(), FP32 | INT8),
        (FULL, Settings(force_fp32=("MatMul",)), FP32 | INT8 | MIXED),
        (FULL, Settings(op_types_to_quantize=("MatMul",)), FP32 | INT8 | MIXED),
        (FULL, Settings(precision="bf16", force_fp32=("MatMul",)), {"openvino mixed-bf16"}),
        (FULL, Settings(precision="fp16"), {"openvino fp16-weights"}),
        (machine("avx2", "fp16"), Settings(precision="fp16"), {"openvino fp16-weights", "onnxruntime fp16"}),
    ],
)
def test_what_is_tried(here: Machine, settings: Settings, tried: set[str]) -> None:
    recipes, refused = candidates(source(), here, settings, 2, ALL)
    assert {r.label for r in recipes} == tried
    assert all(t.reason for t in refused)


def test_every_row_of_the_level_is_tried_or_refused_with_a_reason() -> None:
    recipes, refused = candidates(source("openvino"), machine("avx2"), Settings(), 2, ("openvino",))
    assert len(recipes) + len(refused) == sum(not row.when for row in ROWS)
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
        ("int8-weights", (), None, ()),
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


@pytest.mark.parametrize(
    ("objective", "more"),
    [
        ("latency", set()),
        ("throughput", set()),
        ("memory", {"openvino mixed-bf16", "openvino fp16-weights", *FEW_BITS}),
    ],
)
def test_half_the_bytes_are_tried_where_memory_counts(objective: Objective, more: set[str]) -> None:
    recipes, _ = candidates(source(), FULL, Settings(), 2, ALL, objective)
    assert {r.label for r in recipes} == FP32 | BF16 | INT8 | more


@pytest.mark.parametrize(
    ("settings", "here", "label", "reason"),
    [
        (Settings(precision="fp16"), FULL, "onnxruntime fp16", "this CPU has no fp16"),
        (Settings(force_fp32=("Add",)), FULL, "openvino bf16", "mixed-bf16 keeps"),
        (Settings(force_fp32=("Add",)), FULL, "openvino int8-static-bf16", "int8-static-mixed-bf16 keeps"),
        (Settings(force_fp32=("Add",)), machine("avx2"), "openvino mixed-bf16", "no bf16"),
    ],
)
def test_why_it_is_refused(settings: Settings, here: Machine, label: str, reason: str) -> None:
    refused = {t.recipe.label: t.reason for t in candidates(source(), here, settings, 2, ALL)[1]}
    assert reason in refused[label]


def test_the_users_words_name_the_recipe() -> None:
    settings = Settings(precision="bf16", force_fp32=("Add", "node_1"), op_types_to_quantize=("MatMul",))
    (recipe,) = candidates(source(), FULL, settings, 2, ALL)[0]
    assert recipe.passes == ("only:MatMul", "keep:Add", "keep:node_1", "keep-list")
    (narrow,) = candidates(source(), FULL, Settings(precision="fp16", keep_io_types=False), 2, ALL)[0]
    assert narrow.passes == ("half-io",)


def trial(precision: str, status: TrialStatus, outcome: Outcome | None, engine: str = "openvino", *words: str) -> Trial:
    drop = Interval(value=0.1, low=0.1, high=0.1)
    told = outcome and Verdict(
        outcome=outcome, metric="cosine", original=None, optimized=0.9, drop=drop, max_drop=0.01, samples=9
    )
    recipe = Recipe(engine=engine, precision=precision, profile=RuntimeProfile(threads=2), passes=words)
    return Trial(recipe=recipe, status=status, verdict=told or None)


@pytest.mark.parametrize(
    ("trials", "again"),
    [
        ([trial("bf16", "refused", "fail")], {("mixed-bf16", ("keep-list-tight",))}),
        (
            [trial("mixed-bf16", "refused", "fail", "openvino", "keep:Add", "keep-list")],
            {("mixed-bf16", ("keep:Add", "keep-list-tight"))},
        ),
        (
            [trial("int8-static-bf16", "refused", "fail"), trial("int8-static", "ok", "pass")],
            {("int8-static-mixed-bf16", ("keep-list-tight",))},
        ),
        ([trial("int8-static-bf16", "refused", "fail"), trial("int8-static", "refused", "fail")], set()),
        ([trial("bf16", "refused", "undecided")], {("mixed-bf16", ("keep-list-tight",))}),
        ([trial("bf16", "refused", "pass")], set()),
        ([trial("bf16", "refused", None)], set()),
        ([trial("bf16", "ok", "pass")], set()),
        ([trial("mixed-bf16", "refused", "fail", "openvino", "keep-list-tight")], set()),
        ([trial("int8-dynamic", "refused", "fail", "onnxruntime")], set()),
    ],
    ids=[
        *(
            "bf16",
            "a list that was too short",
            "bf16 beside int8",
            "int8 is to blame",
            "undecided",
            "slower",
            "not even tried",
        ),
        *("sound", "tight already", "another precision"),
    ],
)
def test_bf16_that_answers_wrong_is_tried_with_a_keep_list(
    trials: list[Trial], again: set[tuple[str, tuple[str, ...]]]
) -> None:
    assert {(r.precision, r.passes) for r in second_thoughts(trials)} == again
