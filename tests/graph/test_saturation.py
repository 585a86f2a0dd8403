"""Pair sums of 16 bits: the reference kernel, the proof from weights, and the pass that makes weights portable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.graph.graphs import model, node, pair, random, rewritten, run
from tests.graph.pair_sums import exact_product, pair_sum_product, share_saturated

from vengine.graph.passes import portable_weights
from vengine.graph.passes.portable_weights import could_saturate
from vengine.graph.quantize import COULD_SATURATE, MODEL_FILE, quantize_static
from vengine.graph.saturation import reach


@pytest.mark.parametrize(
    ("activations", "weights", "exact", "saturated"),
    [
        ([255, 255], [127, 127], 64770, 32767),
        ([255, 255], [-128, -128], -65280, -32768),
        ([255, 255], [127, -127], 0, 0),
        ([255, 1], [127, 127], 32512, 32512),
        ([255, 255, 255, 255], [127, 127, -127, -127], 0, -1),  # two pairs that saturate, one each way
        ([255, 0, 255], [127, 127, 127], 64770, 64770),  # an odd one is left over; no pair overflows
        ([255, 255], [64, 64], 32640, 32640),
    ],
)
def test_the_reference_kernel(activations: list[int], weights: list[int], exact: int, saturated: int) -> None:
    a, w = np.array([activations], np.uint8), np.array([weights], np.int8)
    assert exact_product(a, w)[0, 0] == exact
    assert pair_sum_product(a, w)[0, 0] == saturated
    assert share_saturated(a, w) == float(exact != saturated)


@pytest.mark.parametrize(
    ("weights", "safe"),
    [
        ([64, 64], True),
        ([65, 64], False),
        ([127, 1], True),
        ([127, 2], False),
        ([127, -128], True),
        ([-64, -64], True),
        ([-65, -64], False),
        ([100, 0, 100, 0], True),
        ([0, 100, 100, 0], True),
        ([127], True),
    ],
)
def test_reach_is_a_proof(weights: list[int], safe: bool) -> None:
    """What it calls safe, the worst activations can't saturate; what it doesn't, they do."""
    w = np.array([weights], np.int8)
    assert bool(reach(w)[0] <= 1) is safe
    worst = [np.where(w > 0, 255, 0).astype(np.uint8), np.where(w < 0, 255, 0).astype(np.uint8)]
    assert any((pair_sum_product(a, w) != exact_product(a, w)).any() for a in worst) is not safe


SMALL = (np.random.default_rng(0).integers(-60, 60, [6, 4])).astype(np.int8)
LARGE = SMALL.copy()
LARGE[:2, 1] = 127  # neighbours along the sum, in one channel
OFFSET = SMALL.copy()
OFFSET[:4, 1] = 0, 127, 127, 0  # neighbours that belong to two pairs
ACROSS = SMALL.copy()
ACROSS[0, 1:3] = 127  # neighbours in two channels


def product(weights: np.ndarray, op: str = "MatMul", zero: int = 0, float_input: bool = False) -> Any:
    data = [] if float_input else pair("x", "d")
    read = node("DequantizeLinear", ["wq", "ws", "wz"], "w", axis=1)
    nodes = [*data, read, node(op, ["x" if float_input else "d", "w"], "y")]
    zeros = np.full(weights.shape[1], zero, np.int8)
    constants = {"wq": weights, "ws": np.full(weights.shape[1], 0.01, np.float32), "wz": zeros}
    scale = {"s": np.float32(0.05), "z": np.uint8(128)}
    return model(nodes, {"x": ("float32", ["n", 6])}, ["y"], **constants, **scale)


@pytest.mark.parametrize(
    ("proto", "unsafe", "shrunk", "refused"),
    [
        (product(LARGE), 1, 1, 0),
        (product(SMALL), 0, 0, 0),
        (product(OFFSET), 0, 0, 0),
        (product(ACROSS), 0, 0, 0),
        (product(LARGE, float_input=True), 0, 0, 0),
        (product(LARGE, op="Gemm"), 1, 1, 0),
        (product(LARGE, zero=3), 1, 0, 1),
    ],
    ids=["a pair", "small weights", "not a pair", "two channels", "meets a float", "Gemm", "zero point"],
)
def test_only_what_could_saturate_is_shrunk(proto: Any, unsafe: int, shrunk: int, refused: int) -> None:
    assert len(could_saturate(ir.from_proto(proto))) == unsafe
    result, made = rewritten(portable_weights, proto)
    assert (result.matched, len(result.refusals)) == (shrunk, refused)
    assert len(could_saturate(ir.from_proto(made))) == refused
    x = random([5, 6], 3)
    want, got = run(proto, {"x": x})["y"], run(made, {"x": x})["y"]
    same = [channel for channel in range(4) if not shrunk or channel != 1]
    np.testing.assert_array_equal(got[:, same], want[:, same])  # the other channels keep all their bits
    assert np.abs(got - want).max() < 0.05 * np.abs(want).max()


ISA_PROBE = """
import sys, numpy as np, openvino as ov
core, x = ov.Core(), np.load(sys.argv[1])
for path in sys.argv[2:]:
    found = core.compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})({"x": x})[0]
    np.save(path + ".npy", found)
"""


def test_the_kernels_of_a_cpu_without_vnni_saturate_as_simulated_and_not_when_portable(tmp_path: Path) -> None:
    """OpenVINO with the instruction set limited to AVX2, which adds pairs in 16 bits."""
    rng = np.random.default_rng(0)
    width = 64
    weights = rng.uniform(0.9, 1.0, (width, width)).astype(np.float32)  # all large: pairs overflow
    proto = model(
        [node("MatMul", ["x", "w"], "a"), node("Relu", ["a"], "b"), node("MatMul", ["b", "v"], "y")],
        {"x": ("float32", ["n", width])},
        ["y"],
        w=weights,
        v=weights / width,
    )
    onnx.save(proto, tmp_path / MODEL_FILE)
    x = rng.uniform(0.8, 1.0, (16, width)).astype(np.float32)
    paths = []
    for name in ("plain", "portable"):
        told = quantize_static(
            tmp_path / MODEL_FILE, tmp_path / name, [{"x": x}], transformer=False, portable=name == "portable"
        )
        assert (told[-1].name, told[-1].matched) == (COULD_SATURATE, 2 if name == "plain" else 0)
        paths.append(str(tmp_path / name / MODEL_FILE))
    np.save(tmp_path / "x.npy", x)
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", ISA_PROBE, str(tmp_path / "x.npy"), *paths], env=env, check=True)
    want = run(proto, {"x": x})["y"]
    plain, portable = (np.abs(np.load(f"{path}.npy") - want).max() / np.abs(want).max() for path in paths)
    assert plain > 0.2
    assert portable < 0.05
