"""What goes wrong around a command: a missing package, a full disk, no rights, a stop. Nothing is lost by it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.making import Done, Run, clear, files
from tests.sources.making import write_onnx

pytestmark = pytest.mark.timed


def own_process(folder: Path, *words: str, hidden: str = "", **env: str) -> Done:
    """Run `vengine` as a user does; the package `hidden` is not there for it."""
    if hidden:
        shim = folder.parent / "shim"
        shim.mkdir()
        (shim / "sitecustomize.py").write_text(f"import sys\nsys.modules[{hidden!r}] = None\n")
        env["PYTHONPATH"] = os.pathsep.join([str(shim), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "vengine.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=os.environ | {"VENGINE_CACHE": str(folder.parent / "cache")} | env,
        check=False,
    )
    return Done(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.mark.parametrize(
    ("hidden", "words", "message"),
    [
        ("openvino", "optimize relu.onnx --engines openvino", "openvino is not installed"),
        ("onnx", "inspect relu.onnx", "onnx is not installed"),
        ("onnxruntime", "inspect relu.onnx", "onnxruntime is not installed"),
        ("torch", "inspect bert", "torch is not installed"),
    ],
)
def test_a_package_that_is_not_installed(place: Path, hidden: str, words: str, message: str) -> None:
    done = own_process(place, *words.split(), hidden=hidden)
    clear(done, message)
    assert "pip install" in done.err


def test_a_bundle_whose_engine_is_not_installed(built: Path, place: Path) -> None:
    done = own_process(place, "run", str(built), "--tensors", "rows.npz", hidden="onnxruntime")
    clear(done, "onnxruntime is not installed")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=160k", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("a small disk can't be mounted without the right to do so")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_loses_nothing(vengine: Run, built: Path, place: Path, small_disk: Path) -> None:
    old = small_disk / "r.vengine"
    shutil.copytree(built, old)
    before = files(small_disk)
    (small_disk / "filling").write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))
    words = ["optimize", "relu.onnx", "--data", "rows.npz", "--time", "1s"]
    clear(vengine(*words, "--out", str(old)), "the disk has 0.0 MB left")
    clear(vengine(*words, "--out", "here.vengine", "--html", str(small_disk / "r.html")), "the page can't be written")
    (small_disk / "filling").unlink()
    assert files(small_disk) == before


def test_a_full_disk_under_the_cache(place: Path, small_disk: Path) -> None:
    (small_disk / "filling").write_bytes(b"x" * (os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize))
    done = own_process(
        place, "optimize", "topics", "--data", "topics.csv", "--out", "t.vengine", VENGINE_CACHE=str(small_disk)
    )
    clear(done, "No space left")
    assert not (place / "t.vengine").exists()


def test_no_right_to_write_or_read(place: Path, tmp_path: Path) -> None:
    """Run without the powers by which root ignores rights."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    secret = tmp_path / "secret.onnx"
    write_onnx(secret)
    secret.chmod(0)
    plain = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner", "--inh-caps=-all"] * (not os.geteuid())
    if plain and (shutil.which("setpriv") is None or subprocess.run([*plain, "true"], check=False).returncode):
        pytest.skip("root's powers can't be given up here")
    for words, message in (
        (["optimize", "relu.onnx", "--out", str(closed / "r.vengine")], "can't be written to"),
        (["optimize", "relu.onnx", "--html", str(closed / "r.html")], "can't be written to"),
        (["inspect", str(secret)], "can't be read: Permission denied"),
    ):
        done = subprocess.run(
            [*plain, sys.executable, "-m", "vengine.cli.main", *words],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=place,
            env=os.environ | {"VENGINE_CACHE": str(tmp_path / "cache")},
            check=False,
        )
        clear(Done(code=done.returncode, out=done.stdout, err=done.stderr), message)
    assert list(closed.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_stop_in_the_middle_leaves_the_old_bundle_and_no_process(
    place: Path, built: Path, number: int, code: int
) -> None:
    shutil.copytree(built, place / "r.vengine")
    before = files(place / "r.vengine")
    process = subprocess.Popen(
        [sys.executable, "-m", "vengine.cli.main", "optimize", "good.onnx", "--time", "60s", "--out", "r.vengine"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=place,
        env=os.environ | {"VENGINE_CACHE": str(place.parent / "cache")},
    )
    assert process.stderr
    said = ""
    while "trial 2" not in said and (line := process.stderr.readline()):
        said += line
    workers = _descendants(process.pid)
    assert workers
    process.send_signal(number)
    said += process.communicate(timeout=30)[1]
    assert process.returncode == code
    assert "Traceback" not in said
    assert ("the same command resumes" in said) is (number != signal.SIGKILL)
    assert files(place / "r.vengine") == before
    assert [p.name for p in place.iterdir() if p.name.startswith(".")] == []
    deadline = time.monotonic() + 10
    while any(map(_lives, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in workers if _lives(pid)]


def _descendants(pid: int) -> list[int]:
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    threads = [Path(p) for p in Path(f"/proc/{pid}/task").iterdir() if p.name != str(pid)]
    children += [int(word) for thread in threads for word in (thread / "children").read_text().split()]
    return children + [below for child in children for below in _descendants(child)]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
