"""A model that bf16 breaks, from the command to the report: refused as it is, sound with a keep-list that was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.test_mixed_precision import large_logits

from vengine.api.optimize import optimize
from vengine.hardware import has_bf16, machine
from vengine.types import Budget, Sample, Settings, Workload


@pytest.mark.slow
@pytest.mark.skipif(not has_bf16(machine().isa), reason="this CPU has no bf16")
def test_refused_bf16_is_tried_again_with_a_keep_list(tmp_path: Path) -> None:
    onnx.save(large_logits(), tmp_path / "model.onnx")
    draw = np.random.default_rng(0)
    samples = tuple(Sample(tensors={"x": draw.standard_normal((24, 16)).astype(np.float32)}) for _ in range(60))
    report = optimize(
        tmp_path / "model.onnx",
        data=Workload(samples=samples, origin="test"),
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
