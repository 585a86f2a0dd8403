"""How much memory this process holds, and who holds it: the kernel's figure, the C allocator's, Python's.

ONNX Runtime's and OpenVINO's own allocators tell Python nothing on a CPU; both take from the C allocator and from the
kernel, so what they keep shows in the two figures that are read here.
"""

from __future__ import annotations

import ctypes
import gc
import tracemalloc
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PLACES = 8  # lines of code that are told


@dataclass(frozen=True, kw_only=True)
class Memory:
    """One look at a process. None: this system doesn't tell."""

    rss_bytes: int  # resident: anonymous memory and the mapped files' pages
    anonymous_bytes: int  # resident memory that no file on a disk backs: what can leak
    used_bytes: int | None  # handed out by the C allocator, its own mappings included
    free_bytes: int | None  # kept by the C allocator for the next request, not given back to the kernel
    python_bytes: int | None  # allocated by Python and numpy since `watch_python`


@dataclass(frozen=True, kw_only=True)
class Place:
    """A line of Python that holds more than it did."""

    where: str  # "engines/planned.py:120"
    grown_bytes: int
    grown_blocks: int


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2` (2.33 and newer)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def look() -> Memory:
    """Read all figures of this process. Python's garbage is collected first, so that it counts nowhere."""
    gc.collect()
    told = _status()
    rss = told.get("VmRSS", 0)
    anonymous = told["RssAnon"] + told.get("RssShmem", 0) if "RssAnon" in told else rss
    info = _mallinfo()
    return Memory(
        rss_bytes=rss,
        anonymous_bytes=anonymous,
        used_bytes=None if info is None else info.used + info.hblkhd,
        free_bytes=None if info is None else info.free,
        python_bytes=tracemalloc.get_traced_memory()[0] if tracemalloc.is_tracing() else None,
    )


def trim() -> int | None:
    """Let the C allocator give back what it only keeps: resident bytes that went; None without `malloc_trim`."""
    library = _c_library()
    if library is None or not hasattr(library, "malloc_trim"):
        return None
    before = look().rss_bytes
    library.malloc_trim(0)
    return max(0, before - look().rss_bytes)


def watch_python() -> None:
    """Count what Python allocates from here on. What is there already is left out of later collections."""
    gc.collect()
    gc.freeze()
    if not tracemalloc.is_tracing():
        tracemalloc.start(1)


class Ledger:
    """Which lines of Python hold more memory than at a first look."""

    def __init__(self) -> None:
        self._first = _snapshot()

    def grown(self) -> list[Place]:
        """The lines that hold more than they did, the most first."""
        found = _snapshot().compare_to(self._first, "lineno")
        more = sorted((row for row in found if row.size_diff > 0), key=lambda row: -row.size_diff)
        return [
            Place(
                where=_short(row.traceback[0].filename, row.traceback[0].lineno),
                grown_bytes=row.size_diff,
                grown_blocks=row.count_diff,
            )
            for row in more[:_PLACES]
        ]


def _snapshot() -> tracemalloc.Snapshot:
    gc.collect()
    return tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(False, tracemalloc.__file__)])


def _short(file: str, line: int) -> str:
    """A place without the folders that only this machine has."""
    parts = Path(file).parts
    homes = [i for i, part in enumerate(parts) if part in ("vengine", "site-packages", "dist-packages")]
    return f"{'/'.join(parts[homes[-1] + 1 :] if homes else parts[-1:])}:{line}"


def _status() -> dict[str, int]:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    rows = (line.split() for line in text.splitlines() if line.startswith(("VmRSS:", "RssAnon:", "RssShmem:")))
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _mallinfo() -> _MallInfo | None:
    library = _c_library()
    if library is None or not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = _MallInfo
    found = library.mallinfo2()
    assert isinstance(found, _MallInfo)
    return found


@cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except OSError:
        return None
