"""Small models for the engines' tests: fakes with a behaviour, and ONNX graphs of a few nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from vengine.types import RuntimeProfile

ONE = RuntimeProfile(threads=1)
WIDTH = 16


def fake(folder: Path, **behaviour: Any) -> Path:
    """A file for the fake engine."""
    path = folder / "fake.json"
    path.write_text(json.dumps(behaviour))
    return path


def text_feeds(batch: int = 2, length: int = 5, seed: int = 0) -> dict[str, Any]:
    """Random ids with a full mask."""
    ids = np.random.default_rng(seed).integers(4, 90, (batch, length))
    return {"input_ids": ids, "attention_mask": np.ones((batch, length), dtype=np.int64)}


def layer_feeds(batch: int = 2, length: int = 5, seed: int = 0) -> dict[str, Any]:
    """Random activations for `layer`."""
    return {"x": np.random.default_rng(seed).standard_normal((batch, length, WIDTH)).astype(np.float32)}


def expected(feeds: dict[str, Any]) -> Any:
    """What `layer` computes, by numpy."""
    return np.maximum(feeds["x"] @ weights(), 0)


def weights() -> Any:
    return np.random.default_rng(7).standard_normal((WIDTH, WIDTH)).astype(np.float32)


def layer(path: Path, *, axes: tuple[str | int, ...] = ("batch", "length"), outputs: tuple[str, ...] = ("z",)) -> Path:
    """x [batch, length, 16] → z = relu(x·W); with "count" also a scalar-like output [1]."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [helper.make_node("MatMul", ["x", "W"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    infos = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [*axes, WIDTH])]
    if "count" in outputs:
        nodes.append(helper.make_node("Size", ["x"], ["count"]))
        infos.append(helper.make_tensor_value_info("count", TensorProto.INT64, []))
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*axes, WIDTH])],
        infos,
        [numpy_helper.from_array(weights(), "W")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def quantized_layer(path: Path, plain: Path) -> Path:
    """The same layer with int8 weights and activations (QDQ)."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Calibration(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._rows: Iterator[dict[str, Any]] = iter([layer_feeds(seed=seed) for seed in range(4)])

        def get_next(self) -> dict[str, Any] | None:
            return next(self._rows, None)

    quantize_static(str(plain), str(path), Calibration(), quant_format=QuantFormat.QDQ)
    return path
