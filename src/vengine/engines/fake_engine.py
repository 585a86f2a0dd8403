"""A toy model with faults on request, so that crashes, hangs and wrong answers can be tested.

It opens a JSON file. Ids become vectors by a fixed formula and are averaged over the mask, so the
honest toy is deterministic and indifferent to padding and neighbours.

    {"inputs": [TensorSpec…], "outputs": [TensorSpec…],    # default: input_ids, attention_mask → embedding
     "delay_ms": 0, "delay_us_per_token": 0,               # time of a call
     "crowded_ms": 0,                                      # more, while another toy is open in the process
     "scale": 1, "noise": 0, "neighbours": 0,              # wrong answers: ×scale, +noise by length, +batch mean
     "places": 0, "left": 0, "repeats": 0,                 # + by place in the batch, if padded left, by call
     "threads": 0,                                         # + by the number of threads
     "drift_after": N, "poisoned": true,                   # wrong from call N + 1 on; NaN beside a fully masked row
     "crash_on": N | "open", "crash_with": "SIGSEGV" | 3,  # the N-th call (from 1), or loading; signal or exit code
     "hang_on": N | "open", "raise_on": N | "open", "nan_on": N,
     "print_on": N | "open",                               # chatter on standard output, below Python too
     "allocate_mb": 0,                                     # kept from the first call on
     "leak_bytes": 0, "leak_below_bytes": 0,               # kept at each call, by Python, and below it
     "keep_bytes_per_shape": 0,                            # kept below Python at the first call of each shape
     "slower_us_per_call": 0,                              # each call takes longer than the one before
     "precision_run": "fp32",                              # what it claims to have run
     "nodes": [{"name": …, "kind": …, "share": …, "ms": …}],  # what it says when it is watched; default: one product
     "precisions": {"int8-static": {any of the above}}}    # overrides for one precision
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vengine.digests import from_json
from vengine.engines.base import Array, Availability, Feeds, Outputs, Session, arrange, require_file, size_of
from vengine.engines.recording import Node, Recording, end_to_end
from vengine.errors import EngineError
from vengine.types import RuntimeProfile, Task, TensorSpec

_FREE = ["batch", "length"]
_INPUTS = [
    {"name": "input_ids", "dtype": "int64", "shape": _FREE},
    {"name": "attention_mask", "dtype": "int64", "shape": _FREE},
]
_OUTPUTS = [{"name": "sentence_embedding", "dtype": "float32", "shape": ["batch", 8]}]
_FAULTS = ("crash_on", "crash_with", "hang_on", "raise_on", "nan_on", "print_on", "allocate_mb", "precision_run")
_LEAKS = ("leak_bytes", "leak_below_bytes", "keep_bytes_per_shape")
_TIMES = ("delay_ms", "delay_us_per_token", "crowded_ms", "slower_us_per_call")
_HONEST = ("inputs", "outputs", "scale", "noise", "neighbours", "nodes", "precisions")
_COMPANY = ("places", "left", "repeats", "threads", "drift_after", "poisoned")
_KEYS = frozenset((*_FAULTS, *_LEAKS, *_TIMES, *_HONEST, *_COMPANY))
_MEGABYTE = 1 << 20
_OPEN: weakref.WeakSet[FakeSession] = weakref.WeakSet()


class FakeEngine:
    """Opens the JSON file that the module's docstring shows."""

    name = "fake"

    def availability(self) -> Availability:
        return Availability(ok=True, version="1")

    def open(self, path: Path, precision: str, profile: RuntimeProfile, *, task: Task | None = None) -> Session:
        require_file(self.name, path)
        behaviour: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        behaviour |= behaviour.get("precisions", {}).get(precision, {})
        unknown = set(behaviour) - _KEYS
        if unknown:
            raise EngineError(f"the fake knows no behaviour {sorted(unknown)[0]!r}", where=str(path))
        session = FakeSession(behaviour, precision, profile.threads)
        session.misbehave("open")
        return session


class FakeSession:
    """The toy itself."""

    def __init__(self, behaviour: Mapping[str, Any], precision: str, threads: int = 1) -> None:
        self._behaviour, self._threads = behaviour, threads
        self._calls = 0
        self._kept: list[bytearray] = []
        self._lost = _BelowPython()
        self._shapes: set[tuple[int, int]] = set()
        self.inputs = tuple(from_json(TensorSpec, spec) for spec in behaviour.get("inputs", _INPUTS))
        self.outputs = tuple(from_json(TensorSpec, spec) for spec in behaviour.get("outputs", _OUTPUTS))
        self.precision_run = str(behaviour.get("precision_run", precision))
        _OPEN.add(self)

    def run(self, feeds: Feeds) -> Outputs:
        arrays = arrange(self.inputs, feeds)
        self._calls += 1
        self.misbehave(self._calls)
        self._allocate()
        self._leak(size_of(self.inputs, feeds))
        per_token = self._behaviour.get("delay_us_per_token", 0) * size_of(self.inputs, feeds)[1] / 1000
        crowded = self._behaviour.get("crowded_ms", 0) if len(_OPEN) > 1 else 0
        slower = self._behaviour.get("slower_us_per_call", 0) * self._calls / 1000
        _busy_wait(self._behaviour.get("delay_ms", 0) + per_token + crowded + slower)
        return {spec.name: self._answer(spec, arrays) for spec in self.outputs}

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        return [self.run(feeds) for feeds in many]

    def record(self, many: Sequence[Feeds]) -> list[Recording]:
        return [self._recording(feeds) for feeds in many]

    def _recording(self, feeds: Feeds) -> Recording:
        started = time.perf_counter()
        self.run(feeds)
        wall = (time.perf_counter() - started) * 1000
        toy = {"name": "toy", "kind": "MatMul", "share": "products", "ms": wall}
        told = self._behaviour.get("nodes", [toy])
        nodes = [from_json(Node, {"start_ms": 0.0, "span_ms": 0.0} | node) for node in told]
        return Recording(wall_ms=wall, nodes=end_to_end(nodes), timeline=False)

    def close(self) -> None:
        self._kept.clear()
        _OPEN.discard(self)

    def misbehave(self, moment: int | str) -> None:
        """Do what the behaviour asks for at "open" or at the N-th call."""
        wanted = {name for name in ("print", "raise", "hang", "crash") if self._behaviour.get(f"{name}_on") == moment}
        if "print" in wanted:
            print("chatter from Python", flush=True)
            os.write(1, b"chatter from below Python\n" * 8)
        if "raise" in wanted:
            raise EngineError(f"the fake refuses, as it was told to (at {moment})")
        if "hang" in wanted:
            time.sleep(3600)
        if "crash" in wanted:
            _crash(self._behaviour.get("crash_with", "SIGSEGV"))

    def _allocate(self) -> None:
        while len(self._kept) < self._behaviour.get("allocate_mb", 0):
            self._kept.append(bytearray(os.urandom(4096) * (_MEGABYTE // 4096)))

    def _leak(self, shape: tuple[int, int]) -> None:
        if count := self._behaviour.get("leak_bytes", 0):
            self._kept.append(bytearray(count))
        if count := self._behaviour.get("leak_below_bytes", 0):
            self._lost.take(count)
        if (count := self._behaviour.get("keep_bytes_per_shape", 0)) and shape not in self._shapes:
            self._shapes.add(shape)
            self._lost.take(count)

    def _answer(self, spec: TensorSpec, arrays: Sequence[Array]) -> Array:
        tokens, mask = _tokens_and_mask(self.inputs, arrays)
        width = [size for size in spec.shape if isinstance(size, int)]
        vectors = _vectors(tokens, width[-1] if width else 1)  # [batch, length, width]
        if "length" not in spec.shape:
            vectors = (vectors * mask[..., None]).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)[:, None]
        vectors = vectors * self._behaviour.get("scale", 1)
        vectors = vectors + self._behaviour.get("noise", 0) * np.cos(np.arange(vectors.shape[-1]) + tokens.shape[1])
        vectors = vectors + self._behaviour.get("neighbours", 0) * vectors.mean(axis=0, keepdims=True)
        vectors = vectors + self._company(mask, vectors.ndim)
        if self._behaviour.get("nan_on") == self._calls:
            vectors[0] = np.nan
        return np.asarray(vectors, dtype=spec.dtype)

    def _company(self, mask: Array, axes: int) -> Array:
        """What is wrong with each row because of where and when it ran, and what beside."""
        wrong = self._behaviour.get("places", 0) * np.arange(len(mask), dtype=np.float64)
        wrong += self._behaviour.get("left", 0) * (mask[:, 0] == 0)
        wrong += self._behaviour.get("repeats", 0) * np.cos(self._calls)
        wrong += self._behaviour.get("threads", 0) * (self._threads - 1)
        wrong += self._calls > self._behaviour.get("drift_after", math.inf)
        if self._behaviour.get("poisoned") and not mask.any(axis=1).all():
            wrong += np.nan
        return np.asarray(wrong.reshape(-1, *([1] * (axes - 1))))


class _BelowPython:
    """Memory that is taken from the kernel and touched, and of which Python knows nothing."""

    _PIECE = 1 << 22

    def __init__(self) -> None:
        self._pieces: list[mmap.mmap] = []
        self._used = self._PIECE

    def take(self, count: int) -> None:
        if self._used + count > self._PIECE:
            self._pieces.append(mmap.mmap(-1, max(count, self._PIECE)))
            self._used = 0
        self._pieces[-1][self._used : self._used + count] = b"x" * count
        self._used += count


def _tokens_and_mask(inputs: Sequence[TensorSpec], arrays: Sequence[Array]) -> tuple[Array, Array]:
    named = {spec.name: array for spec, array in zip(inputs, arrays, strict=True)}
    first = arrays[0].reshape(len(arrays[0]), -1).astype(np.float64)
    mask = named.get("attention_mask", np.ones(first.shape))
    return first, mask.astype(np.float64)


def _vectors(tokens: Array, width: int) -> Array:
    angles = tokens[..., None] * 0.7 + 1.0 + np.arange(width) * (1.0 + tokens[..., None] % 7)
    return np.asarray(np.sin(angles))


def _busy_wait(milliseconds: float) -> None:
    """Burn time as a real engine does; sleeping would leave the core to others."""
    until = time.perf_counter() + milliseconds / 1000
    while time.perf_counter() < until:
        pass


def _crash(how: str | int) -> None:
    if isinstance(how, int):
        os._exit(how)
    os.kill(os.getpid(), signal.Signals[how])
    time.sleep(3600)
