"""Starting is quick, and a process that only runs bundles never loads what makes them."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.timed

HEAVY = ("torch", "onnx", "transformers", "nncf", "onnxscript", "onnx_ir", "sklearn", "scipy", "pandas")
ENGINES = ("onnxruntime", "openvino")


def modules_after(statement: str) -> set[str]:
    """Top-level names in `sys.modules` after the statement, in a process of its own."""
    code = f"import sys\n{statement}\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import vengine", (*HEAVY, *ENGINES, "numpy", "rich", "click")),
        ("import vengine.cli.main", (*HEAVY, *ENGINES, "numpy", "rich")),
        ("from vengine import Budget, Settings, Workload, VengineError", (*HEAVY, *ENGINES, "rich")),
        ("import vengine.bundle, vengine.bundle.read", HEAVY),
        ("from vengine import load", HEAVY),
        ("from vengine import optimize", HEAVY),
        ("import vengine.report.terminal", HEAVY),
    ],
)
def test_importing_loads_nothing_heavy(statement: str, absent: tuple[str, ...]) -> None:
    assert modules_after(statement) & set(absent) == set()


def test_this_test_would_notice() -> None:
    assert "json" in modules_after("import json.decoder")
    assert "numpy" in modules_after("import numpy")


def test_help_starts_in_a_blink() -> None:
    """0.4 s is the house's bound; the median of five, so that one hiccup of the machine is no failure."""
    command = [sys.executable, "-m", "vengine.cli.main", "--help"]
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run(command, capture_output=True, check=True, timeout=60, env=dict(os.environ))
        seconds.append(time.perf_counter() - started)
    assert statistics.median(seconds) < 0.4, seconds
