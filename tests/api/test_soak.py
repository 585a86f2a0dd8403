"""A soak of real processes: leaks that were asked for are found and named; what only looks like one passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.bundle.making import Toy, bundle, tokenizer
from tests.engines.making import layer

from vengine.api.soak import soak
from vengine.api.subjects import subject_of
from vengine.api.tools import nsys_line, run_tool, valgrind_line, vtune_line
from vengine.api.traffic import lengths_of, traffic
from vengine.cli.soak import exit_code
from vengine.engines.process import WorkerSession
from vengine.errors import EngineMissing, UsageError
from vengine.hardware import machine
from vengine.types import TensorSpec

pytestmark = pytest.mark.timed

MINUTES = 0.05
KB, MB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("behaviour", "outcome", "what", "whose"),
    [
        ({}, "pass", "requests", ""),
        ({"allocate_mb": 60}, "pass", "requests", ""),
        ({"leak_bytes": KB}, "fail", "requests", "Python"),
        ({"leak_below_bytes": KB}, "fail", "requests", "the engine, below Python"),
        ({"keep_bytes_per_shape": 3 * MB}, "fail", "shapes", "a cache of shapes"),
    ],
)
def test_a_leak_is_found_and_named(
    tmp_path: Path, behaviour: dict[str, Any], outcome: str, what: str, whose: str
) -> None:
    made = bundle(tmp_path, [Toy(behaviour={"delay_us_per_token": 1, **behaviour})])
    result = soak(made.root, minutes=MINUTES, page=tmp_path / "soak.html")
    # A machine that others load meanwhile may leave the time of a call undecided; what is said of memory stands.
    of_memory = {f["outcome"] for f in result["findings"] if f["what"] != "latency"}
    assert outcome in of_memory <= {outcome, "pass"}, result["findings"]
    assert result["outcome"] == result["findings"][0]["outcome"]
    (finding,) = [f for f in result["findings"] if f["what"] == what]
    assert (finding["outcome"], finding["whose"]) == (outcome, whose)
    assert exit_code(result) == {"pass": 0, "fail": 3, "undecided": 4}[result["outcome"]]
    assert (tmp_path / "soak.html").read_text("utf-8").startswith("<!doctype html>")
    if "leak_bytes" in behaviour:
        assert result["grown"][0]["where"].startswith("engines/fake_engine.py:")


def test_a_real_engine_soaks(tmp_path: Path) -> None:
    result = soak(layer(tmp_path / "m.onnx"), minutes=MINUTES, threads=1, cache=tmp_path / "cache")
    assert {look["phase"] for look in result["looks"]} > {"one shape", "known shapes", "new shapes", "all shapes"}
    assert result["looks"][-1]["shapes"] > 20
    assert all(look["memory"]["rss_bytes"] > 1 << 20 for look in result["looks"])
    assert not [f for f in result["findings"] if f["what"] == "requests" and f["outcome"] == "fail"]


def test_the_same_seed_asks_the_same(tmp_path: Path) -> None:
    subject = subject_of(bundle(tmp_path).root, machine(), None, tmp_path)
    inputs = (TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length")),)
    first, again, other = (traffic(subject, inputs, (), seed) for seed in (1, 1, 2))
    assert first == again
    assert first.familiar != other.familiar
    assert not set(first.familiar) & set(first.fresh)
    assert max(width for _, width in first.familiar + first.fresh) <= 64  # the toy's longest text


@pytest.mark.parametrize(
    ("shape", "shapes"),
    [(("batch", 3, 8, 8), 4), ((1, 3, 8, 8), 1), (("batch", "length"), 4 * 61), ((1, "length"), 61)],
)
def test_only_free_axes_vary(tmp_path: Path, shape: tuple[int | str, ...], shapes: int) -> None:
    subject = subject_of(bundle(tmp_path).root, machine(), None, tmp_path)
    asked = traffic(subject, (TensorSpec(name="x", dtype="float32", shape=shape),), (), 0)
    assert asked.possible == shapes
    assert asked.feeds(asked.usual)["x"].ndim == len(shape)


def test_lengths_come_from_the_data(tmp_path: Path) -> None:
    data = tmp_path / "texts.txt"
    data.write_text("hello\nhello the pump\nthe invoice the valve\n")
    made = bundle(tmp_path, tokenizer=tokenizer(tmp_path / "t"))
    subject = subject_of(made.root, machine(), None, tmp_path)
    assert lengths_of(data, subject) == [1, 3, 4]
    inputs = (TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length")),)
    assert {width for _, width in traffic(subject, inputs, [1, 3, 4], 0).familiar} == {8}  # the bundle's step
    plain = subject_of(bundle(tmp_path / "plain").root, machine(), None, tmp_path)
    with pytest.raises(UsageError, match="no tokenizer"):
        lengths_of(data, plain)


def test_a_soak_without_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes some time"):
        soak(bundle(tmp_path).root, minutes=0)


@pytest.mark.parametrize(
    ("line", "begins", "has"),
    [
        (valgrind_line("m.vengine", "massif", seed=3), "env PYTHONMALLOC=malloc valgrind --tool=massif", "--seed=3"),
        (
            valgrind_line("m.vengine", "memcheck"),
            "env PYTHONMALLOC=malloc valgrind --tool=memcheck",
            "--leak-check=full",
        ),
        (nsys_line("m.vengine", (8, 128)), "nsys profile", "--shape=8x128"),
        (vtune_line("m.vengine", (1, 16), threads=2), "vtune -collect hotspots", "--threads=2"),
    ],
)
def test_the_ready_line_can_be_copied(
    line: Any, begins: str, has: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert str(line).startswith(begins)
    assert has in str(line)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineMissing, match=f"{line.program} is not installed") as caught:
        run_tool(line)
    assert str(line) in caught.value.next_step


def test_what_the_tools_watch_answers_calls(tmp_path: Path) -> None:
    from vengine.api.alone import alone

    made = bundle(tmp_path)
    assert alone(str(made.root), 12, 0, None, None) > 3
    assert alone(str(made.root), 3, 0, (2, 8), None) == 1


def test_the_worker_tells_what_python_holds_more(tmp_path: Path) -> None:
    from tests.engines.making import ONE, fake, text_feeds

    with WorkerSession("fake", fake(tmp_path, leak_bytes=100 * KB), "fp32", ONE) as worker:
        assert worker.watch_python() == []
        times, memory = worker.soak([text_feeds()], repeats=10)
        assert len(times) == 10
        assert memory.python_bytes is not None
        assert memory.python_bytes > 1000 * KB
        assert worker.watch_python()[0].grown_bytes == pytest.approx(10 * 100 * KB, rel=0.01)
        worker.soak([text_feeds()])
        assert worker.watch_python()[0].grown_bytes == pytest.approx(
            100 * KB, rel=0.02
        )  # since the last time, not since the first
        first, second = worker.trim(), worker.trim()
        # What was kept is gone; a page or two come and go with the asking itself.
        assert first is None or second is None or second <= 64 * KB
