"""The seam's own parts: which feeds fit, how a call is measured, and the engines' list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.making import ONE, layer, layer_feeds

from vengine.api.doctor import doctor
from vengine.engines.base import ENGINES, arrange, get_engine, named_axes, package_availability, size_of
from vengine.errors import UsageError
from vengine.types import TensorSpec

IDS = TensorSpec(name="ids", dtype="int64", shape=("batch", "length"))
IMAGE = TensorSpec(name="image", dtype="float32", shape=("batch", 3, "height", "width"))


@pytest.mark.parametrize(
    "array",
    [
        np.ones((2, 3), dtype=np.int64),
        np.ones((2, 3), dtype=np.int32),
        np.ones((2, 3), dtype=bool),
        np.ones((3, 2), dtype=np.int64).T,
        np.ones((0, 3), dtype=np.int64),
    ],
)
def test_feeds_that_fit_are_cast_and_contiguous(array: Any) -> None:
    (fitted,) = arrange([IDS], {"ids": array})
    assert fitted.dtype == np.int64
    assert fitted.flags.c_contiguous
    np.testing.assert_array_equal(fitted, array)


def test_feeds_that_fit_already_are_not_copied() -> None:
    array = np.ones((2, 3), dtype=np.int64)
    assert arrange([IDS], {"ids": array})[0] is array


@pytest.mark.parametrize(
    ("feeds", "match"),
    [
        ({}, "'ids' is missing"),
        ({"id": np.ones((1, 1), dtype=np.int64)}, "'ids' is missing"),
        ({"ids": np.ones((1, 1), dtype=np.int64), "more": np.ones(1)}, "no input 'more'"),
        ({"ids": np.ones((1, 1))}, "is float64, the model wants int64"),
        ({"ids": np.ones(1, dtype=np.int64)}, "shape .1., the model wants .batch, length."),
        ({"ids": np.array([["a"]])}, "the model wants int64"),
    ],
)
def test_feeds_that_do_not_fit(feeds: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        arrange([IDS], feeds)


def test_floats_are_not_cast_in_silence() -> None:
    with pytest.raises(UsageError, match="is float64, the model wants float32"):
        arrange([IMAGE], {"image": np.ones((1, 3, 4, 4))})


@pytest.mark.parametrize(
    ("specs", "shape", "tokens"),
    [
        ([IDS], (4, 16), 64),
        ([IDS], (1, 1), 1),
        ([IDS], (0, 5), 1),
        ([IMAGE], (4, 3, 8, 8), 4),
        ([TensorSpec(name="ids", dtype="int64", shape=("batch", 16))], (4, 16), 4),
        ([TensorSpec(name="ids", dtype="int64", shape=())], (), 1),
    ],
)
def test_the_size_of_a_call(specs: list[TensorSpec], shape: tuple[int, ...], tokens: int) -> None:
    assert size_of(specs, {specs[0].name: np.zeros(shape)})[1] == tokens


def test_the_input_with_a_length_sets_the_size() -> None:
    table = TensorSpec(name="table", dtype="float32", shape=("batch", 7))
    assert size_of([table, IDS], {"table": np.zeros((2, 7)), "ids": np.zeros((2, 9))}) == (2, 18)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((None, None, 8), ("batch", "length", 8)),
        (("rows", 3, None), ("rows", 3, "dim2")),
        ((1, -1), (1, "length")),
        ((), ()),
    ],
)
def test_free_axes_have_names(given: tuple[Any, ...], named: tuple[Any, ...]) -> None:
    assert named_axes(given) == named


@pytest.mark.parametrize("name", [*ENGINES, "fake"])
def test_every_engine_says_whether_it_is_here(name: str) -> None:
    found = get_engine(name)
    availability = found.availability()
    assert found.name == name
    assert availability.ok == bool(availability.version)
    assert availability.ok or (availability.reason and availability.install)


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_loading_a_model_leaves_the_callers_arithmetic_alone(tmp_path: Path, name: str) -> None:
    pytest.importorskip(name, reason=f"{name} is not installed")
    tiny = np.array([1e-38], dtype=np.float32)
    assert (tiny * np.float32(0.1))[0] > 0, "another test has switched denormal numbers off"
    get_engine(name).open(layer(tmp_path / "m.onnx"), "fp32", ONE).run(layer_feeds())
    assert (tiny * np.float32(0.1))[0] > 0


def test_the_fake_takes_part_in_no_race() -> None:
    assert "fake" not in ENGINES
    with pytest.raises(UsageError, match="no engine 'tpu'"):
        get_engine("tpu")


def test_a_package_that_is_missing_comes_with_its_install_line() -> None:
    found = package_availability("no_such_package_at_all", "pip install it")
    assert (found.ok, found.install) == (False, "pip install it")
    assert "no_such_package_at_all" in found.reason


def test_the_doctor_sees_limits() -> None:
    free, limited = doctor({}), doctor({"ONEDNN_MAX_CPU_ISA": "AVX2"})
    assert not [note for note in free["notes"] if "ONEDNN_MAX_CPU_ISA" in note]
    text = " ".join(limited["notes"])
    assert "ONEDNN_MAX_CPU_ISA=AVX2" in text
    assert "no bf16" in text
    assert [engine["name"] for engine in limited["engines"]] == list(ENGINES)
    assert limited["threads"] >= 1
