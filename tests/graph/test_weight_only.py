"""Weights of eight and four bits in an IR: what is stored narrow, what stays and why, how far answers move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.graphs import model, node, random
from tests.graph.test_half_weights import answers

from vengine.engines.openvino_engine import OpenVinoEngine
from vengine.errors import UsageError
from vengine.graph.weight_only import MODEL_FILE, Bits, write_weight_only
from vengine.types import RuntimeProfile

WIDTH = 64


def embedding_and_products(folder: Path, width: int = WIDTH) -> Path:
    """A table of 50 rows, then "matmul_a" and "matmul_y"."""
    nodes = [
        node("Gather", ["table", "ids"], "rows"),
        node("MatMul", ["rows", "w1"], "a"),
        node("MatMul", ["a", "w2"], "y"),
    ]
    weights = {"w1": random([width, width]) / 8, "w2": random([width, width], 1) / 8}
    path = folder / "model.onnx"
    onnx.save(model(nodes, {"ids": ("int64", ["n"])}, ["y"], table=random([50, width]), **weights), path)
    return path


def relative(path: Path, other: Path) -> float:
    feeds = np.arange(50)
    want, got = answers(path, feeds), answers(other, feeds)
    return float(np.abs(want - got).max() / np.abs(want).max())


@pytest.mark.parametrize(
    ("bits", "keep", "narrow", "stored", "most", "reason"),
    [
        (8, (), 3, ["u8", "u8", "u8"], 0.02, ""),
        (8, ("matmul_a",), 2, ["f32", "u8", "u8"], 0.02, "matmul_a stays in fp32: asked for"),
        (8, ("Gather",), 2, ["f32", "u8", "u8"], 0.02, "asked for"),
        (4, (), 1, ["u4", "u8", "u8"], 0.15, "2 are stored in int8"),
        (4, ("matmul_y",), 1, ["f32", "u4", "u8"], 0.3, "matmul_y stays in fp32: asked for"),
    ],
)
def test_what_is_narrow(
    bits: Bits, keep: tuple[str, ...], narrow: int, stored: list[str], most: float, reason: str, tmp_path: Path
) -> None:
    path = embedding_and_products(tmp_path)
    (result,) = write_weight_only(path, tmp_path / "out", bits, keep=keep)
    assert (result.name, result.matched) == (f"int{bits}-weights", narrow)
    assert weight_types(tmp_path / "out") == stored
    assert reason in " ".join(told for _, told in result.refusals)
    assert bool(reason) is bool(result.refusals)
    assert 0 < relative(path, tmp_path / "out" / MODEL_FILE) < most


def weight_types(target: Path) -> list[str]:
    import openvino as ov

    ops = ov.Core().read_model(target / MODEL_FILE).get_ordered_ops()
    kinds = {
        op.get_friendly_name(): op.get_element_type().to_string() for op in ops if op.get_type_name() == "Constant"
    }
    return sorted(kinds[name] for name in ("table", "w1", "w2"))


def test_channels_that_groups_of_32_dont_divide_have_smaller_groups(tmp_path: Path) -> None:
    path = embedding_and_products(tmp_path, 48)
    (result,) = write_weight_only(path, tmp_path / "out", 4)
    assert result.matched == 1
    assert relative(path, tmp_path / "out" / MODEL_FILE) < 0.15


def test_channels_that_no_group_divides_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no weight was narrowed"):
        write_weight_only(embedding_and_products(tmp_path, 33), tmp_path / "out", 4)


@pytest.mark.parametrize(
    ("bits", "keep", "message"),
    [
        (8, ("MatMull",), "nearest is 'MatMul'"),
        (8, ("MatMul", "Gather"), "no weight was narrowed"),
        (4, ("matmul_a", "matmul_y"), "no weight was narrowed"),
    ],
)
def test_words_that_mean_nothing_are_refused(bits: Bits, keep: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        write_weight_only(embedding_and_products(tmp_path), tmp_path / "out", bits, keep=keep)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bits", [4, 8])
def test_it_computes_in_fp32_and_an_answer_depends_on_no_neighbour(bits: Bits, tmp_path: Path) -> None:
    """What OpenVINO may do with such weights by itself, quantising activations at run time, is switched off."""
    write_weight_only(embedding_and_products(tmp_path), tmp_path / "out", bits)
    session = OpenVinoEngine().open(tmp_path / "out" / MODEL_FILE, f"int{bits}-weights", RuntimeProfile(threads=1))
    alone = session.run({"ids": np.array([7])})["y"]
    together = session.run({"ids": np.array([7, *range(20, 50)])})["y"]
    np.testing.assert_allclose(alone[0], together[0], rtol=1e-5, atol=1e-4)
    if bits == 8:
        rows, first, second = (stored(tmp_path / "out", name) for name in ("table", "w1", "w2"))
        np.testing.assert_allclose(alone[0], rows[7] @ first @ second, rtol=1e-5, atol=1e-4)


def stored(target: Path, name: str) -> Any:
    """A weight as its integers, scales and zero points mean it."""
    import openvino as ov

    ops = ov.Core().read_model(target / MODEL_FILE).get_ordered_ops()
    data = {op.get_friendly_name(): op.get_data().astype("float32") for op in ops if op.get_type_name() == "Constant"}
    scales = [value for key, value in data.items() if key.startswith(f"{name}/") and "scale" in key]
    assert len(scales) == 1, sorted(data)
    return (data[name] - data[f"{name}/zero_point"]) * scales[0]
