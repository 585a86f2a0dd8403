from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from vengine.report.terminal import print_report, side_by_side


def shown(report: dict[str, Any], width: int = 110, *, colour: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=colour)
    print_report(report, console)
    side_by_side(report, console)
    return console.file.getvalue().replace("\u00a0", " ")


def test_verdict_tables_reasons_and_commands_are_there(sample: dict[str, Any]) -> None:
    text = shown(sample)
    for words in ("✓ target met", "4.64–4.82", "the bundle (2 variants)", "SIGKILL", "fallback", "$ vengine verify"):
        assert words in text


@pytest.mark.parametrize(
    ("width", "there", "absent"), [(110, "95 %", ""), (80, "4.73×", "4.62–4.80"), (60, "4.73×", "")]
)
def test_no_number_is_cut_where_the_terminal_is_narrow(
    sample: dict[str, Any], width: int, there: str, absent: str
) -> None:
    table = shown(sample, width).split("What was tried")[1].split("What is in")[0]
    assert there in table
    assert not absent or absent not in table
    assert "…" not in table
    assert "481 MB" in table


def test_a_missed_target_says_that_the_original_ships(failed: dict[str, Any]) -> None:
    text = shown(failed)
    assert "✗ target missed" in text
    assert "The original ships unchanged" in text
    assert "★" not in text


def test_a_text_can_neither_paint_nor_use_markup(sample: dict[str, Any]) -> None:
    sample["side_by_side"][0]["text"] = "\x1b[31mred\x07 [bold]loud[/bold] [/nonsense]"
    sample["refused"][0]["reason"] = "[red]x[/red] \x1b[2J"
    text = shown(sample)
    assert "\x1b" not in text
    assert "[bold]loud[/bold] [/nonsense]" in text
    assert "[red]x[/red]" in text


def test_side_by_side_shows_both_answers_both_times_and_agreement(sample: dict[str, Any]) -> None:
    console = Console(file=io.StringIO(), width=100)
    side_by_side(sample, console)
    text = console.file.getvalue().replace("\u00a0", " ")
    for words in ("the original", "the bundle", "+0.041", "5.6 ms", "0.76 ms", "cosine 0.9992", "86 % less time"):
        assert words in text


def test_every_shape_of_report_can_be_printed(reports: dict[str, dict[str, Any]]) -> None:
    for report in reports.values():
        for width in (40, 100):
            assert shown(report, width)
