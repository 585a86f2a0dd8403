"""Bundles of real, tiny ONNX models: external data, two engines, and a CPU with less than this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.bundle.making import parts

from vengine.api.run import run
from vengine.api.verify import verify
from vengine.bundle.golden import Golden
from vengine.bundle.read import Bundle, open_bundle
from vengine.bundle.write import prepare, write_bundle
from vengine.digests import digest_json
from vengine.engines.base import get_engine
from vengine.hardware import has_bf16, machine
from vengine.types import Plan, PlanEntry, Recipe, RuntimeProfile, TensorSpec, Variant

onnx = pytest.importorskip("onnx", reason="onnx is needed to make a tiny model; pip install 'vengine[optimize]'")

WIDTH = 64
INPUTS = (TensorSpec(name="x", dtype="float32", shape=("batch", WIDTH)),)
OUTPUTS = (TensorSpec(name="y", dtype="float32", shape=("batch", WIDTH)),)
FEEDS = {"x": np.random.default_rng(3).normal(size=(4, WIDTH)).astype(np.float32)}


def model(folder: Path) -> Path:
    """y = tanh(x · W), with W in a file beside the model."""
    weights = np.random.default_rng(4).normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["h"]), onnx.helper.make_node("Tanh", ["h"], ["y"])],
        "tiny",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", WIDTH])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", WIDTH])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    folder.mkdir(parents=True)
    path = folder / "model.onnx"
    onnx.save_model(
        made,
        str(path),
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=0,
        convert_attribute=False,
    )
    return path


def tiny(folder: Path, engines: tuple[tuple[str, str, tuple[str, ...]], ...]) -> Bundle:
    """A bundle of one ONNX model for several (engine, precision, required flags); the last one is the fallback."""
    path = model(folder / "model")
    variants, outputs = [], {}
    for engine, precision, isa in engines:
        recipe = Recipe(engine=engine, precision=precision, profile=RuntimeProfile(threads=1))
        digest = digest_json(recipe)
        variants.append(
            Variant(
                recipe=recipe,
                directory=path.parent,
                entry=path.name,
                digest=digest,
                size_bytes=path.stat().st_size,
                required_isa=isa,
            )
        )
        session = get_engine(engine).open(path, precision, recipe.profile)
        outputs[digest] = session.run(FEEDS)
        session.close()
    made = replace(
        parts(folder / "build", task="tensor", inputs=INPUTS, outputs=OUTPUTS),
        variants=tuple(variants),
        plan=Plan(entries=(PlanEntry(variant=variants[0].digest, tokens_min=1),)),
        fallback=variants[-1].digest,
        golden=Golden(inputs=FEEDS, outputs=outputs),
        machine=machine(),
    )
    write_bundle(folder / "tiny.vengine", prepare(made))
    return open_bundle(folder / "tiny.vengine")


def test_a_plain_onnx_runtime_opens_what_is_inside(tmp_path: Path) -> None:
    import onnxruntime

    made = tiny(tmp_path, (("onnxruntime", "fp32", ()),))
    (path,) = made.root.rglob("model.onnx")
    assert (path.parent / "model.onnx.data").stat().st_size == WIDTH * WIDTH * 4
    (y,) = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, FEEDS)
    assert np.allclose(y, run(made, tensors=FEEDS)["outputs"]["y"], atol=1e-6)


def test_one_file_form_runs_the_same(tmp_path: Path) -> None:
    made = tiny(tmp_path, (("onnxruntime", "fp32", ()),))
    packed = open_bundle(made.pack(), cache=tmp_path / "cache")
    assert np.array_equal(run(packed, tensors=FEEDS)["outputs"]["y"], run(made, tensors=FEEDS)["outputs"]["y"])


@pytest.mark.parametrize("level", ["", "AVX2"])
def test_a_smaller_cpu_gets_the_portable_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed; pip install 'vengine[openvino]'")
    if not has_bf16(machine().isa):
        pytest.skip("this CPU computes no bf16, so there is nothing to take away from it")
    flag = next(f for f in ("avx512_bf16", "amx_bf16") if f in machine().isa)
    made = tiny(tmp_path, (("openvino", "bf16", (flag,)), ("onnxruntime", "fp32", ())))
    if level:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", level)
    result = verify(made)
    assert [v["status"] for v in result["variants"]] == ["skipped" if level else "ok", "ok"]
    assert (result["ok"], result["fallen_back"]) == (True, bool(level))
    answer = run(made, tensors=FEEDS)
    assert answer["precision"] == ("fp32" if level else "bf16")
    assert np.abs(answer["outputs"]["y"] - np.tanh(FEEDS["x"] @ _weights(made))).max() < (1e-5 if level else 0.05)


def _weights(made: Bundle) -> np.ndarray:
    (path,) = made.root.rglob("model.onnx.data")
    return np.frombuffer(path.read_bytes(), dtype=np.float32).reshape(WIDTH, WIDTH)


def test_a_flipped_weight_is_damage(tmp_path: Path) -> None:
    made = tiny(tmp_path, (("onnxruntime", "fp32", ()),))
    (path,) = made.root.rglob("model.onnx.data")
    data = bytearray(path.read_bytes())
    data[3] ^= 0x80
    path.write_bytes(data)
    with pytest.raises(Exception, match="not what its digest says"):
        run(made.root, tensors=FEEDS)
