from __future__ import annotations

import json
import re
from typing import Any

import pytest

from vengine.report.line import json_line
from vengine.report.markdown import literal, markdown


def tables(text: str) -> list[list[int]]:
    """For each table, how many unescaped bars each of its lines has."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [[len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()] for block in blocks]


def test_the_sample_says_what_was_found(sample: dict[str, Any]) -> None:
    text = markdown(sample).replace("\u00a0", " ")
    for words in ("target met", "4.73× (4.64–4.82)", "openvino int8-static-bf16", "SIGKILL", "vengine verify"):
        assert words in text
    assert "The original ships unchanged" not in text


def test_a_missed_target_says_that_the_original_ships(failed: dict[str, Any]) -> None:
    text = markdown(failed)
    assert "target missed" in text
    assert "**The original ships unchanged.**" in text
    assert "What is in the bundle" not in text


def test_every_shape_of_report_keeps_its_tables_whole(reports: dict[str, dict[str, Any]]) -> None:
    for name, report in reports.items():
        for bars in tables(markdown(report)):
            assert len(set(bars)) == 1, name


@pytest.mark.parametrize(
    ("raw", "escaped"),
    [
        ("a|b", r"a\|b"),
        ("<b>x</b>", r"\<b\>x\</b\>"),
        ("[a](b) `c` *d* _e_", r"\[a\](b) \`c\` \*d\* \_e\_"),
        ("&lt; ~~s~~ #1", r"\&lt; \~\~s\~\~ \#1"),
        ("line\nbreak", "line break"),
        ("plain, 明天 4.5 %", "plain, 明天 4.5 %"),
    ],
)
def test_texts_stay_texts(raw: str, escaped: str) -> None:
    assert literal(raw) == escaped


def test_no_tag_and_no_link_of_a_user_comes_through(poisoned: dict[str, Any]) -> None:
    """Outside of the indented commands, which Markdown shows as they are."""
    prose = "\n".join(line for line in markdown(poisoned).splitlines() if not line.startswith("    "))
    assert not re.search(r"(?<!\\)<", prose)
    assert not re.search(r"(?<!\\)\[", prose)
    assert "\x1b" not in prose


def test_the_line_is_one_line_of_strict_json(reports: dict[str, dict[str, Any]]) -> None:
    for report in reports.values():
        line = json_line(report)
        assert "\n" not in line
        json.loads(line, parse_constant=pytest.fail)  # NaN and Infinity are no JSON


def test_the_line_has_the_documented_keys(sample: dict[str, Any]) -> None:
    found = json.loads(json_line(sample))
    wanted = "bundle digest met task original variants speedup accuracy memory trials refused"
    assert set(wanted.split()) <= set(found)
    assert set(found["variants"][0]) == {"engine", "precision", "digest", "tokens_min", "tokens_max"}
    assert found["accuracy"]["drop"] == pytest.approx(-0.0032)
    assert found["speedup"]["8x256"].keys() == {"ratio", "low", "high"}
    assert found["memory"] == {"original_rss": 481_000_000, "optimized_rss": 203_000_000}
