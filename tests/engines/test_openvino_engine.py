"""OpenVINO: what was asked for is what runs, streams keep order, outputs belong to the caller."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.making import ONE, expected, layer, layer_feeds, quantized_layer

from vengine.engines.base import Session, get_engine
from vengine.engines.process import WorkerSession
from vengine.errors import EngineError, UsageError
from vengine.hardware import has_bf16, machine
from vengine.types import RuntimeProfile, TensorSpec

pytest.importorskip("openvino", reason="openvino is not installed")
needs_bf16 = pytest.mark.skipif(not has_bf16(machine().isa), reason="this CPU has no bf16 instructions")


def open_layer(path: Path, precision: str = "fp32", profile: RuntimeProfile = ONE) -> Session:
    return get_engine("openvino").open(path, precision, profile)


@pytest.mark.parametrize("streams", [1, 2])
def test_the_layer_is_right_and_in_order(tmp_path: Path, streams: int) -> None:
    session = open_layer(layer(tmp_path / "m.onnx"), profile=RuntimeProfile(threads=2, streams=streams))
    assert session.inputs == (TensorSpec(name="x", dtype="float32", shape=("batch", "length", 16)),)
    assert session.outputs == (TensorSpec(name="z", dtype="float32", shape=("batch", "length", 16)),)
    # Sizes differ by far, so that a later call is done before an earlier one.
    many = [layer_feeds(1 + 60 * (seed % 3 == 0), 1 + 30 * (seed % 2), seed) for seed in range(24)]
    for feeds, outputs in zip(many, session.run_many(many), strict=True):
        np.testing.assert_allclose(outputs["z"], expected(feeds), atol=1e-4)
    np.testing.assert_allclose(session.run(many[0])["z"], expected(many[0]), atol=1e-4)
    assert session.run_many([]) == []
    session.close()


@pytest.mark.parametrize("streams", [1, 2])
def test_the_next_call_does_not_overwrite_what_was_returned(tmp_path: Path, streams: int) -> None:
    session = open_layer(layer(tmp_path / "m.onnx"), profile=RuntimeProfile(threads=2, streams=streams))
    many = [layer_feeds(seed=seed) for seed in range(6)]
    first = session.run_many(many)
    kept = [outputs["z"].copy() for outputs in first]
    session.run_many(many[::-1])
    session.run(layer_feeds(seed=99))
    for outputs, copy in zip(first, kept, strict=True):
        np.testing.assert_array_equal(outputs["z"], copy)


# file, precision, whether it may open, what really runs
PRECISIONS = [
    ("plain", "fp32", None, "fp32"),
    ("plain", "reference", None, "fp32"),
    ("int8", "int8-static", None, "int8-static"),
    ("int8", "reference", None, "int8-static"),
    ("plain", "int8-static", "no matrix product runs in int8", ""),
    ("int8", "fp32", "run in int8 although fp32", ""),
    ("plain", "int8-dynamic", "no precision 'int8-dynamic'", ""),
    pytest.param("plain", "bf16", None, "bf16", marks=needs_bf16),
    pytest.param("int8", "int8-static-bf16", None, "int8-static-bf16", marks=needs_bf16),
    pytest.param("int8", "bf16", "although bf16 was asked for", "", marks=needs_bf16),
]


@pytest.mark.parametrize(("file", "precision", "refusal", "ran"), PRECISIONS)
def test_no_other_precision_runs_than_was_asked_for(
    tmp_path: Path, file: str, precision: str, refusal: str | None, ran: str
) -> None:
    path = layer(tmp_path / "plain.onnx")
    if file == "int8":
        path = quantized_layer(tmp_path / "int8.onnx", path)
    if refusal is not None:
        with pytest.raises(EngineError, match=refusal):
            open_layer(path, precision)
        return
    session, feeds = open_layer(path, precision), layer_feeds()
    assert session.precision_run == ran
    error = float(np.abs(session.run(feeds)["z"] - expected(feeds)).max())
    low, high = (0, 1e-4) if ran == "fp32" else (1e-4, 0.6)
    assert low <= error < high


def test_another_cpu_can_be_tried_on_here(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no bf16"):
        WorkerSession("openvino", layer(tmp_path / "m.onnx"), "bf16", ONE, env={"ONEDNN_MAX_CPU_ISA": "AVX2"})


def test_an_ir_is_opened_too(tmp_path: Path) -> None:
    import openvino

    openvino.save_model(openvino.convert_model(layer(tmp_path / "m.onnx")), tmp_path / "m.xml", compress_to_fp16=False)
    session, feeds = open_layer(tmp_path / "m.xml"), layer_feeds()
    assert [spec.name for spec in session.inputs] == ["x"]
    np.testing.assert_allclose(session.run(feeds)["z"], expected(feeds), atol=1e-4)


@pytest.mark.parametrize("streams", [1, 2])
def test_a_bad_call_among_good_ones_is_an_error_and_the_session_lives_on(tmp_path: Path, streams: int) -> None:
    session = open_layer(layer(tmp_path / "m.onnx"), profile=RuntimeProfile(threads=2, streams=streams))
    good = [layer_feeds(seed=seed) for seed in range(5)]
    bad: Any = [*good[:2], {"x": np.ones((1, 2, 5), dtype=np.float32)}, *good[2:]]
    with pytest.raises(UsageError, match="has the shape"):
        session.run_many(bad)
    for feeds, outputs in zip(good, session.run_many(good), strict=True):
        np.testing.assert_allclose(outputs["z"], expected(feeds), atol=1e-4)


@pytest.mark.parametrize("content", [b"not a model", b"", None])
def test_refusals(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineError, match=r"refuses the model|isn't there"):
        open_layer(path)
