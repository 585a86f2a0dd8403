from __future__ import annotations

from typing import Any

import pytest

from vengine.report import facts
from vengine.report.contenders import contenders, kind, optimized, winner


def test_the_original_is_first_and_the_bundle_last(sample: dict[str, Any]) -> None:
    found = contenders(sample)
    assert [c.role for c in found].count("original") == 1
    assert (found[0].role, found[-1].role) == ("original", "bundle")
    assert len(found) == len(sample["trials"]) + 2


def test_what_ships_is_found_by_digest_and_not_by_name(sample: dict[str, Any]) -> None:
    """Two trials are called "openvino int8-static": only the one in the bundle is marked."""
    shipped = [c.label for c in contenders(sample) if c.role == "shipped"]
    assert shipped == ["openvino bf16", "openvino int8-static · 2 streams · ≤ 512 tokens"]


def test_names_that_repeat_tell_what_differs_and_only_they(sample: dict[str, Any]) -> None:
    labels = [c.label for c in contenders(sample)]
    assert len(set(labels)) == len(labels)
    assert "openvino int8-static · 1 stream · uncut" in labels
    assert "onnxruntime fp32" in labels


def test_trials_that_are_the_same_are_numbered(sample: dict[str, Any]) -> None:
    sample["trials"] = [sample["trials"][0]] * 3
    labels = [c.label for c in contenders(sample)][1:4]
    assert labels == ["onnxruntime fp32", "onnxruntime fp32 #2", "onnxruntime fp32 #3"]


def test_where_nothing_ships_the_original_wins(failed: dict[str, Any]) -> None:
    assert not optimized(failed)
    assert winner(failed).role == "original"
    assert {kind(c) for c in contenders(failed)} == {"original", "refused"}


def test_variants_of_a_missed_target_are_not_called_shipped(sample: dict[str, Any]) -> None:
    """The bundle of the original has a variant too; `met` decides."""
    sample["met"] = False
    assert [c.role for c in contenders(sample) if c.role in ("shipped", "bundle")] == []


def test_what_was_not_measured_is_none(sample: dict[str, Any]) -> None:
    dead = next(c for c in contenders(sample) if c.status == "failed")
    assert (dead.ratio, dead.drop, dead.rss_bytes, dead.invariance) == (None, None, None, None)


@pytest.mark.parametrize(
    ("low", "high", "least", "text"),
    [
        (1, None, 1, "every call"),
        (None, None, None, "every call"),
        (1, 1024, 1, "1–1,024 tokens"),
        (1025, None, 1, "from 1,025 tokens"),
        (1, None, 2, "batches of 2 or more"),
        (512, None, 2, "batches of 2 or more, from 512 tokens"),
    ],
)
def test_ranges_of_tokens_in_words(low: int | None, high: int | None, least: int | None, text: str) -> None:
    assert facts.token_range({"tokens_min": low, "tokens_max": high, "batch_min": least}) == text


def test_the_facts_name_speed_accuracy_company_and_memory(sample: dict[str, Any]) -> None:
    found = {name: text.replace("\u00a0", " ") for name, text in facts.facts(sample)}
    assert found["speed"] == "4.73× (4.64–4.82), 79 % less time"
    assert found["accuracy"] == "spearman 0.8203 → 0.8229, drop −0.32 % of at most 1 %, 600 samples"
    assert "0.9998" in found["invariance"]
    assert found["peak memory"] == "481 MB → 203 MB"


def test_a_missed_target_claims_no_speed(failed: dict[str, Any]) -> None:
    assert "speed" not in dict(facts.facts(failed))


def test_what_was_refused_before_any_metric_has_no_drop(sample: dict[str, Any]) -> None:
    """Its verdict says 100 %, which nobody measured."""
    from vengine.report.line import summary

    trial = sample["trials"][0]
    trial["verdict"] = {"metric": "scale", "drop": {"value": 1.0, "low": 1.0, "high": 1.0}, "optimized": 0.0}
    row = next(c for c in contenders(sample) if c.role != "original")
    assert (row.drop, row.value) == (None, None)
    assert summary(sample)["trials"][0]["drop"] is None
    trial["verdict"]["metric"] = "accuracy"
    assert next(c for c in contenders(sample) if c.role != "original").drop is not None
    assert summary(sample)["trials"][0]["drop"] == 1.0


def test_two_profiles_of_one_recipe_in_the_bundle_are_told_apart(sample: dict[str, Any]) -> None:
    from vengine.report.contenders import shipped_labels
    from vengine.report.html import html
    from vengine.report.markdown import markdown

    one = {"engine": "openvino", "precision": "bf16", "tokens_min": 1, "profile": {"threads": 2, "streams": 1}}
    sample["variants"] = [one, one | {"profile": {"threads": 2, "streams": 2}}, one | {"precision": "fp32"}]
    names = shipped_labels(sample)
    assert names == ["openvino bf16 · 1 stream", "openvino bf16 · 2 streams", "openvino fp32"]
    assert all(name in html(sample) and name in markdown(sample) for name in names)


def test_a_classifiers_answers_stand_side_by_side_in_words(sample: dict[str, Any]) -> None:
    from vengine.report.html import html
    from vengine.report.markdown import markdown

    values = {"original": [1.25, -3.5], "optimized": [1.2, -3.4]}
    row = {"text": "a", **values, "original_answer": "happy 0.9912", "optimized_answer": "sad <b>"}
    sample["side_by_side"] = [row]
    page = html(sample)
    assert "happy 0.9912" in page
    assert "sad &lt;b&gt;" in page
    assert "+1.250" not in page
    assert "happy 0.9912 → sad" in markdown(sample)
    sample["side_by_side"] = [row | {"original_answer": "", "optimized_answer": ""}]
    assert "+1.250" in html(sample)


def test_nodes_in_float_tell_variants_apart() -> None:
    def trial(*passes: str) -> dict[str, Any]:
        recipe = {"engine": "openvino", "precision": "int8-static", "profile": {"threads": 2}, "passes": list(passes)}
        return {"recipe": recipe, "status": "ok"}

    tried = contenders({"trials": [trial(), trial("float:a"), trial("float:a", "float:b", "keep:c")]})[1:]
    assert [c.label for c in tried] == [
        "openvino int8-static",
        "openvino int8-static · 1 in float",
        "openvino int8-static · 2 in float",
    ]
