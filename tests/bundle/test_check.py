"""`vengine verify` and `vengine run`: what they find, in processes of their own, and what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bundle.making import BUILDER, FEEDS, Toy, bundle, honest, tokenizer

from vengine.api.answers import answers
from vengine.api.run import run
from vengine.api.verify import verify
from vengine.bundle.check import verify_bundle
from vengine.bundle.golden import GOLDEN_PAIRS, GOLDEN_TEXTS, text_golden
from vengine.bundle.read import open_bundle
from vengine.errors import BundleError, DataError, UsageError
from vengine.types import TensorSpec

NAMES = ("input_ids", "attention_mask")
FP32 = Toy()
HERE: list[tuple[str, Toy, str, str]] = [
    ("honest", Toy(precision="bf16", behaviour={"delay_ms": 0.5}), "ok", ""),
    ("chatty", Toy(precision="bf16", behaviour={"print_on": 1}), "ok", ""),
    ("wrong", Toy(precision="bf16", behaviour={"scale": 3}), "refused", "golden outputs disagree"),
    ("NaN", Toy(precision="bf16", behaviour={"nan_on": 1}), "refused", "NaN"),
    ("crashes", Toy(precision="bf16", behaviour={"crash_on": 1}), "failed", "SIGSEGV"),
    ("crashes while it is timed", Toy(precision="bf16", behaviour={"crash_on": 5}), "failed", "SIGSEGV"),
    ("illegal instruction at load", Toy(behaviour={"crash_on": "open", "crash_with": "SIGILL"}), "failed", "SIGILL"),
    ("needs a flag", Toy(precision="bf16", isa=("no_such_flag",)), "skipped", "needs no_such_flag"),
    ("needs an engine", Toy(engine="warp"), "skipped", "no engine 'warp'"),
]


@pytest.mark.parametrize(("toy", "status", "says"), [row[1:] for row in HERE], ids=[row[0] for row in HERE])
def test_each_variant_is_proved_or_replaced(tmp_path: Path, toy: Toy, status: str, says: str) -> None:
    made = bundle(tmp_path, (toy, FP32))
    result = verify(made.root)
    first, second = result["variants"]
    assert (first["status"], second["status"]) == (status, "ok")
    assert says in first["reason"]
    assert says in result["reason"]
    assert result["ok"] is True
    assert result["fallen_back"] is (status != "ok")
    assert [e["variant"] for e in result["plan"]] == [(first if status == "ok" else second)["digest"]]
    assert (first["ms"] is not None) is (status == "ok")
    json.dumps(result, allow_nan=False)


def test_nothing_runs(tmp_path: Path) -> None:
    result = verify(bundle(tmp_path, (Toy(isa=("no_such_flag",)), Toy(behaviour={"scale": 2}))).root)
    assert result["ok"] is False
    assert result["plan"] == []
    assert "no_such_flag" in result["reason"]
    assert "golden outputs disagree" in result["reason"]


def test_a_refusal_outside_the_plan_is_no_reason(tmp_path: Path) -> None:
    result = verify(bundle(tmp_path, (FP32, Toy(precision="bf16", behaviour={"scale": 2})), fallback=0).root)
    assert (result["ok"], result["fallen_back"], result["reason"]) == (True, False, "")


def test_the_builders_machine_is_held_to_the_tighter_tolerance(tmp_path: Path) -> None:
    """A difference between the two tolerances passes on another CPU and not on the one that built the bundle."""
    made = bundle(tmp_path, (Toy(behaviour={"noise": 0.002}), FP32))
    elsewhere = replace(BUILDER, cpu="Another CPU")
    assert [c.status for c in verify_bundle(made, machine=BUILDER).checked] == ["refused", "ok"]
    assert [c.status for c in verify_bundle(made, machine=elsewhere).checked] == ["ok", "ok"]


def test_damage_ends_the_check(tmp_path: Path) -> None:
    root = bundle(tmp_path).root
    (root / "report.html").write_text("<P>report</p>")
    with pytest.raises(BundleError, match=r"report\.html"):
        verify(root)


def with_texts(folder: Path, **more: Any) -> Path:
    """A bundle with a tokenizer and golden texts."""
    file = tokenizer(folder / "tok")
    texts, feeds = text_golden(file, names=NAMES, pad_id=0, max_tokens=64, pairs=False)
    return bundle(folder, tokenizer=file, texts=texts, feeds=feeds, **more).root


def test_the_tokenizer_is_part_of_what_is_verified(tmp_path: Path) -> None:
    assert verify(with_texts(tmp_path / "good"))["ok"]
    file = tokenizer(tmp_path / "tok")
    texts, feeds = text_golden(file, names=NAMES, pad_id=0, max_tokens=64, pairs=False)
    file.write_text(file.read_text().replace('"hello":2', '"hellu":2').replace('"hello": 2', '"hellu": 2'))
    file.write_text(file.read_text().replace('"the"', '"The"'))
    other = bundle(tmp_path / "other", tokenizer=file, texts=texts, feeds=feeds).root
    with pytest.raises(BundleError, match="the tokenizer gives other input_ids"):
        verify(other)


@pytest.mark.parametrize("pairs", [False, True])
def test_golden_texts_cover_one_word_and_a_long_one(tmp_path: Path, pairs: bool) -> None:
    texts, feeds = text_golden(tokenizer(tmp_path), names=NAMES, pad_id=0, max_tokens=16, pairs=pairs)
    assert texts == (GOLDEN_PAIRS if pairs else tuple((t,) for t in GOLDEN_TEXTS))
    lengths = feeds["attention_mask"].sum(axis=1)
    assert feeds["input_ids"].shape == (len(texts), 16)
    assert lengths.max() == 16
    assert lengths.min() < 16


def test_run_texts(tmp_path: Path) -> None:
    root = with_texts(tmp_path, toys=(Toy(precision="bf16", isa=("no_such_flag",)), FP32))
    result = run(root, ["hello", "the invoice"])
    made = open_bundle(root)
    assert result["outputs"]["sentence_embedding"].shape == (2, 8)
    assert (result["engine"], result["precision"]) == ("fake", "fp32")
    assert result["variant"] == made.manifest.content.fallback
    assert result["digest"] == made.digest
    assert [e["status"] for e in result["excluded"]] == ["skipped"]
    assert result["ms"] > 0
    assert result["answers"] == []


def test_run_tells_which_variants_answered(tmp_path: Path) -> None:
    file = tokenizer(tmp_path / "tok")
    toys = (Toy(precision="bf16", chunk_tokens=8), FP32)
    made = bundle(tmp_path, toys, plan=((0, 1, 8), (1, 9, None)), tokenizer=file)
    first, second = (v.digest for v in made.manifest.content.variants)
    assert run(made, ["hello"])["variants"] == [first]
    assert run(made, ["hello how do i " * 3])["variants"] == [second]
    assert set(run(made, ["hello", "hello how do i " * 3])["variants"]) == {first, second}


@pytest.mark.parametrize("form", ["arrays", "file"])
def test_run_tensors(tmp_path: Path, form: str) -> None:
    root = bundle(tmp_path).root
    np.savez(tmp_path / "feeds.npz", **FEEDS)
    result = run(root, tensors=FEEDS if form == "arrays" else tmp_path / "feeds.npz")
    assert np.array_equal(result["outputs"]["sentence_embedding"], honest(FEEDS)["sentence_embedding"])


def _pickled(path: Path) -> None:
    np.savez(path, input_ids=np.array([{}], dtype=object))


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda p: None, "No such file"),
        (lambda p: p.write_text("hello"), "not a zip"),
        (_pickled, "Object arrays cannot be loaded"),
    ],
)
def test_tensors_that_cannot_be_read(tmp_path: Path, write: Any, says: str) -> None:
    root, file = bundle(tmp_path).root, tmp_path / "feeds.npz"
    write(file)
    with pytest.raises(DataError, match=says):
        run(root, tensors=file)


@pytest.mark.parametrize(
    ("texts", "pairs", "tensors", "says"),
    [
        ([], None, None, "texts or tensors"),
        (["a"], None, FEEDS, "texts or tensors"),
        (["a", "b"], ["c"], None, "2 texts but 1 second"),
        ([("a", "b")], ["c"], None, "1 texts but 1 second"),
    ],
)
def test_wrong_calls(tmp_path: Path, texts: Any, pairs: Any, tensors: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        run(tmp_path / "any", texts, pairs, tensors)


def test_answers_of_a_classifier(tmp_path: Path) -> None:
    outputs = (TensorSpec(name="logits", dtype="float32", shape=("batch", 3)),)
    made = bundle(tmp_path, task="classification", labels=("no", "maybe"), outputs=outputs)
    logits = np.array([[0.0, 2.0, -1.0], [1000.0, 0.0, 2000.0]], dtype=np.float32)
    first, second = answers(made.manifest.content, {"logits": logits})
    assert first["label"] == "maybe"
    assert list(first["scores"]) == ["maybe", "no", "2"]
    assert sum(first["scores"].values()) == pytest.approx(1)
    assert first["score"] == pytest.approx(np.exp(2) / (1 + np.exp(2) + np.exp(-1)))
    assert (second["label"], second["score"]) == ("2", 1.0)


def test_answers_of_other_tasks(tmp_path: Path) -> None:
    content = bundle(tmp_path, labels=("O", "NAME")).manifest.content
    scored = answers(replace(content, task="scoring"), {"logits": np.array([[0.5], [-2.0]])})
    assert scored == [{"score": 0.5}, {"score": -2.0}]
    tagged = answers(replace(content, task="token-classification"), {"logits": [np.array([[9.0, 0.0], [0.0, 9.0]])]})
    assert [token["label"] for token in tagged[0]["tokens"]] == ["O", "NAME"]
    assert answers(content, {"sentence_embedding": np.zeros((1, 8))}) == []
