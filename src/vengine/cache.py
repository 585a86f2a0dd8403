"""Where downloads, unfinished work and unpacked bundles are kept."""

from __future__ import annotations

import os
from pathlib import Path


def default_cache() -> Path:
    """$VENGINE_CACHE, else `vengine` in the user's cache folder ($XDG_CACHE_HOME or ~/.cache)."""
    if told := os.environ.get("VENGINE_CACHE"):
        return Path(told)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vengine"
