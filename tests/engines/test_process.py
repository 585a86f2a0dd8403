"""A worker that crashes, hangs or swells is a reason, never the end of the caller; nothing survives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.making import ONE, fake, layer, layer_feeds, text_feeds

from vengine.engines.base import Opening, get_engine
from vengine.engines.process import WorkerSession
from vengine.errors import EngineError, UsageError, VengineError, WorkerError
from vengine.types import Plan, PlanEntry, RuntimeProfile

pytestmark = pytest.mark.timed

MIB = 1 << 20


def open_fake(folder: Path, options: dict[str, Any] | None = None, **behaviour: Any) -> WorkerSession:
    return WorkerSession("fake", fake(folder, **behaviour), "fp32", ONE, **(options or {}))


def test_the_worker_answers_as_the_engine_does(tmp_path: Path) -> None:
    feeds = text_feeds()
    alone = get_engine("fake").open(fake(tmp_path), "fp32", ONE)
    with open_fake(tmp_path) as worker:
        assert (worker.inputs, worker.outputs) == (alone.inputs, alone.outputs)
        assert worker.precision_run == "fp32"
        for name, array in alone.run(feeds).items():
            np.testing.assert_array_equal(worker.run(feeds)[name], array)
        many = worker.run_many([text_feeds(seed=seed) for seed in range(5)])
        for seed, outputs in enumerate(many):
            np.testing.assert_array_equal(
                outputs["sentence_embedding"], alone.run(text_feeds(seed=seed))["sentence_embedding"]
            )


# what, behaviour, options, error, what the message says, and what it must not say
FAULTS = [
    ("segfault in a call", {"crash_on": 1}, {}, WorkerError, "SIGSEGV during 'run'", "memory"),
    ("segfault while loading", {"crash_on": "open"}, {}, WorkerError, "SIGSEGV during 'open'", "memory"),
    ("abort", {"crash_on": 1, "crash_with": "SIGABRT"}, {}, WorkerError, "SIGABRT", "memory"),
    ("killed", {"crash_on": 1, "crash_with": "SIGKILL"}, {}, WorkerError, "SIGKILL.*ran out of memory", "SIGSEGV"),
    ("left quietly", {"crash_on": 1, "crash_with": 3}, {}, WorkerError, "exit code 3", "SIG"),
    ("hang in a call", {"hang_on": 1}, {"timeout_s": 2}, WorkerError, "no answer to 'run' within 2 s", "SIG"),
    ("hang while loading", {"hang_on": "open"}, {"timeout_s": 2}, WorkerError, "no answer to 'open'", "SIG"),
    (
        "too much memory",
        {"allocate_mb": 2000},
        {"memory_limit_bytes": 100 * MIB},
        WorkerError,
        r"used \d+ MiB of 100 MiB",
        "SIG",
    ),
    ("the engine refuses to load", {"raise_on": "open"}, {}, EngineError, "refuses, as it was told to", "worker"),
    ("the engine refuses a call", {"raise_on": 1}, {}, EngineError, "refuses, as it was told to", "worker"),
    ("unknown behaviour", {"dance": True}, {}, EngineError, "no behaviour 'dance'", "worker"),
]


@pytest.mark.parametrize(
    ("behaviour", "options", "kind", "says", "silent"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS]
)
def test_faults_become_reasons(
    tmp_path: Path,
    behaviour: dict[str, Any],
    options: dict[str, Any],
    kind: type[VengineError],
    says: str,
    silent: str,
) -> None:
    with pytest.raises(kind, match=says) as caught:
        open_fake(tmp_path, options, **behaviour).run(text_feeds())
    assert type(caught.value) is kind
    assert silent not in caught.value.what
    assert "Traceback" not in str(caught.value)


def test_the_last_words_are_in_the_reason(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match=r"it last printed: .*chatter from below Python"):
        open_fake(tmp_path, print_on="open", crash_on=1, crash_with=3).run(text_feeds())


def test_a_dead_worker_says_so_at_once_and_keeps_its_reason(tmp_path: Path) -> None:
    worker = open_fake(tmp_path, crash_on=1)
    with pytest.raises(WorkerError, match="SIGSEGV"):
        worker.run(text_feeds())
    assert not worker.alive
    assert worker.peak_rss_bytes > 0
    with pytest.raises(WorkerError, match=r"is gone: .*SIGSEGV"):
        worker.run(text_feeds())
    worker.close()


def test_a_refusal_leaves_the_worker_alive(tmp_path: Path) -> None:
    with open_fake(tmp_path, raise_on=1) as worker:
        with pytest.raises(EngineError):
            worker.run(text_feeds())
        with pytest.raises(UsageError, match="'attention_mask' is missing"):
            worker.run({"input_ids": np.ones((1, 2), dtype=np.int64)})
        assert worker.run(text_feeds())["sentence_embedding"].shape == (2, 8)


def test_libraries_may_print_on_standard_output(tmp_path: Path) -> None:
    with open_fake(tmp_path, print_on=1) as worker:
        assert worker.run(text_feeds())["sentence_embedding"].shape == (2, 8)


def test_arrays_larger_than_any_pipe_pass_in_both_directions(tmp_path: Path) -> None:
    wide = [{"name": "hidden", "dtype": "float32", "shape": ["batch", "length", 64]}]
    feeds = text_feeds(batch=64, length=512)
    with open_fake(tmp_path, {"timeout_s": 60}, outputs=wide) as worker:
        outputs = worker.run_many([feeds, feeds])
    assert sum(answer["hidden"].nbytes for answer in outputs) >= 16 * MIB
    np.testing.assert_array_equal(outputs[0]["hidden"], outputs[1]["hidden"])


def test_a_worker_that_never_reads_does_not_block_its_parent(tmp_path: Path) -> None:
    worker = open_fake(tmp_path, {"timeout_s": 2}, hang_on=1)
    try:
        os.kill(worker.pid, signal.SIGSTOP)  # behind the session's back, so that it doesn't resume it
        start = time.monotonic()
        with pytest.raises(WorkerError, match="no answer"):
            worker.run(text_feeds(batch=512, length=2048))
        assert time.monotonic() - start < 10
    finally:
        worker.close()


def test_time_is_taken_in_the_worker(tmp_path: Path) -> None:
    with open_fake(tmp_path, delay_ms=5) as worker:
        passes = worker.time([text_feeds(), text_feeds()], repeats=4)
        together = worker.time([text_feeds(), text_feeds()], repeats=2, bursts=[2])
    assert len(passes) == 4
    assert min(*passes, *together) >= 10


def test_a_long_measurement_with_progress_is_no_hang(tmp_path: Path) -> None:
    with open_fake(tmp_path, {"timeout_s": 3}, delay_ms=450) as worker:
        assert len(worker.time([text_feeds()], repeats=8)) == 8


def test_peak_memory_is_the_workers_own_and_can_be_reset(tmp_path: Path) -> None:
    ballast = np.ones(200 * MIB, dtype=np.uint8)  # the parent's memory must not count
    with open_fake(tmp_path, allocate_mb=60) as worker:
        before = worker.peak_rss_bytes
        assert 5 * MIB < before < 150 * MIB
        worker.run(text_feeds())
        assert worker.peak_rss_bytes >= before + 55 * MIB
        held = worker.peak_rss_bytes
        if worker.reset_peak():
            assert worker.peak_rss_bytes <= held
    assert ballast[0] == 1


def test_within_the_memory_limit_nothing_happens(tmp_path: Path) -> None:
    with open_fake(tmp_path, {"memory_limit_bytes": 500 * MIB}, allocate_mb=20) as worker:
        assert worker.run(text_feeds())["sentence_embedding"].shape == (2, 8)


def test_a_paused_worker_stands_still_and_wakes_for_a_call(tmp_path: Path) -> None:
    with open_fake(tmp_path) as worker:
        worker.run(text_feeds())
        worker.pause()
        wait_for(lambda: state(worker.pid) == "T")
        assert worker.run(text_feeds())["sentence_embedding"].shape == (2, 8)
        worker.pause()
        worker.resume()
        wait_for(lambda: state(worker.pid) != "T")
        worker.pause()
    wait_for(lambda: state(worker.pid) == "")


def test_closing_twice_is_fine_and_leaves_no_process(tmp_path: Path) -> None:
    worker = open_fake(tmp_path)
    pid = worker.pid
    worker.close()
    worker.close()
    assert state(pid) == ""
    with pytest.raises(WorkerError, match="it was closed"):
        worker.run(text_feeds())


def test_a_forgotten_worker_is_ended_with_its_session(tmp_path: Path) -> None:
    worker = open_fake(tmp_path)
    pid = worker.pid
    del worker
    wait_for(lambda: state(pid) == "")


def test_a_worker_outlives_the_thread_that_opened_it(tmp_path: Path) -> None:
    opened: list[WorkerSession] = []
    thread = threading.Thread(target=lambda: opened.append(open_fake(tmp_path)))
    thread.start()
    thread.join()
    time.sleep(0.1)
    with opened[0] as worker:
        assert worker.run(text_feeds())["sentence_embedding"].shape == (2, 8)


PARENT = """
import sys, time
from pathlib import Path
from tests.engines.making import ONE, text_feeds
from vengine.engines.process import WorkerSession
worker = WorkerSession("fake", Path(sys.argv[1]), "fp32", ONE)
print(worker.pid, flush=True)
if sys.argv[2] == "stopped":
    worker.pause()
elif sys.argv[2] == "busy":
    print("busy", flush=True)
    worker.run(text_feeds())
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("doing", "behaviour"), [("idle", {}), ("stopped", {}), ("busy", {"hang_on": 1}), ("busy", {"delay_ms": 600_000})]
)
def test_no_worker_survives_a_parent_that_is_killed(tmp_path: Path, doing: str, behaviour: dict[str, Any]) -> None:
    path = fake(tmp_path, **behaviour)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path)}
    command = [sys.executable, "-c", PARENT, str(path), doing]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.stdout.readline()
        time.sleep(0.2)
        assert state(pid) not in ("", "Z")
        parent.kill()
        parent.wait()
    wait_for(lambda: state(pid) in ("", "Z"))


def test_ctrl_c_ends_the_call_and_the_worker(tmp_path: Path) -> None:
    worker = open_fake(tmp_path, hang_on=1)
    pid = worker.pid
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        worker.run(text_feeds())
    timer.join()
    assert state(pid) == ""


def test_the_worker_gets_its_threads_and_environment(tmp_path: Path) -> None:
    profile = RuntimeProfile(threads=3)
    with WorkerSession("fake", fake(tmp_path), "fp32", profile, env={"ONEDNN_MAX_CPU_ISA": "AVX2"}) as worker:
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes().split(b"\0")
    assert {b"OMP_NUM_THREADS=3", b"MKL_NUM_THREADS=3", b"HF_HUB_OFFLINE=1", b"ONEDNN_MAX_CPU_ISA=AVX2"} <= {
        *environment
    }


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_only_the_engine_that_is_asked_for_is_loaded(tmp_path: Path, engine: str) -> None:
    others = {"torch", "onnxruntime", "openvino"} - {engine}
    with WorkerSession(engine, layer(tmp_path / "m.onnx"), "fp32", ONE) as worker:
        worker.run(layer_feeds())
        mapped = Path(f"/proc/{worker.pid}/maps").read_text()
    assert f"/{engine}/" in mapped
    assert not [name for name in others if f"/site-packages/{name}/" in mapped]


def test_batches_are_cut_inside_the_worker_as_a_bundle_would(tmp_path: Path) -> None:
    profile = RuntimeProfile(threads=1, chunk_tokens=10)
    # Four chunks of two rows: the fourth call of the engine crashes only if there really are four.
    path = fake(tmp_path, crash_on=4, crash_with=7)
    with pytest.raises(WorkerError, match="exit code 7"):
        WorkerSession("fake", path, "fp32", profile).run(text_feeds(batch=8, length=5))
    with WorkerSession("fake", path, "fp32", ONE) as whole:
        assert len(whole.run(text_feeds(batch=8, length=5))["sentence_embedding"]) == 8


def test_a_planned_worker_holds_several_variants(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("small", "large")]
    for folder in folders:
        folder.mkdir()
    small = Opening(engine="fake", path=fake(folders[0]), precision="fp32", profile=ONE)
    large = Opening(engine="fake", path=fake(folders[1], scale=3), precision="bf16", profile=ONE)
    plan = Plan(entries=(PlanEntry(variant="s", tokens_min=1, tokens_max=9), PlanEntry(variant="l", tokens_min=10)))
    with WorkerSession.planned(plan, {"s": small, "l": large}) as worker:
        one, ten = text_feeds(1, 5), text_feeds(2, 5)
        few, many = worker.run_many([one, ten])
        assert worker.precision_run == "fp32, bf16"
    honest = get_engine("fake").open(small.path, "fp32", ONE)
    np.testing.assert_allclose(few["sentence_embedding"], honest.run(one)["sentence_embedding"])
    np.testing.assert_allclose(many["sentence_embedding"], 3 * honest.run(ten)["sentence_embedding"], rtol=1e-6)


def test_variants_that_differ_in_their_chunks_share_a_session(tmp_path: Path) -> None:
    """Two sessions of one model would hold it twice, and their threads would be in each other's way."""
    whole = Opening(engine="fake", path=fake(tmp_path, crash_on=2, crash_with=7), precision="fp32", profile=ONE)
    cut = replace(whole, profile=replace(ONE, chunk_tokens=100))
    plan = Plan(entries=(PlanEntry(variant="cut", tokens_min=10), PlanEntry(variant="whole", tokens_min=1)))
    with WorkerSession.planned(plan, {"whole": whole, "cut": cut}) as worker:
        worker.run(text_feeds(1, 5))
        with pytest.raises(WorkerError, match="exit code 7"):  # its second call, though the other variant's first
            worker.run(text_feeds(2, 5))


def test_a_model_that_is_refused_leaves_no_process(tmp_path: Path) -> None:
    before = children()
    with pytest.raises(EngineError) as caught:  # kept, and with it the traceback and the session
        open_fake(tmp_path, raise_on="open")
    assert children() <= before  # a worker of an earlier test may be gone meanwhile
    assert caught.tb is not None


def test_a_missing_file_and_an_unknown_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="isn't there"):
        WorkerSession("onnxruntime", tmp_path / "none.onnx", "fp32", ONE)
    with pytest.raises(UsageError, match="no engine 'warp'"):
        WorkerSession("warp", tmp_path / "none.onnx", "fp32", ONE)


def children() -> set[str]:
    tasks = Path("/proc/self/task").glob("*/children")
    return {pid for task in tasks for pid in task.read_text().split()}


def state(pid: int) -> str:
    """The process's state letter; "" when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it didn't happen in time"
        time.sleep(0.01)
