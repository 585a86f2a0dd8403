"""Keeps the chatter of libraries off the user's terminal while a model is read or exported."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any, TextIO

_TALKATIVE = ("transformers", "torch", "torch.onnx", "huggingface_hub", "onnxscript", "onnx_ir")


class _MutedThread:
    """A stream that drops what one thread writes and passes on the rest: live progress keeps running."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._thread = threading.get_ident()

    def write(self, text: str) -> int:
        return len(text) if threading.get_ident() == self._thread else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Drop what torch, transformers and onnx print, warn and log in this thread."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    out: Any = _MutedThread(sys.stdout)
    err: Any = _MutedThread(sys.stderr)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
