"""Processes that Vengine starts end with it, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytestmark = pytest.mark.timed

# A parent that starts one child and waits for it; the child would sleep for an hour.
SLEEPER = (
    "import os, sys, time; from vengine.lifetime import die_with; {first}; print('up', flush=True); time.sleep(3600)"
)
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, *{words!r}, str(os.getpid())])
print(child.pid, flush=True)
child.wait()
"""


def ends(pid: int, seconds: float = 10.0) -> bool:
    """Whether the process is gone, or only a zombie, within some seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@contextmanager
def started(words: list[str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The parent, and its child's process id; neither is left behind."""
    code = PARENT.format(words=words)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            yield parent, child
        finally:
            parent.kill()
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
@pytest.mark.parametrize(
    ("first", "dies"),
    [("die_with(int(sys.argv[1]))", True), ("pass", False)],
    ids=["with its parent", "must not: alone"],
)
def test_a_child_ends_when_its_parent_is_killed(first: str, dies: bool) -> None:
    with started(["-c", SLEEPER.format(first=first)]) as (parent, child):
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        parent.kill()
        assert ends(child, 10.0 if dies else 0.5) is dies


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
def test_a_builder_ends_with_the_search_that_started_it(tmp_path: Path) -> None:
    """It would go on writing where the run that resumes builds the same artefact."""
    job = tmp_path / "job.json"
    os.mkfifo(job)  # reading it waits for ever
    with started(["-P", "-m", "vengine.graph.builder", str(job)]) as (parent, child):
        assert not ends(child, 1.5), "it waits for its job"
        parent.kill()
        assert ends(child)


def test_a_child_whose_parent_is_gone_already_does_not_start() -> None:
    code = "from vengine.lifetime import die_with; die_with(1 << 22); print('still here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
