"""A session in a process of its own: what makes a measurement, and a failure, trustworthy.

A crash, a hang or too much memory ends the worker, never the caller, and becomes a `WorkerError`
that says why. Peak memory is the worker's own. An idle worker can be stopped, so that its spinning
threads steal nothing from the one that is measured.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import vengine.errors
from vengine.digests import from_json, to_json
from vengine.engines import wire
from vengine.engines.base import Feeds, Opening, Outputs
from vengine.engines.ceilings import Ceilings
from vengine.engines.memory import Memory, Place
from vengine.engines.pipes import TAIL_BYTES, Pipes
from vengine.engines.recording import Recording
from vengine.errors import EngineError, VengineError, WorkerError
from vengine.types import Plan, RuntimeProfile, Task, TensorSpec

DEFAULT_TIMEOUT_S = 120.0
_WATCH_SECONDS = 0.05  # how often memory is looked at while a call runs
_TAIL_LINES = 4
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class WorkerSession:
    """A model opened by a worker process; not started twice, not shared between processes.

    Args:
        engine, path, precision, profile, task: as for `Engine.open`. Batches are cut by the profile's
            `chunk_tokens` and `streams` inside the worker, as a bundle would cut them.
        memory_limit_bytes: the worker is ended when its resident memory exceeds this.
        timeout_s: the longest silence that a call may keep, loading included.
        env: more environment variables for the worker, for instance ONEDNN_MAX_CPU_ISA.

    Raises:
        WorkerError: the worker died, hung or used too much memory.
        EngineError: the engine refuses the model.
    """

    def __init__(
        self,
        engine: str,
        path: Path,
        precision: str,
        profile: RuntimeProfile,
        *,
        task: Task | None = None,
        memory_limit_bytes: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
    ) -> None:
        opening = Opening(engine=engine, path=path.absolute(), precision=precision, profile=profile, task=task)
        self._start({engine: opening}, None, memory_limit_bytes, timeout_s, env)

    @classmethod
    def planned(
        cls,
        plan: Plan,
        openings: Mapping[str, Opening],
        *,
        memory_limit_bytes: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """A worker that holds several variants under a plan, as a process that runs a bundle does."""
        session = cls.__new__(cls)
        session._start(dict(openings), plan, memory_limit_bytes, timeout_s, env)
        return session

    def _start(
        self,
        openings: dict[str, Opening],
        plan: Plan | None,
        memory_limit_bytes: int | None,
        timeout_s: float,
        env: Mapping[str, str] | None,
    ) -> None:
        self.name = ", ".join(f"{item.engine} {item.precision}" for item in openings.values())
        self._timeout_s, self._memory_limit = timeout_s, memory_limit_bytes
        self._lock = threading.Lock()
        self._stderr: deque[bytes] = deque(maxlen=64)
        self._dead_because = ""
        self._paused = False
        self._highest = 0
        threads = max(item.profile.threads for item in openings.values())
        self._process = _spawner(os.getpid()).submit(_spawn, threads, dict(env or {})).result()
        self._pipes = Pipes(self._process)
        self._finalizer = weakref.finalize(self, _end, self._process, self._pipes)
        try:
            answer, _ = self._ask({"do": "open", "openings": to_json(openings), "plan": to_json(plan)})
        except BaseException:
            self.close()
            raise
        self._highest = self.peak_rss_bytes
        self.inputs = tuple(from_json(TensorSpec, spec) for spec in answer["inputs"])
        self.outputs = tuple(from_json(TensorSpec, spec) for spec in answer["outputs"])
        self.precision_run = str(answer["precision_run"])

    def run(self, feeds: Feeds) -> Outputs:
        return self._ask({"do": "run"}, [feeds])[1][0]

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        return self._ask({"do": "run_many"}, many)[1]

    def time(self, feeds: Sequence[Feeds], *, repeats: int, bursts: Sequence[int] = ()) -> list[float]:
        """Milliseconds of each of `repeats` passes over all of `feeds`, taken inside the worker.

        Args:
            feeds: the calls of one pass.
            bursts: so many calls arrive together and are handed to `run_many`, one burst after the other; () takes
                one call after the other.
        """
        answer, _ = self._ask({"do": "time", "repeats": repeats, "bursts": list(bursts)}, feeds)
        return [float(ms) for ms in answer["ms"]]

    def record(self, many: Sequence[Feeds], *, repeats: int = 1) -> list[Recording]:
        """As `Session.record`, of `repeats` passes over the calls."""
        answer, _ = self._ask({"do": "record", "repeats": repeats}, many)
        return [from_json(Recording, told) for told in answer["recordings"]]

    def ceilings(self, threads: int) -> Ceilings:
        """What the machine can do at best, measured in the worker while its model does nothing."""
        answer, _ = self._ask({"do": "ceilings", "threads": threads})
        return from_json(Ceilings, answer["ceilings"])

    def watch_python(self) -> list[Place]:
        """Count what Python allocates in the worker from here on; the lines that grew since the last such call."""
        answer, _ = self._ask({"do": "watch"})
        return [from_json(Place, told) for told in answer["grown"]]

    def soak(self, calls: Sequence[Feeds], *, repeats: int = 1) -> tuple[list[float], Memory]:
        """Run the calls one after the other, `repeats` times over: milliseconds of each, and the memory after them."""
        answer, _ = self._ask({"do": "soak", "repeats": repeats}, calls)
        return [float(ms) for ms in answer["ms"]], from_json(Memory, answer["memory"])

    def trim(self) -> int | None:
        """Resident bytes that the C allocator had only kept, and now gives back; None where it can't be asked."""
        answer, _ = self._ask({"do": "trim"})
        return None if answer["given_back"] is None else int(answer["given_back"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self._dead_because

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory the worker held at once since it started or since `reset_peak`.

        The kernel's own mark (VmHWM), so no moment is missed; after the worker's end, the last one seen.
        """
        self._highest = max(self._highest, _status_bytes(self.pid, "VmHWM"))
        return self._highest

    def reset_peak(self) -> bool:
        """Start the peak anew from what is held now; False where the kernel can't."""
        try:
            Path(f"/proc/{self.pid}/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return False
        self._highest = 0
        return True

    def pause(self) -> None:
        """Stop the worker's threads, spinning ones too, until `resume` or the next call."""
        if self.alive and not self._paused:
            self._process.send_signal(signal.SIGSTOP)
            self._paused = True

    def resume(self) -> None:
        if self.alive and self._paused:
            self._process.send_signal(signal.SIGCONT)
            self._paused = False

    def close(self) -> None:
        """End the worker at once: it has nothing to save."""
        self._dead_because = self._dead_because or "it was closed"
        if self._finalizer.alive:
            self._highest = self.peak_rss_bytes
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, message: dict[str, Any], calls: Sequence[Feeds] = ()) -> tuple[dict[str, Any], list[Outputs]]:
        frame = wire.encode(message, calls)
        with self._lock:
            if self._dead_because:
                raise WorkerError(f"the worker of {self.name} is gone: {self._dead_because}")
            self.resume()
            try:
                answer, arrays = self._exchange(frame, message["do"])
            except BaseException as error:
                # Half a frame may be under way (Ctrl-C): this worker can't be talked to any more.
                self._dead_because = str(error) or type(error).__name__
                self.close()
                raise
        if "error" in answer:
            self._raise(answer["error"])
        return answer, arrays

    def _raise(self, told: dict[str, str]) -> None:
        if told["class"] == "MemoryError":
            raise WorkerError(f"the worker of {self.name} ran out of memory")
        kind = getattr(vengine.errors, told["class"], EngineError)
        known = isinstance(kind, type) and issubclass(kind, VengineError)
        raise (kind if known else EngineError)(
            told["what"], where=told.get("where", ""), next_step=told.get("next_step", "")
        )

    def _exchange(self, frame: list[memoryview], what: str) -> tuple[dict[str, Any], list[Outputs]]:
        """Write the frame and read the answer, whichever is possible, so that neither side can block the other."""
        self._pipes.send(frame)
        heard = time.monotonic()
        while True:
            step = _WATCH_SECONDS if self._memory_limit is not None else 0.5
            answer = self._pipes.turn(step, self._stderr)
            self._check_memory()
            if answer is not None and "tick" not in answer[0]:
                return answer
            if answer is not None or self._pipes.moved:
                heard = time.monotonic()
            if self._pipes.ended:
                raise WorkerError(self._obituary(what))
            if time.monotonic() - heard > self._timeout_s:
                raise WorkerError(f"{self.name}: no answer to {what!r} within {self._timeout_s:g} s{self._tail()}")

    def _check_memory(self) -> None:
        if self._memory_limit is None:
            return
        used = _status_bytes(self.pid, "VmHWM")
        self._highest = max(self._highest, used)
        if used > self._memory_limit:
            raise WorkerError(
                f"{self.name}: used {_megabytes(used)} of {_megabytes(self._memory_limit)}",
                next_step="raise the memory limit, or run smaller batches",
            )

    def _obituary(self, what: str) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return f"{self.name}: the worker closed its pipe during {what!r}{self._tail()}"
        self._pipes.drain(self._stderr)
        if code >= 0:
            return f"{self.name}: the worker left with exit code {code} during {what!r}{self._tail()}"
        guess = ", most likely by the kernel because the machine ran out of memory" if code == -signal.SIGKILL else ""
        return f"{self.name}: the worker was ended by {_signal_name(-code)} during {what!r}{guess}{self._tail()}"

    def _tail(self) -> str:
        """The last lines that the worker printed, for the reason."""
        text = b"".join(self._stderr)[-TAIL_BYTES:].decode("utf-8", errors="replace")
        lines = [line.strip()[:200] for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if not line.startswith(("Extension modules:", "Current thread"))]
        return "; it last printed: " + " | ".join(telling[-_TAIL_LINES:]) if telling else ""


@cache
def _spawner(_process_id: int) -> ThreadPoolExecutor:
    """The one thread that starts workers.

    The kernel ties "die with your parent" to the *thread* that forked: a worker started by a thread
    of a pool would die with that thread. This one lives as long as the process (which is the key, so
    that a forked child gets its own).
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="vengine-spawner")


def _spawn(threads: int, extra: dict[str, str]) -> subprocess.Popen[bytes]:
    # Thread counts are read by OpenMP and BLAS when they are loaded, so they must be set before Python starts.
    env = {
        **os.environ,
        **dict.fromkeys(_THREAD_VARIABLES, str(threads)),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),
        **extra,
    }
    return subprocess.Popen(
        # -P: the folder one happens to stand in isn't searched for modules.
        [sys.executable, "-P", "-m", "vengine.engines.worker", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=env,
        process_group=0,  # Ctrl-C in a terminal reaches the parent only, which ends its workers
    )


def _end(process: subprocess.Popen[bytes], pipes: Pipes) -> None:
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    pipes.close()


def _status_bytes(pid: int, field: str) -> int:
    """A memory field of /proc/PID/status in bytes; 0 when the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _megabytes(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
