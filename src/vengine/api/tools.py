"""Other people's profilers: the ready command line, run where the program is installed, else shown to be copied.

What they run is `api.alone`: one process that opens the target and answers a number of calls, with nothing of ours
around it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vengine.errors import EngineMissing

_FOUND_AT = {
    "valgrind": "apt install valgrind",
    "nsys": "it comes with NVIDIA's CUDA toolkit, or alone as Nsight Systems",
    "vtune": "it comes with Intel's oneAPI base toolkit, or alone as VTune Profiler",
}
_CALLS = {"massif": 24, "memcheck": 8, "nsys": 100, "vtune": 200}


@dataclass(frozen=True, kw_only=True)
class ToolLine:
    """A command line, and what it leaves behind."""

    program: str
    words: tuple[str, ...]
    result: str  # the file or folder that it writes
    then: str = ""  # the command that shows it

    def __str__(self) -> str:
        return shlex.join(self.words)


def valgrind_line(target: str, tool: str, *, seed: int = 0, threads: int | None = None) -> ToolLine:
    """`tool`: "massif" draws the C heap over time by who allocated it, "memcheck" lists blocks that nobody holds."""
    result = f"vengine-{tool}.out"
    if tool == "massif":
        how: tuple[str, ...] = (f"--massif-out-file={result}", "--max-snapshots=100", "--detailed-freq=10")
        then = f"ms_print {result}"
    else:
        how = (
            "--leak-check=full",
            "--show-leak-kinds=definite",
            "--errors-for-leak-kinds=none",
            f"--log-file={result}",
        )
        then = f"less {result}"
    # Python's own pools would hide who allocated what.
    words = ("env", "PYTHONMALLOC=malloc", "valgrind", f"--tool={tool}", *how)
    return _line("valgrind", words, tool, result, then, _alone(target, tool, (), seed, threads))


def nsys_line(target: str, shape: tuple[int, int], *, threads: int | None = None) -> ToolLine:
    """Nsight Systems: CUDA calls, kernels and the operating system's waits on one time line."""
    result = "vengine-profile.nsys-rep"
    traced = "--trace=cuda,nvtx,osrt,cublas,cudnn"
    words = ("nsys", "profile", traced, "--force-overwrite=true", f"--output={result}")
    return _line("nsys", words, "nsys", result, f"nsys stats {result}", _alone(target, "nsys", shape, 0, threads))


def vtune_line(target: str, shape: tuple[int, int], *, threads: int | None = None) -> ToolLine:
    """VTune: hot spots down to the instruction."""
    result = "vengine-vtune"
    words = ("vtune", "-collect", "hotspots", "-knob", "sampling-mode=hw", "-result-dir", result, "--")
    then = f"vtune -report hotspots -result-dir {result}"
    return _line("vtune", words, "vtune", result, then, _alone(target, "vtune", shape, 0, threads))


def _line(program: str, words: Sequence[str], tool: str, result: str, then: str, run: Sequence[str]) -> ToolLine:
    return ToolLine(program=program, words=(*words, *run), result=result, then=then)


def _alone(target: str, tool: str, shape: Sequence[int], seed: int, threads: int | None) -> list[str]:
    words = [sys.executable, "-m", "vengine.api.alone", target, f"--calls={_CALLS[tool]}", f"--seed={seed}"]
    words += [f"--shape={'x'.join(map(str, shape))}"] if shape else []
    return words + ([f"--threads={threads}"] if threads else [])


def run_tool(line: ToolLine) -> None:
    """Run it in the foreground; its output is the user's.

    Raises:
        EngineMissing: the program isn't installed; the message has the line to copy.
        EngineError: it ended with a fault.
    """
    from vengine.errors import EngineError

    if shutil.which(line.program) is None:
        raise EngineMissing(
            f"{line.program} is not installed ({_FOUND_AT[line.program]})",
            next_step=f"install it, or run this where it is: {line}",
        )
    print(f"+ {line}", file=sys.stderr, flush=True)
    done = subprocess.run(line.words, check=False, stdin=subprocess.DEVNULL, env=_environment())
    if done.returncode != 0:
        raise EngineError(
            f"{line.program} ended with exit code {done.returncode}", next_step=f"try the line itself: {line}"
        )
    shown = f"; look at it with: {line.then}" if line.then else ""
    print(f"{line.result} is written{shown}", file=sys.stderr, flush=True)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path}
