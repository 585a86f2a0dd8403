"""Ceilings are measured, in the precision that is claimed, and say so where nothing could measure one."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from tests.engines.making import ONE, fake

from vengine.engines import ceilings
from vengine.engines.process import WorkerSession

pytestmark = pytest.mark.timed


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_SECONDS", 0.02)
    monkeypatch.setattr(ceilings, "_SIDE", 256)


@pytest.mark.usefixtures("brief")
def test_no_run_beats_the_ceiling_by_much() -> None:
    found = ceilings.measure(1, copy_bytes=16 << 20)
    assert found.fp32 is not None
    assert found.memory is not None
    assert found.threads == 1
    left = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    started = time.perf_counter()
    left @ left
    once = 2 * 256**3 / (time.perf_counter() - started)
    assert once / 50 < found.fp32.value
    assert 1e8 < found.fp32.value < 1e14
    assert 1e8 < found.memory.value < 1e13


@pytest.mark.usefixtures("brief")
def test_the_best_of_the_ways_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_openvino", lambda *_: ("slow", lambda: time.sleep(0.05)))
    monkeypatch.setattr(ceilings, "_numpy", lambda *_: ("fast", lambda: time.sleep(0.01)))
    found = ceilings.measure(1, copy_bytes=1 << 20)
    assert found.fp32 is not None
    assert found.fp32.by == "fast"
    assert found.fp32.value == pytest.approx(2 * 256**3 / 0.01, rel=0.5)
    assert found.fp32.value <= 2 * 256**3 / 0.01


@pytest.mark.usefixtures("brief")
def test_without_openvino_only_floats_have_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "_openvino", lambda *_: None)
    found = ceilings.measure(1, copy_bytes=1 << 20)
    assert found.fp32 is not None
    assert found.fp32.by == "numpy"
    assert (found.bf16, found.int8) == (None, None)


def test_a_cpu_without_bf16_has_no_ceiling_for_it(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="openvino is not installed")
    with WorkerSession("fake", fake(tmp_path), "fp32", ONE, env={"ONEDNN_MAX_CPU_ISA": "AVX2"}) as worker:
        found = worker.ceilings(1)
    assert found.fp32 is not None
    assert found.bf16 is None
