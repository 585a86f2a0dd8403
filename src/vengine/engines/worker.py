"""The child's side of `process.WorkerSession`: open one model, answer frames until the parent is gone.

    python -m vengine.engines.worker PARENT_PID

Frames come in on descriptor 0 and go out on what was descriptor 1; everything that libraries print
lands on descriptor 2. Timing happens here, beside the engine, so pipes cost the measurement nothing.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from vengine.digests import from_json, to_json
from vengine.engines import wire
from vengine.engines.base import Feeds, Opening, Outputs, Session
from vengine.engines.packed import shown
from vengine.errors import VengineError
from vengine.lifetime import die_with
from vengine.types import Plan

_TICK_SECONDS = 1.0

Answer = tuple[dict[str, Any], Sequence[Outputs]]


def main(parent: int) -> None:
    """Serve frames until the parent closes the pipe."""
    die_with(parent)
    # Ctrl-C is the parent's to handle: it ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(file=sys.stderr, all_threads=False)
    _volunteer_for_the_oom_killer()
    reader, writer = _claim_pipes()
    worker = _Worker(lambda message: _send(writer, message, ()))
    while (frame := _receive(reader)) is not None:
        message, calls = worker.answer(*frame)
        _send(writer, message, calls)


class _Worker:
    """One session and what can be asked of it."""

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._session: Session | None = None
        self._does: dict[str, Callable[[dict[str, Any], list[Outputs]], Answer]] = {
            "open": self._open,
            "run": self._run,
            "run_many": self._run_many,
            "time": self._time,
            "record": self._record,
            "ceilings": self._ceilings,
        }

    def answer(self, message: dict[str, Any], calls: list[Outputs]) -> Answer:
        try:
            return self._does[message["do"]](message, calls)
        except VengineError as error:
            told = {"what": error.what, "where": error.where, "next_step": error.next_step}
            return {"error": {"class": type(error).__name__, **told}}, ()
        except MemoryError:
            return {"error": {"class": "MemoryError", "what": "ran out of memory"}}, ()
        except Exception as error:  # whatever an engine throws is a failed trial with its reason
            what = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
            return {"error": {"class": "EngineError", "what": what}}, ()

    def _open(self, message: dict[str, Any], _: list[Outputs]) -> Answer:
        openings = {digest: from_json(Opening, item) for digest, item in message["openings"].items()}
        self._session = open_all(openings, message["plan"])
        session = self._session
        return {
            "inputs": to_json(session.inputs),
            "outputs": to_json(session.outputs),
            "precision_run": session.precision_run,
        }, ()

    def _run(self, _: dict[str, Any], calls: list[Outputs]) -> Answer:
        assert self._session is not None
        return {}, (self._session.run(calls[0]),)

    def _run_many(self, _: dict[str, Any], calls: list[Outputs]) -> Answer:
        assert self._session is not None
        return {}, self._session.run_many(calls)

    def _time(self, message: dict[str, Any], calls: list[Outputs]) -> Answer:
        assert self._session is not None
        assert sum(message["bursts"]) in (0, len(calls))
        once = _in_bursts(self._session, message["bursts"]) if message["bursts"] else _one_by_one(self._session)
        return {"ms": self._passes(once, calls, message["repeats"])}, ()

    def _record(self, message: dict[str, Any], calls: list[Outputs]) -> Answer:
        assert self._session is not None
        return {"recordings": to_json(self._session.record(calls * message["repeats"]))}, ()

    def _ceilings(self, message: dict[str, Any], _: list[Outputs]) -> Answer:
        from vengine.engines.ceilings import measure

        return {"ceilings": to_json(measure(message["threads"]))}, ()

    def _passes(self, once: Callable[[Sequence[Feeds]], Any], calls: list[Outputs], repeats: int) -> list[float]:
        passes, told = [], time.monotonic()
        gc.collect()
        gc.disable()
        try:
            for _ in range(repeats):
                start = time.perf_counter()
                once(calls)
                passes.append((time.perf_counter() - start) * 1000)
                if time.monotonic() - told > _TICK_SECONDS:  # progress, outside of what is timed
                    self._tell({"tick": True})
                    told = time.monotonic()
        finally:
            gc.enable()
        return passes


def _one_by_one(session: Session) -> Callable[[Sequence[Feeds]], None]:
    def run(calls: Sequence[Feeds]) -> None:
        for feeds in calls:
            session.run(feeds)

    return run


def _in_bursts(session: Session, bursts: Sequence[int]) -> Callable[[Sequence[Feeds]], None]:
    ends = list(accumulate(bursts))

    def run(calls: Sequence[Feeds]) -> None:
        for start, end in zip([0, *ends], ends, strict=False):
            session.run_many(calls[start:end])

    return run


def open_all(openings: dict[str, Opening], plan: dict[str, Any] | None) -> Session:
    """Open every model; one that is neither planned nor cut into chunks stays bare."""
    opened = {key: key.open() for key in dict.fromkeys(item.session_key for item in openings.values())}
    sessions = {digest: shown(opened[item.session_key], item.profile) for digest, item in openings.items()}
    profiles = {digest: item.profile for digest, item in openings.items()}
    only = next(iter(openings))
    driven = profiles[only]
    if plan is None and (driven.row_tokens or (driven.chunk_tokens is None and driven.streams == 1)):
        return sessions[only]
    from vengine.engines.planned import PlannedSession
    from vengine.types import PlanEntry

    chosen = from_json(Plan, plan) if plan is not None else Plan(entries=(PlanEntry(variant=only, tokens_min=1),))
    return PlannedSession(chosen, sessions, profiles)


def _volunteer_for_the_oom_killer() -> None:
    """When the machine runs out of memory, a trial is what may be lost, not the user's process."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    except OSError:
        return


def _claim_pipes() -> tuple[int, int]:
    """Keep the pipes to ourselves: libraries get an empty input, and their output goes to stderr."""
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return reader, writer


def _receive(reader: int) -> tuple[dict[str, Any], list[Outputs]] | None:
    inbox = wire.Inbox()
    while True:
        count = os.readv(reader, [inbox.target])
        if count == 0:
            return None
        if inbox.advance(count):
            return inbox.message()


def _send(writer: int, message: dict[str, Any], calls: Sequence[Outputs]) -> None:
    for buffer in wire.encode(message, calls):
        view = buffer
        while view:
            view = view[os.write(writer, view) :]


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except BrokenPipeError:
        os._exit(1)
    # Libraries take their time to shut down, and nothing here has anything to save.
    os._exit(0)
