"""ONNX Runtime: right numbers, the profile obeyed, refusals in one sentence."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.making import ONE, expected, layer, layer_feeds, quantized_layer

from vengine.engines.base import Session, get_engine
from vengine.errors import EngineError, UsageError
from vengine.types import RuntimeProfile, TensorSpec

pytestmark = pytest.mark.timed


def open_layer(path: Path, precision: str = "fp32", profile: RuntimeProfile = ONE) -> Session:
    return get_engine("onnxruntime").open(path, precision, profile)


@pytest.mark.parametrize("precision", ["fp32", "reference"])
@pytest.mark.parametrize(
    "profile", [ONE, RuntimeProfile(threads=2, spinning=False, arena=False), RuntimeProfile(threads=2, streams=2)]
)
def test_the_layer_is_right(tmp_path: Path, precision: str, profile: RuntimeProfile) -> None:
    session = open_layer(layer(tmp_path / "m.onnx"), precision, profile)
    assert session.inputs == (TensorSpec(name="x", dtype="float32", shape=("batch", "length", 16)),)
    assert session.precision_run == "fp32"
    many = [layer_feeds(b, length, b) for b, length in ((1, 1), (2, 5), (3, 40))]
    for feeds, outputs in zip(many, session.run_many(many), strict=True):
        np.testing.assert_allclose(outputs["z"], expected(feeds), atol=1e-4)
    session.close()


def test_streams_keep_the_order(tmp_path: Path) -> None:
    session = open_layer(layer(tmp_path / "m.onnx"), profile=RuntimeProfile(threads=2, streams=2))
    many = [layer_feeds(1 + 60 * (seed % 3 == 0), 1 + 30 * (seed % 2), seed) for seed in range(24)]
    for feeds, outputs in zip(many, session.run_many(many), strict=True):
        np.testing.assert_allclose(outputs["z"], expected(feeds), atol=1e-4)
    with pytest.raises(UsageError, match="has the shape"):
        session.run_many([many[0], {"x": np.ones((1, 2, 5), dtype=np.float32)}])
    session.close()


def test_int8_is_opened_as_it_is(tmp_path: Path) -> None:
    path = quantized_layer(tmp_path / "q.onnx", layer(tmp_path / "m.onnx"))
    session, feeds = open_layer(path, "int8-static"), layer_feeds()
    assert session.precision_run == "int8-static"
    error = np.abs(session.run(feeds)["z"] - expected(feeds)).max()
    assert 1e-6 < error < 0.6, "int8 is close, and it is not fp32"


def test_the_next_call_does_not_overwrite_what_was_returned(tmp_path: Path) -> None:
    session = open_layer(layer(tmp_path / "m.onnx"))
    first = session.run(layer_feeds(seed=1))["z"]
    kept = first.copy()
    session.run(layer_feeds(seed=2))
    np.testing.assert_array_equal(first, kept)


def test_fixed_and_unnamed_axes(tmp_path: Path) -> None:
    session = open_layer(layer(tmp_path / "m.onnx", axes=(2, 3)))
    assert session.inputs[0].shape == (2, 3, 16)


@pytest.mark.parametrize(
    ("content", "precision", "match"),
    [
        (b"not a model", "fp32", "refuses the model"),
        (b"", "fp32", "refuses the model"),
        (None, "fp32", "isn't there"),
        ("layer", "bf16", "no precision 'bf16'"),
        ("layer", "int4", "no precision 'int4'"),
        ("truncated", "fp32", "refuses the model"),
    ],
)
def test_refusals(tmp_path: Path, content: Any, precision: str, match: str) -> None:
    path = tmp_path / "m.onnx"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        layer(path)
    if content == "truncated":
        path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(EngineError, match=match):
        open_layer(path, precision)


def test_a_call_that_cannot_run(tmp_path: Path) -> None:
    session = open_layer(layer(tmp_path / "m.onnx"))
    with pytest.raises(UsageError, match="has the shape"):
        session.run({"x": np.ones((1, 2, 5), dtype=np.float32)})
    with pytest.raises(UsageError, match="float64"):
        session.run({"x": np.ones((1, 2, 16))})


def test_after_a_call_the_cores_are_free(tmp_path: Path) -> None:
    """A pool that spins on would take the cores from whoever runs next: another variant, or another program."""
    session = open_layer(layer(tmp_path / "m.onnx"), profile=RuntimeProfile(threads=4))
    used = []
    for _ in range(5):
        session.run(layer_feeds(batch=128, length=512))
        started = time.process_time()
        time.sleep(0.03)
        used.append(time.process_time() - started)
    assert min(used) < 0.01, "three threads that spin would use up to 0.06 s of two cores"
