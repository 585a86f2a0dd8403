from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vengine.report import wording
from vengine.types import Interval


@pytest.mark.parametrize(
    ("form", "value", "text"),
    [
        (wording.times, 4.7312, "4.73×"),
        (wording.times, 0.861, "0.86×"),
        (wording.times, 12.34, "12.3×"),
        (wording.times, 140.2, "140×"),
        (wording.times, None, "–"),
        (wording.percent, 0.0032, "0.32 %"),
        (wording.percent, -0.0032, "−0.32 %"),
        (wording.percent, 0.01, "1 %"),
        (wording.percent, 0.031, "3.1 %"),
        (wording.percent, 0.79, "79 %"),
        (wording.percent, 0.00001, "0 %"),
        (wording.percent, -0.00001, "0 %"),
        (wording.percent, 0.10, "10 %"),
        (wording.percent, 1.0, "100 %"),
        (wording.saved, 4.0, "75 % less time"),
        (wording.saved, 0.8, "25 % more time"),
        (wording.saved, 224.0, "99.55 % less time"),
        (wording.saved, 100_000.0, "99.99 % less time"),
        (wording.saved, 0, "–"),
        (wording.milliseconds, 0.744, "0.74 ms"),
        (wording.milliseconds, 63.4, "63 ms"),
        (wording.milliseconds, 288.2, "288 ms"),
        (wording.milliseconds, 1234, "1.2 s"),
        (wording.seconds, 9.44, "9.4 s"),
        (wording.seconds, 59.99, "1 min"),
        (wording.seconds, 212.3, "3 min 32 s"),
        (wording.seconds, 3720, "1 h 2 min"),
        (wording.size, 480e6, "480 MB"),
        (wording.size, 1.24e9, "1.2 GB"),
        (wording.size, 12, "12 B"),
        (wording.score, 0.82031, "0.8203"),
        (wording.score, 0.999999, "0.999999"),
        (wording.score, 1.0, "1.0000"),
        (wording.score, -0.5, "−0.5000"),
    ],
)
def test_numbers_keep_the_digits_that_mean_something(form: Callable[[Any], str], value: Any, text: str) -> None:
    assert form(value).replace("\u00a0", " ") == text


@pytest.mark.parametrize("value", [None, "1", True, math.nan, math.inf, [1], {}])
def test_what_is_no_number_is_missing_and_not_zero(value: Any) -> None:
    assert wording.number(value) is None


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"value": 2, "low": 1, "high": 3}, Interval(value=2.0, low=1.0, high=3.0)),
        ({"value": 2}, Interval(value=2.0, low=2.0, high=2.0)),
        ({"value": None, "low": 1, "high": 3}, None),
        (None, None),
        (2, None),
    ],
)
def test_intervals_are_read(data: Any, found: Interval | None) -> None:
    assert wording.interval(data) == found


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("plain text", "plain text"),
        ("two\nlines\tand tabs", "two lines and tabs"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("abc\u202edef", "abc\ufffddef"),
        ("a\x00b\u2066c\ud800", "a\ufffdb\ufffdc\ufffd"),
        ("明天下午三点", "明天下午三点"),
        ("e\u0301", "e\u0301"),
        (None, "None"),
    ],
)
def test_texts_of_others_can_do_nothing(raw: Any, text: str) -> None:
    assert wording.clean(raw) == text


def test_a_long_text_is_cut() -> None:
    assert wording.clean("x" * 100, 10) == "x" * 9 + "…"
    assert wording.clean("x" * 10, 10) == "x" * 10


def test_chinese_takes_two_columns() -> None:
    assert wording.cells_wide("ab") == 2
    assert wording.cells_wide("会议") == 4
    assert wording.cells_wide("e\u0301") == 1


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-12, max_value=1e12))
def test_a_positive_number_is_never_written_as_negative_or_in_powers(value: float) -> None:
    for form in (wording.times, wording.milliseconds, wording.size, wording.percent, wording.seconds):
        text = form(value)
        assert "−" not in text
        assert "e" not in text.replace("less time", "")
