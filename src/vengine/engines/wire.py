"""Frames between a worker and its parent: a JSON head, then the arrays' bytes. No pickles.

    8 bytes   length of the head, little endian
    8 bytes   length of the body, little endian
    head      JSON: the message, and under "arrays" the name, dtype and shape of each array
    body      the arrays' bytes, C order, one after the other

A list of feeds is a list of arrays with a call number each, so one frame carries any number of calls.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vengine.engines.base import Array, Feeds, Outputs
from vengine.errors import UsageError

HEADER = struct.Struct("<QQ")
MAX_HEAD_BYTES = 64 << 20
_KINDS = "biuf"


def encode(message: Mapping[str, Any], calls: Sequence[Feeds] = ()) -> list[memoryview]:
    """The frame as buffers to write one after the other; arrays aren't copied.

    Raises:
        UsageError: an array holds something else than numbers.
    """
    described, bodies = [], []
    for call, arrays in enumerate(calls):
        for name, array in arrays.items():
            if array.dtype.kind not in _KINDS:
                raise UsageError(f"{name!r} holds {array.dtype.name}; only numbers can be sent to an engine")
            contiguous = np.ascontiguousarray(array)
            described.append([call, name, contiguous.dtype.str, list(array.shape)])
            if contiguous.size:
                bodies.append(contiguous.reshape(-1).view(np.uint8).data)
    head = json.dumps({**message, "calls": len(calls), "arrays": described}).encode()
    size = sum(body.nbytes for body in bodies)
    return [memoryview(HEADER.pack(len(head), size) + head), *bodies]


def decode(head: bytes | bytearray, body: bytearray) -> tuple[dict[str, Any], list[Outputs]]:
    """Inverse of `encode`, for the two parts after the lengths. The arrays share `body`'s memory."""
    message: dict[str, Any] = json.loads(head)
    calls: list[dict[str, Array]] = [{} for _ in range(message.pop("calls"))]
    start = 0
    for call, name, dtype, shape in message.pop("arrays"):
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        calls[call][name] = np.frombuffer(body, dtype=kind, count=count, offset=start).reshape(shape)
        start += count * kind.itemsize
    return message, calls


class Inbox:
    """A frame that arrives piece by piece: fill `target`, tell `advance` how much, until it is whole."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._body = bytearray()
        self._stage = 0  # lengths, head, body
        self._wait_for(bytearray(HEADER.size))

    def _wait_for(self, buffer: bytearray) -> None:
        self._buffer, self.target = buffer, memoryview(buffer)

    def advance(self, count: int) -> bool:
        """`count` more bytes of `target` are filled; True when the frame is whole."""
        self.target = self.target[count:]
        while not self.target:
            if self._stage == 2:
                return True
            self._next()
        return False

    def _next(self) -> None:
        if self._stage == 0:
            head, body = HEADER.unpack(self._buffer)
            if head > MAX_HEAD_BYTES:
                raise ValueError(f"a frame of {head} bytes of JSON is no frame of ours")
            self._head, self._body = bytearray(head), bytearray(body)
        self._stage += 1
        self._wait_for(self._head if self._stage == 1 else self._body)

    def message(self) -> tuple[dict[str, Any], list[Outputs]]:
        """The whole frame's message and arrays."""
        return decode(self._head, self._body)
