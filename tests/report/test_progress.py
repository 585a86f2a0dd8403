from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from vengine.report.progress import LiveProgress, PlainProgress, progress_for, sentence
from vengine.types import Interval


class Clock:
    """A clock that a test turns by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


EVENTS: list[dict[str, Any]] = [
    {"event": "phase", "name": "export"},
    {"event": "note", "text": "opset 23"},
    {"event": "phase", "name": "trials"},
    {"event": "trial-start", "recipe": "onnxruntime fp32", "index": 1, "total": 3},
    {"event": "trial-end", "recipe": "onnxruntime fp32", "status": "ok", "reason": "", "ratio": 1.6, "seconds": 10.0},
    {"event": "trial-start", "recipe": "openvino bf16", "index": 2, "total": 3},
    {"event": "trial-end", "recipe": "openvino bf16", "status": "failed", "reason": "killed [red]", "seconds": 20.0},
    {"event": "race", "round": 4, "seconds_left": 31.0},
    {"event": "from-the-future", "weather": "fine"},
]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (EVENTS[0], "export"),
        (EVENTS[3], "trial 1 of 3: onnxruntime fp32"),
        (EVENTS[4], "✓ onnxruntime fp32: ok, 1.60× as fast as the original (10 s)"),
        (EVENTS[6], "! openvino bf16: failed, killed [red] (20 s)"),
        (EVENTS[7], "race, round 4"),
        (EVENTS[8], "event=from-the-future weather=fine"),
        ({"event": "note", "text": "\x1b[31mred\nline"}, "\ufffd[31mred line"),
        ({"event": "trial-end", "recipe": "x", "status": "ok", "ratio": Interval(value=2, low=1, high=3)},
         "✓ x: ok, 2.00× as fast as the original"),
        ({}, ""),
    ],
)  # fmt: skip
def test_an_event_is_one_line(event: dict[str, Any], text: str) -> None:
    assert sentence(event).replace("\u00a0", " ") == text


def test_plain_progress_prints_a_line_an_event_with_the_time() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    for event in EVENTS:
        clock.now += 1.5
        progress(event)
    lines = stream.getvalue().replace("\u00a0", " ").splitlines()
    assert len(lines) == len(EVENTS)
    assert lines[0] == "[   1.5 s] export"
    assert lines[7].endswith("race, round 4, 31 s left")


def test_plain_progress_does_not_flood_a_log() -> None:
    stream, clock = io.StringIO(), Clock()
    progress = PlainProgress(stream, clock)
    for k in range(1000):
        clock.now += 0.1
        progress({"event": "race", "round": k, "seconds_left": 1.0})
    assert 9 <= len(stream.getvalue().splitlines()) <= 11


def live(clock: Clock) -> tuple[LiveProgress, io.StringIO]:
    stream = io.StringIO()
    return LiveProgress(Console(file=stream, width=100, force_terminal=True), clock), stream


def picture(progress: LiveProgress) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(progress.render())
    return console.file.getvalue().replace("\u00a0", " ")


def test_the_live_display_shows_phase_trials_and_how_they_ended() -> None:
    progress, _ = live(Clock())
    with progress:
        for event in EVENTS[:6]:
            progress(event)
        text = picture(progress)
    for words in ("trials", "1 of 3 trials", "✓", "onnxruntime fp32", "1.60×", "… openvino bf16"):
        assert words in text


def test_time_left_comes_from_the_trials_and_then_from_the_race() -> None:
    clock = Clock()
    progress, _ = live(clock)
    with progress:
        for event in EVENTS[:4]:
            progress(event)
        assert progress.seconds_left() is None
        progress(EVENTS[4])
        assert progress.seconds_left() == pytest.approx(20.0)  # two open, ten seconds each
        progress(EVENTS[7])
        clock.now += 11
        assert progress.seconds_left() == pytest.approx(20.0)  # 31 − 11
        clock.now += 100
        assert progress.seconds_left() == 0
        assert "0 s left" in picture(progress)


def test_the_terminal_is_given_back_also_after_an_error() -> None:
    progress, stream = live(Clock())
    progress(EVENTS[0])
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    shown = stream.getvalue()
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == 1  # the cursor: hidden once, shown once
    progress.close()


def test_a_pipe_gets_plain_lines() -> None:
    assert isinstance(progress_for(io.StringIO()), PlainProgress)


class Screen(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_live_display() -> None:
    assert isinstance(progress_for(Screen(), columns=80), LiveProgress)


def test_hundreds_of_trials_keep_to_one_screen() -> None:
    progress, _ = live(Clock())
    with progress:
        for k in range(200):
            progress({"event": "trial-end", "recipe": f"r{k}", "status": "ok", "reason": "very long " * 50})
        assert len(picture(progress).splitlines()) < 24
