"""A model that bf16 breaks, from the command to the report: refused as it is, sound with a keep-list that was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.test_mixed_precision import large_logits

from vengine.api.optimize import optimize
from vengine.errors import UsageError
from vengine.hardware import has_bf16, machine
from vengine.types import Budget, Sample, Settings, Workload


def workload(count: int) -> Workload:
    draw = np.random.default_rng(0)
    rows = tuple(Sample(tensors={"x": draw.standard_normal((24, 16)).astype(np.float32)}) for _ in range(count))
    return Workload(samples=rows, origin="test")


@pytest.mark.parametrize(
    ("words", "nearest"),
    [({"force_fp32": ("matmul_scoress",)}, "matmul_scores"), ({"op_types_to_quantize": ("Matmul",)}, "MatMul")],
)
def test_an_unknown_word_stops_before_anything_is_tried(words: dict[str, Any], nearest: str, tmp_path: Path) -> None:
    onnx.save(large_logits(), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=f"nearest is '{nearest}'"):
        optimize(
            tmp_path / "model.onnx",
            data=workload(4),
            settings=Settings(**words),
            out=tmp_path / "out.vengine",
            cache=tmp_path / "cache",
        )
    assert not (tmp_path / "out.vengine").exists()


@pytest.mark.slow
@pytest.mark.skipif(not has_bf16(machine().isa), reason="this CPU has no bf16")
def test_refused_bf16_is_tried_again_with_a_keep_list(tmp_path: Path) -> None:
    onnx.save(large_logits(), tmp_path / "model.onnx")
    report = optimize(
        tmp_path / "model.onnx",
        data=workload(60),
        budget=Budget(max_drop=0.001),
        settings=Settings(precision="bf16", time_seconds=20, threads=1),
        out=tmp_path / "out.vengine",
        cache=tmp_path / "cache",
    )
    trials: dict[str, Any] = {t["recipe"]["precision"]: t for t in report["trials"]}
    assert trials["bf16"]["status"] == "refused"
    assert trials["bf16"]["verdict"]["outcome"] != "pass"
    again = trials["mixed-bf16"]
    assert again["verdict"]["outcome"] == "pass"
    assert again["recipe"]["passes"] == ["keep-list-tight"]
    kept = next(p for p in again["variant"]["passes"] if p["name"] == "keep-list")
    assert "matmul_scores" in {node for node, _ in kept["refusals"]}
