"""From exception to exit code and message; and what leaves the process when something goes wrong."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from vengine import errors
from vengine.cli import faults

pytestmark = pytest.mark.timed

COMMAND = [sys.executable, "-m", "vengine.cli.main"]


@pytest.mark.parametrize(
    ("error", "code", "kind", "words"),
    [
        (errors.UsageError("no"), 2, "UsageError", "no"),
        (errors.DataError("one line only", where="a.txt", next_step="add texts"), 2, "DataError", "one line only"),
        (errors.SourceError("a pickle"), 2, "SourceError", "a pickle"),
        (errors.EngineMissing("no openvino"), 2, "EngineMissing", "no openvino"),
        (errors.BundleError("damaged"), 2, "BundleError", "damaged"),
        (errors.LimitError("too large"), 2, "LimitError", "too large"),
        (errors.PromiseBroken("slower"), 3, "PromiseBroken", "slower"),
        (errors.Undecided("400 more"), 4, "Undecided", "400 more"),
        (click.BadParameter("5 is odd"), 2, "UsageError", "5 is odd"),
        (click.NoSuchOption("--dta"), 2, "UsageError", "--dta"),
        (KeyboardInterrupt(), 130, "Interrupted", "stopped"),
        (click.exceptions.Abort(), 130, "Interrupted", "stopped"),
        (faults.Terminated(15), 143, "Terminated", "terminated"),
        (MemoryError(), 2, "LimitError", "memory ran out"),
        (OSError(errno.ENOSPC, "x", "a/b"), 2, "LimitError", "disk is full"),
        (OSError(errno.EDQUOT, "x"), 2, "LimitError", "quota"),
        (PermissionError(errno.EACCES, "x", "a/b"), 2, "UsageError", "no permission"),
        (OSError(errno.EROFS, "x"), 2, "UsageError", "read-only"),
        (FileNotFoundError(errno.ENOENT, "x", "a/b"), 2, "UsageError", "no such file"),
        (OSError(errno.EBADF, "bad descriptor"), 70, "Bug", "fault of Vengine"),
        (BrokenPipeError(errno.EPIPE, "a worker's"), 70, "Bug", "fault of Vengine"),
        (ModuleNotFoundError("x", name="sklearn.linear_model"), 2, "EngineMissing", "vengine[optimize]"),
        (ModuleNotFoundError("x", name="openvino"), 2, "EngineMissing", "vengine[openvino]"),
        (ModuleNotFoundError("x", name="vengine.nowhere"), 70, "Bug", "ModuleNotFoundError"),
        (KeyError("x"), 70, "Bug", "KeyError"),
        (AssertionError(), 70, "Bug", "AssertionError"),
        (RecursionError("deep"), 70, "Bug", "VENGINE_DEBUG=1"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else None,
)
def test_each_fault_has_its_exit_code_and_says_what(error: BaseException, code: int, kind: str, words: str) -> None:
    fault = faults.explain(error)
    assert (fault.exit_code, fault.kind) == (code, kind)
    assert words in f"{fault.what} {fault.next_step}"
    assert not fault.quiet


@pytest.mark.parametrize("kind", [getattr(errors, name) for name in errors.__all__])
def test_every_error_of_the_tree_has_a_documented_exit_code(kind: type[errors.VengineError]) -> None:
    assert faults.explain(kind("x")).exit_code in (2, 3, 4)


def vengine(*words: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    return subprocess.run([*COMMAND, *words], input=stdin, capture_output=True, timeout=60, env=os.environ | env)


TABLE = [
    (["nope"], b"", "No such command"),
    (["optimize"], b"", "Missing argument"),
    (["optimize", "m", "--budget", "3"], b"", "3%"),
    (["optimize", "m", "--time", "soon"], b"", "90s, 5m or 1h"),
    (["optimize", "m", "--level", "safe", "--precision", "int8"], b"", "--level safe"),
    (["run", "b"], b"", "--text"),
    (["run", "b", "--text", "a", "--tensors", "t.npz"], b"", "--text"),
    (["run", "b", "--text", "a", "--pair", "b", "--pair", "c"], b"", "1 times --text but 2 times --pair"),
    (["run", "b", "--text", "-", "--text", "a"], b"x\n", "reads all texts"),
    (["run", "b", "--text", "-"], b"", "no text on standard input"),
    (["run", "b", "--text", "-"], b"\n \n", "no text on standard input"),
    (["run", "b", "--text", "-"], b"fine\n\xff\xfe\n", "line 2"),
    (["run", "b", "--text", "-"], b"x" * 100_001, "100,001 characters"),
    (["run", "b", "--text", "-", "--pair", "-"], b"a\tb\nno tab\n", "line 2"),
    (["bench"], b"", "Missing argument"),
    (["bench", "a", "--shape", "8"], b"", "8x256"),
]


@pytest.mark.parametrize(("words", "stdin", "message"), TABLE, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_bad_input_is_one_clear_message_and_exit_code_2(
    words: list[str], stdin: bytes, message: str, as_json: bool
) -> None:
    done = vengine(*words, *(["--json"] if as_json else []), stdin=stdin)
    err = done.stderr.decode()
    assert done.returncode == 2, err
    assert message in err
    assert "next step: " in err
    assert "Traceback" not in err
    if not as_json:
        assert done.stdout == b""
        return
    line = json.loads(done.stdout)  # exactly one line
    assert line["exit_code"] == 2
    assert message in json.dumps(line, ensure_ascii=False)


def test_an_argument_that_is_not_utf8_is_refused_and_not_a_crash() -> None:
    done = subprocess.run(
        [*map(os.fsencode, COMMAND), b"run", b"b", b"--text", b"\xff"], capture_output=True, timeout=60
    )
    assert (done.returncode, b"not valid UTF-8" in done.stderr) == (2, True)
    done = subprocess.run([*map(os.fsencode, COMMAND), b"\xff"], capture_output=True, timeout=60)
    assert (done.returncode, b"No such command" in done.stderr) == (2, True)


def test_debug_shows_the_traceback_and_keeps_the_exit_code() -> None:
    done = vengine("nope", VENGINE_DEBUG="1")
    assert (done.returncode, b"Traceback" in done.stderr) == (2, True)
    assert b"Traceback" not in vengine("nope", VENGINE_DEBUG="0").stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_so_and_how_to_go_on(number: int, code: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, "run", "b", "--text", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin
    process.stdin.write(b"a text\n")
    process.stdin.flush()
    waiting = Path(f"/proc/{process.pid}/wchan")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and "pipe" not in waiting.read_text():
        time.sleep(0.02)
    process.send_signal(number)
    # Not communicate(): it would close standard input first, and the end of the texts would win.
    assert process.wait(timeout=20) == code
    assert process.stderr
    err = process.stderr.read()
    assert b"the same command resumes" in err
    assert b"Traceback" not in err
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream
        stream.close()


@pytest.mark.parametrize(("number", "kind"), [("SIGINT", "KeyboardInterrupt"), ("SIGTERM", "Terminated")])
def test_a_stop_that_arrives_where_python_drops_exceptions_arrives_once_more(number: str, kind: str) -> None:
    code = f"""
import signal, time, weakref
from vengine.cli.main import listen_for_stops
listen_for_stops()
class Thing: pass
thing = Thing()
watch = weakref.ref(thing, lambda _: signal.raise_signal(signal.{number}))
try:
    del thing  # what the callback raises is dropped
    print("dropped", flush=True)
    time.sleep(20)
except BaseException as error:
    print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.stderr) == (["dropped", kind], "")


def test_a_reader_that_left_ends_it_quietly() -> None:
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([*COMMAND, "--help"], stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["--version"],
        *([verb, "--help"] for verb in ("optimize", "inspect", "verify", "run", "bench", "doctor")),
    ],
    ids=" ".join,
)
def test_help_is_there_without_loading_anything(words: list[str]) -> None:
    done = vengine(*words, PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert len(done.stdout) > 10
    loaded = {line.rsplit(b"|", 1)[-1].strip().split(b".")[0] for line in done.stderr.splitlines()}
    assert loaded & {b"torch", b"onnx", b"numpy", b"onnxruntime", b"rich"} == set()


def test_no_words_at_all_shows_the_help_and_is_a_usage_error() -> None:
    done = vengine()
    assert (done.returncode, b"optimize" in done.stderr, done.stdout) == (2, True, b"")
