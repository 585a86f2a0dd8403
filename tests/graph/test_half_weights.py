"""fp16 weights in an IR: what is stored narrow, what stays and why, and that nothing is clamped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.graphs import model, node, random

from vengine.errors import UsageError
from vengine.graph.half_weights import MODEL_FILE, write_half_weights

WIDTH = 64


def two_products(folder: Path, *, largest: float = 1.0, least: float = 1.0) -> Path:
    """Nodes "matmul_a" and "matmul_y"; the first weight of the second has the largest size, the next the least."""
    w1, w2 = random([WIDTH, WIDTH]) / 8, random([WIDTH, WIDTH], 1) / 8
    w2[0, 0], w2[0, 1] = largest, least
    nodes = [node("MatMul", ["x", "w1"], "a"), node("MatMul", ["a", "w2"], "y")]
    path = folder / "model.onnx"
    onnx.save(model(nodes, {"x": ("float32", ["n", WIDTH])}, ["y"], w1=w1, w2=w2), path)
    return path


def widths(target: Path) -> dict[str, str]:
    """Element types of the stored weights."""
    import openvino as ov

    graph = ov.Core().read_model(target / MODEL_FILE)
    return {
        op.get_friendly_name(): op.get_element_type().to_string()
        for op in graph.get_ordered_ops()
        if op.get_type_name() == "Constant" and op.output(0).get_partial_shape().rank.get_length() == 2
    }


def answers(path: Path, feeds: Any) -> Any:
    import openvino as ov

    return np.array(ov.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(feeds)[0])


@pytest.mark.parametrize(
    ("weights", "keep", "narrow", "reason"),
    [
        ({}, (), 2, ""),
        ({"largest": 1e5}, (), 1, "1 of 4,096 values are beyond 65,504"),
        ({}, ("matmul_y",), 1, "asked for"),
        ({"least": 1e-9}, (), 2, "1 of 8,192 become 0"),
    ],
    ids=["all", "a weight beyond fp16", "asked for", "a weight that becomes 0"],
)
def test_what_is_narrow(
    weights: dict[str, float], keep: tuple[str, ...], narrow: int, reason: str, tmp_path: Path
) -> None:
    path = two_products(tmp_path, **weights)
    (result,) = write_half_weights(path, tmp_path / "out", keep=keep)
    assert result.matched == narrow
    assert sorted(widths(tmp_path / "out").values()) == sorted(["f16"] * narrow + ["f32"] * (2 - narrow))
    assert reason in " ".join(told for _, told in result.refusals)
    assert bool(reason) is bool(result.refusals)
    feeds = random([5, WIDTH], 7)
    want, got = answers(path, feeds), answers(tmp_path / "out" / MODEL_FILE, feeds)
    assert 0 < np.abs(want - got).max() < 2e-3 * np.abs(want).max()
    assert {p.name for p in (tmp_path / "out").iterdir()} == {"model.xml", "model.bin"}


@pytest.mark.parametrize(("keep_io_types", "kind"), [(True, "f32"), (False, "f16")])
def test_types_outside(keep_io_types: bool, kind: str, tmp_path: Path) -> None:
    import openvino as ov

    write_half_weights(two_products(tmp_path), tmp_path / "out", keep_io_types=keep_io_types)
    graph = ov.Core().read_model(tmp_path / "out" / MODEL_FILE)
    assert {port.get_element_type().to_string() for port in (*graph.inputs, *graph.outputs)} == {kind}


@pytest.mark.parametrize(
    ("keep", "message"), [(("MatMull",), "nearest is 'MatMul'"), (("MatMul",), "no weight was narrowed")]
)
def test_words_that_mean_nothing_are_refused(keep: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        write_half_weights(two_products(tmp_path), tmp_path / "out", keep=keep)


def test_half_the_bytes(tmp_path: Path) -> None:
    path = two_products(tmp_path)
    write_half_weights(path, tmp_path / "out")
    assert (tmp_path / "out" / "model.bin").stat().st_size < 0.52 * path.stat().st_size
