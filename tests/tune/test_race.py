"""The race on workers of known speed: what the interval must contain, who runs when, and who is to blame."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vengine.engines.process import WorkerSession
from vengine.errors import WorkerError
from vengine.tune.race import Contender, Load, first_look, race
from vengine.types import RuntimeProfile

pytestmark = pytest.mark.timed

WORK = Load(name="workload")
CELL = Load(name="8x4", batch=8, length=4)


def calls(count: int, batch: int = 1, length: int = 4) -> list[dict[str, Any]]:
    ones = np.ones((batch, length), dtype=np.int64)
    return [{"input_ids": ones, "attention_mask": ones}] * count


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def worker(folder: Path, stack: ExitStack, name: str, **behaviour: Any) -> WorkerSession:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(behaviour))
    opened = WorkerSession("fake", path, name, RuntimeProfile(threads=1), timeout_s=2.0)
    stack.callback(opened.close)
    opened.pause()
    return opened


def stopped(session: WorkerSession, seconds: float = 5.0) -> bool:
    """Whether the process is stopped; the signal takes its time to arrive."""
    until = time.monotonic() + seconds
    while (state := Path(f"/proc/{session.pid}/stat").read_text().rsplit(")", 1)[1].split()[0]) != "T":
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return state == "T"


def contender(name: str, session: WorkerSession, **more: Any) -> Contender:
    return Contender(name=name, worker=session, feeds=lambda load: calls(load.batch or 3), **more)


@pytest.mark.parametrize(("slow_ms", "fast_ms"), [(30.0, 10.0), (15.0, 15.0), (10.0, 30.0)])
def test_the_interval_holds_the_true_ratio(slow_ms: float, fast_ms: float, tmp_path: Path, stack: ExitStack) -> None:
    pair = [
        contender("a", worker(tmp_path, stack, "a", delay_ms=slow_ms)),
        contender("b", worker(tmp_path, stack, "b", delay_ms=fast_ms)),
    ]
    ratio = race(pair, (WORK,), rounds=(9, 9), seconds=0, seed=0).ratio(WORK.name, of="b", to="a")
    true = slow_ms / fast_ms
    # A sleep ends late by up to some milliseconds on a busy machine, which draws every ratio towards 1.
    assert ratio.low * 0.8 <= true <= ratio.high * 1.25
    assert ratio.value == pytest.approx(true, rel=0.35)


def test_every_contender_runs_the_same_loads_equally_often_in_changing_order(tmp_path: Path, stack: ExitStack) -> None:
    ran: list[str] = []

    class Watched(WorkerSession):
        def time(self, feeds: Any, *, repeats: int, bursts: Any = ()) -> list[float]:
            ran.append(self.name)
            return super().time(feeds, repeats=repeats, bursts=bursts)

    def watched(name: str) -> Contender:
        path = tmp_path / f"{name}.json"
        path.write_text("{}")
        opened = Watched("fake", path, name, RuntimeProfile(threads=1))
        stack.callback(opened.close)
        return contender(name, opened)

    times = race([watched(n) for n in "abc"], (WORK, CELL), rounds=(6, 6), seconds=60, seed=3)
    assert {len(row) for loads in times.ms.values() for row in loads.values()} == {6}
    turns = [tuple(name.split()[-1] for name in ran[12 + i : 15 + i]) for i in range(0, 36, 3)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns), "a round is each of them once"
    assert len(set(turns)) > 1, "the order is drawn anew"


def test_only_one_worker_is_awake_at_a_time(tmp_path: Path, stack: ExitStack) -> None:
    """Spinning threads of an idle contender would steal the other's cycles."""
    sessions = [worker(tmp_path, stack, name, delay_ms=1) for name in ("a", "b")]
    others_seen: list[str] = []

    def look(load: Load) -> list[int]:
        stats = [Path(f"/proc/{s.pid}/stat").read_text() for s in sessions]
        others_seen.append("".join(stat.rsplit(")", 1)[1].split()[0] for stat in stats))
        return []

    race([contender(s.name, s, bursts=look) for s in sessions], (WORK,), rounds=(3, 3), seconds=0, seed=0)
    assert all("T" in states for states in others_seen), "T: stopped"
    assert len(others_seen) == 10


@pytest.mark.parametrize("fault", [{"crash_on": 12}, {"hang_on": 12}, {"raise_on": 12}], ids=lambda f: next(iter(f)))
def test_a_contender_that_dies_is_named(fault: dict[str, int], tmp_path: Path, stack: ExitStack) -> None:
    from vengine.errors import EngineError

    pair = [
        contender("good", worker(tmp_path, stack, "good", delay_ms=1)),
        contender("bad", worker(tmp_path, stack, "bad", delay_ms=1, **fault)),
    ]
    with pytest.raises(EngineError) as caught:
        race(pair, (WORK,), rounds=(9, 9), seconds=0, seed=0)
    assert caught.value.where == "bad"
    assert isinstance(caught.value, WorkerError) is ("raise_on" not in fault)
    assert pair[0].worker.run(calls(1)[0]), "the other one lives on"


@pytest.mark.parametrize(
    ("rounds", "seconds", "done"), [((3, 9), 0.0, 3), ((3, 4), 60.0, 4)], ids=["the least, out of time", "the most"]
)
def test_rounds_end_with_the_time_or_the_most(
    rounds: tuple[int, int], seconds: float, done: int, tmp_path: Path, stack: ExitStack
) -> None:
    only = contender("a", worker(tmp_path, stack, "a"))
    told: list[dict[str, object]] = []
    times = race([only], (WORK,), rounds=rounds, seconds=seconds, seed=0, tell=told.append)
    assert (len(times.ms["a"][WORK.name]), len(told)) == (done, done)


def test_out_of_time_the_mix_gets_all_its_rounds_and_a_cell_three(tmp_path: Path, stack: ExitStack) -> None:
    pair = [contender(name, worker(tmp_path, stack, name)) for name in "ab"]
    times = race(pair, (WORK, CELL), rounds=(5, 9), seconds=0, seed=0)
    assert {name: {load: len(ms) for load, ms in row.items()} for name, row in times.ms.items()} == {
        name: {WORK.name: 5, CELL.name: 3} for name in "ab"
    }


@pytest.mark.parametrize(("delay_ms", "passes"), [(2.0, 3), (110.0, 1)], ids=["short passes", "long passes"])
def test_a_first_look_counts_three_passes_or_one_long_one(
    delay_ms: float, passes: int, tmp_path: Path, stack: ExitStack
) -> None:
    only = Contender(name="a", worker=worker(tmp_path, stack, "a", delay_ms=delay_ms), feeds=lambda _: calls(1))
    [cell] = first_look(only, (CELL,))
    assert (cell.batch, cell.length, cell.calls) == (8, 4, passes)
    assert delay_ms <= cell.ms.low <= cell.ms.value <= cell.ms.high
    assert stopped(only.worker), "paused at the end"


def test_bursts_are_handed_over_together(tmp_path: Path, stack: ExitStack) -> None:
    """Two streams run two calls of a burst side by side, and calls that arrive alone one after the other."""
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"crash_on": 5}))
    session = WorkerSession("fake", path, "fp32", RuntimeProfile(threads=1))
    stack.callback(session.close)
    assert len(session.time(calls(4), repeats=1, bursts=[3, 1])) == 1, "each call once"
    with pytest.raises(WorkerError):
        session.time(calls(1), repeats=1)
