"""How much memory does calibration take? `make bench-calibration`; about 4 minutes on 2 quiet cores.

One row of benchmarks/results/depth.json: the peak of the process that makes static int8 of all-MiniLM-L6-v2 out of
2,000 calls of mixed length. What few calls take is printed beside it, because the growth is what would run away.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import _work as work
from _results import Row, publish_part
from vengine.cache import default_cache
from vengine.digests import canonical_json
from vengine.graph.builder import Job, write_feeds
from vengine.graph.export import MODEL, export
from vengine.sources import open_source

FEW, MANY = 50, 2000
GOAL_MB = 1000


def main() -> None:
    """Calibrate on few and on many calls, each in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export(open_source(work.MINILM, cache=default_cache() / "sources"), folder / "graph")
        peaks = {count: peak_mb(folder / "graph" / MODEL, folder / str(count), count) for count in (FEW, MANY)}
    what = f"peak memory of calibrating all-MiniLM-L6-v2 on {MANY} texts of mixed length, MB ({FEW}: {peaks[FEW]:.0f})"
    row = Row(what=what, target=f"< {GOAL_MB}", measured=peaks[MANY], met=peaks[MANY] < GOAL_MB)
    publish_part("depth", "calibration", [row])


def peak_mb(model: Path, target: Path, count: int) -> float:
    """The largest resident size, in MB, of the process that builds, as the kernel counts it."""
    target.mkdir()
    lengths = work.mixed_lengths(count)
    write_feeds(target / "calibration.npz", [work.call([n], n) for n in lengths])
    job = Job(kind="int8-static", model=model, target=target, calibration=target / "calibration.npz")
    (target / "job.json").write_bytes(canonical_json(job))
    command = [sys.executable, "-m", "vengine.graph.builder", str(target / "job.json"), str(os.getpid())]
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"the builder left with exit code {process.returncode}")
    return usage.ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
