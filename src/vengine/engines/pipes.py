"""The three pipes to a worker, carried along in turns so that no side can block the other.

A big array fills a pipe long before its reader is ready. Whoever writes it in one go, while the other
side does the same, waits for ever; here every turn moves what can be moved, in any direction.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import subprocess
from collections import deque
from typing import Any

from vengine.engines import wire
from vengine.engines.base import Outputs

TAIL_BYTES = 8192
_PIPE_BYTES = 1 << 20


class Pipes:
    """The three pipes to a worker, never blocking."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._files = (process.stdin, process.stdout, process.stderr)
        self._stdin, self._stdout, self._stderr = (file.fileno() for file in self._files)
        for descriptor in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(descriptor, False)
        for descriptor in (self._stdin, self._stdout):
            with contextlib.suppress(OSError, AttributeError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._poll.register(self._stderr, select.POLLIN)
        self._outgoing: deque[memoryview] = deque()
        self._inbox = wire.Inbox()
        self.ended = False
        self.moved = False  # whether the last turn carried bytes of a frame

    def send(self, frame: list[memoryview]) -> None:
        self._outgoing.extend(frame)
        self._write()
        if self._outgoing:
            self._poll.register(self._stdin, select.POLLOUT)

    def turn(self, seconds: float, chatter: deque[bytes]) -> tuple[dict[str, Any], list[Outputs]] | None:
        """Wait a moment for any pipe; carry what can be carried; the answer if it is whole."""
        self.moved = False
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor == self._stdin:
                self._write()
            elif descriptor == self._stderr:
                self._listen(chatter)
            elif self._read():
                answer = self._inbox.message()
                self._inbox = wire.Inbox()
                return answer
        return None

    def _write(self) -> None:
        while self._outgoing:
            try:
                count = os.write(self._stdin, self._outgoing[0])
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._outgoing.clear()  # it died: reading says so
                break
            self.moved = True
            self._outgoing[0] = self._outgoing[0][count:]
            if not self._outgoing[0]:
                self._outgoing.popleft()
        with contextlib.suppress(KeyError):
            self._poll.unregister(self._stdin)

    def _read(self) -> bool:
        while True:
            try:
                count = os.readv(self._stdout, [self._inbox.target])
            except BlockingIOError:
                return False
            if count == 0:
                self.ended = True
                return False
            self.moved = True
            if self._inbox.advance(count):
                return True

    def _listen(self, chatter: deque[bytes]) -> None:
        try:
            printed = os.read(self._stderr, 1 << 16)
        except BlockingIOError:
            return
        if printed:
            chatter.append(printed[-TAIL_BYTES:])
        else:
            self._poll.unregister(self._stderr)

    def drain(self, chatter: deque[bytes]) -> None:
        """What a dead worker left on its standard error."""
        with contextlib.suppress(OSError):
            while printed := os.read(self._stderr, 1 << 16):
                chatter.append(printed[-TAIL_BYTES:])

    def close(self) -> None:
        for file in self._files:
            with contextlib.suppress(OSError):
                file.close()
