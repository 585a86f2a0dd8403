"""Killed, interrupted, or started twice: nothing is done again, nothing is half there, nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.sources.making import write_onnx

from vengine.api.verify import verify

pytestmark = pytest.mark.timed

CLI = [sys.executable, "-m", "vengine.cli.main"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_onnx(tmp_path / "small.onnx")
    return tmp_path


def start(place: Path, *more: str, seconds: int = 3) -> subprocess.Popen[bytes]:
    words = ["optimize", "small.onnx", "--out", "small.vengine", "--threads", "1", "--time", f"{seconds}s", "--json"]
    # Without int8: a quantiser's start takes longer than all else here.
    words += ["--precision", "fp32", *more]
    return subprocess.Popen(
        [*CLI, *words],
        cwd=place,
        env=os.environ | {"VENGINE_CACHE": str(place / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes]) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=120)
    last = out.decode().strip().splitlines()[-1:] or ["{}"]
    return process.returncode, json.loads(last[0]), err.decode()


def journal(place: Path) -> list[dict[str, Any]]:
    found = list((place / "cache" / "work").glob("*/journal.jsonl"))
    lines = found[0].read_bytes().splitlines(keepends=True) if found else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def wait_for_rows(place: Path, process: subprocess.Popen[bytes], count: int = 1) -> None:
    deadline = time.monotonic() + 60
    while len(journal(place)) < count:
        assert time.monotonic() < deadline, "no trial was finished"
        assert process.poll() is None, finish(process)
        time.sleep(0.02)


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    return not psutil.wait_procs(processes, timeout=10)[1]


@pytest.fixture
def killed(place: Path) -> Path:
    """A run that was ended by SIGKILL behind its first trial."""
    process = start(place)
    wait_for_rows(place, process)
    children = workers_of(process)
    process.kill()
    process.communicate()
    assert children
    assert all_gone(children), "workers outlive a killed run"
    return place


def test_a_killed_run_goes_on_where_it_was(killed: Path) -> None:
    before = journal(killed)
    assert not (killed / "small.vengine").exists()
    code, _, err = finish(start(killed))
    assert code in (0, 3), err
    report = json.loads((killed / "small.vengine" / "report.json").read_text())
    after = journal(killed)
    assert after[: len(before)] == before
    recipes = [json.dumps(row["recipe"]) for row in after]
    assert len(recipes) == len(set(recipes)), "a trial was repeated"
    tried = {json.dumps(t["recipe"], sort_keys=True): t for t in report["trials"]}
    first = tried[json.dumps(before[0]["recipe"], sort_keys=True)]
    assert first["seconds"] == before[0]["seconds"], "the first trial's row is the one of the killed run"
    assert verify(killed / "small.vengine")["ok"]


@pytest.mark.slow
def test_fresh_starts_anew(killed: Path) -> None:
    before = journal(killed)
    finish(start(killed, "--fresh"))
    assert journal(killed)[0] != before[0], "measured again, to the last digit of its times"


def test_two_runs_of_one_question_do_not_meet(place: Path) -> None:
    first = start(place, seconds=20)
    wait_for_rows(place, first)
    code, report, err = finish(start(place))
    assert (code, report["exit_code"]) == (2, 2)
    assert "another run is at work on the same question" in err
    assert "next step: " in err
    assert finish(first)[0] in (0, 3), "the first one is not disturbed"


def test_ctrl_c_leaves_no_half_bundle_no_worker_and_the_old_bundle(place: Path) -> None:
    assert finish(start(place, seconds=3))[0] in (0, 3)
    old = (place / "small.vengine" / "manifest.json").read_bytes()
    process = start(place, "--seed", "1", seconds=60)
    deadline = time.monotonic() + 60
    while len(workers_of(process)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    children = workers_of(process)
    process.send_signal(signal.SIGINT)
    code, report, err = finish(process)
    assert (code, report["exit_code"]) == (130, 130)
    assert "Traceback" not in err
    assert all_gone(children)
    assert (place / "small.vengine" / "manifest.json").read_bytes() == old
    assert verify(place / "small.vengine")["ok"]
    assert sorted(p.name for p in place.iterdir()) == ["cache", "small.onnx", "small.vengine"]


def test_a_promise_that_failed_is_exit_code_3_with_the_original_on_disk(place: Path) -> None:
    code, report, err = finish(start(place, "--engines", "torch"))
    assert (code, report["met"]) == (3, False), err
    assert [v["precision"] for v in report["variants"]] == ["reference"]
    assert verify(place / "small.vengine")["ok"]
