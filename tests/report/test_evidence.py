"""What stands behind a verdict is shown: changed answers, circumstances, and errors beside the original's noise."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from vengine.report.contenders import contenders
from vengine.report.evidence import changes, company, kept, largest_error, notes
from vengine.report.html import html
from vengine.report.markdown import markdown
from vengine.report.terminal import print_report

HOSTILE = "<script>alert(1)</script> [bold]x[/bold] | `*_\x1b[31m"


def flipped(sample: dict[str, Any], count: int = 31) -> dict[str, Any]:
    """The sample as a classifier's report, with so many changed answers, at most 20 of them listed."""
    row = {"label": "fee", "original": "fee", "optimized": "refund", "distance": None}
    listed = [{**row, "text": f"question {i} {HOSTILE}", "margin": 0.6 - i / 100} for i in range(min(count, 20))]
    sample["accuracy"] |= {"metric": "accuracy", "changed": count, "changes": listed}
    return sample


def printed(report: dict[str, Any], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    print_report(report, console)
    return console.file.getvalue().replace("\u00a0", " ")


def test_changed_answers_stand_in_every_form_of_the_report(sample: dict[str, Any]) -> None:
    report = flipped(sample)
    for text, rows in ((html(report), 20), (markdown(report), 20), (printed(report), 3)):
        assert "Changed answers" in text
        assert "31 of 600 samples" in text
        assert (f"question {rows - 1} " in text, f"question {rows} " in text) == (True, False)
        assert "\x1b" not in text
    assert "<script>alert" not in html(report)
    assert "\\<script\\>alert" in markdown(report)
    assert "fee → refund, label fee, margin 60 %" in printed(report)


def test_the_columns_are_those_that_hold_something(sample: dict[str, Any]) -> None:
    moved, classes = changes(sample), changes(flipped(sample))
    assert moved is not None
    assert classes is not None
    assert list(moved.head) == ["text", "label", "original", "bundle", "moved"]
    assert list(classes.head) == ["text", "label", "original", "bundle", "margin"]
    for row in sample["accuracy"]["changes"]:
        row |= {"label": None, "original": "", "optimized": "", "margin": None, "distance": 0.01}
    sample["accuracy"]["changed"] = 0
    vectors = changes(sample)
    assert vectors is not None
    assert list(vectors.head) == ["text", "moved"]
    assert "1 − cosine" in vectors.note


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (1, "1 of 600 samples."),
        (5, "5 of 600 samples: those first of which it was surest"),
        (31, "31 of 600 samples: the 20 of which the original was surest"),
    ],
)
def test_how_many_changed_is_said(sample: dict[str, Any], count: int, words: str) -> None:
    found = changes(flipped(sample, count))
    assert found is not None
    assert found.note.startswith(words)


def test_each_circumstance_is_named_with_likeness_and_text(sample: dict[str, Any]) -> None:
    found = company(sample)
    assert found is not None
    assert [row[0] for row in found.body] == [c["what"] for c in sample["invariance"]["checks"]]
    for text in (html(sample), markdown(sample)):
        for check in sample["invariance"]["checks"]:
            assert check["what"] in text
    assert "<i>Where" not in html(sample)


def test_a_report_without_named_circumstances_keeps_its_three_numbers(sample: dict[str, Any]) -> None:
    del sample["invariance"]["checks"], sample["accuracy"]["changes"]
    sample["accuracy"]["flipped"] = ["a text: one → two"]
    assert company(sample) is None
    assert changes(sample) is None
    for words in ("in a batch of 8", "among other neighbours", "a text: one → two"):
        assert words in html(sample)


def test_the_worst_circumstance_counts_whichever_it_is(sample: dict[str, Any]) -> None:
    sample["invariance"]["checks"][-1]["similarity"] = 0.9991
    assert contenders(sample)[-1].invariance == 0.9991


@pytest.mark.parametrize(
    ("error", "noise", "words"),
    [
        (0.0212, 5.3e-7, "2.1 % of an output's usual size, 40,000 × the original's own noise (0.53 millionths)"),
        (0.0212, 0.0, "2.1 % of an output's usual size; the original repeats itself exactly"),
        (4e-7, 5e-7, "0.40 millionths of an output's usual size, within the original's own noise (0.50 millionths)"),
        (0.0, 5e-7, "none: equal bit for bit"),
        (0.02, None, ""),
        (None, 5e-7, ""),
        ("x", float("nan"), ""),
    ],
)
def test_the_largest_error_is_told_beside_the_noise(error: Any, noise: Any, words: str) -> None:
    assert largest_error({"error": error, "noise": noise}).replace("\u00a0", " ") == words


def test_an_error_without_a_floor_leaves_no_empty_line(sample: dict[str, Any]) -> None:
    assert "largest error" in printed(sample)
    sample["accuracy"] |= {"noise": None, "reason": ""}
    assert "largest error" not in printed(sample) + markdown(sample) + html(sample)


def test_notes_repeat_neither_the_drop_nor_the_error() -> None:
    accuracy = {"reason": "accuracy 0.9 → 0.9, within 1.00 %. 2 became wrong. The largest error is 4 ×", "error": 0.1}
    assert notes(accuracy) == "2 became wrong. The largest error is 4 ×"
    assert notes(accuracy | {"noise": 0.025}) == "2 became wrong"
    assert notes({}) == ""


def with_keep_list(sample: dict[str, Any]) -> dict[str, Any]:
    """The sample with a trial in mixed precision: two nodes of one reason, and one of another."""
    trial = next(t for t in sample["trials"] if t["variant"])
    refusals = [["norm_1", "it adds up 384 terms"], ["norm_2", "it adds up 384 terms"], [HOSTILE, "asked for"]]
    weights = [["weights", "3 of 256 become 0"]]
    trial["recipe"]["precision"] = "mixed-bf16"
    trial["variant"]["passes"] = [
        {"name": "to-bf16", "exactness": "lossy", "matched": 9, "refusals": weights},
        {"name": "keep-list", "exactness": "bitwise", "matched": 3, "refusals": refusals},
        {"name": "late-dequantize", "exactness": "bitwise", "matched": 0, "refusals": [["gather", "no table"]]},
    ]
    return sample


def test_what_stays_in_fp32_is_told_with_its_reason(sample: dict[str, Any]) -> None:
    assert kept(sample) is None
    found = kept(with_keep_list(sample))
    assert found is not None
    assert [row[1:] for row in found.body][:2] == [
        ("weights", "3 of 256 become 0"),
        ("norm_1 and 1 more", "it adds up 384 terms"),
    ]
    assert len(found.body) == 3, "refusals of other passes are another matter"
    for text in (html(sample), markdown(sample), printed(sample)):
        assert "What stays in fp32, and why" in text
        assert "it adds up 384 terms" in " ".join(text.split())
        assert "\x1b" not in text
    assert "<script>alert" not in html(sample)


def test_without_a_keep_list_nothing_is_shown(sample: dict[str, Any]) -> None:
    for text in (html(sample), markdown(sample), printed(sample)):
        assert "stays in fp32" not in text
