"""`optimize` as a library: one question one answer, no argument dropped, the task that was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.making import write_bert, write_onnx, write_sentence_layout
from tests.tune.making import play, texts, toy, workload

from vengine.api.optimize import optimize
from vengine.engines.base import get_engine
from vengine.errors import UsageError
from vengine.graph.export import export
from vengine.sources import example_feeds, open_source
from vengine.tune.build import Workshop
from vengine.tune.original import kept_variant, original_variant
from vengine.tune.trial import open_worker
from vengine.types import Budget, Recipe, RuntimeProfile, Sample, Settings, Workload
from vengine.workload.identity import digest_samples

pytestmark = pytest.mark.timed

ONE = RuntimeProfile(threads=1)
SHORT = Settings(time_seconds=2, threads=1)


def bert(folder: Path, factory: str = "AutoModel", **more: Any) -> Path:
    folder.mkdir()
    return write_bert(folder, factory, num_hidden_layers=1, **more)


def test_the_same_inputs_give_the_same_variants_in_two_fresh_caches(tmp_path: Path) -> None:
    model = bert(tmp_path / "bert")
    write_sentence_layout(model, {"pooling_mode_mean_tokens": True}, "Normalize")
    digests = []
    for cache in (tmp_path / "one", tmp_path / "two"):
        source = open_source(model, cache=cache)
        graph = export(source, cache / "export").path
        feeds = [example_feeds(source, 1, 8 + i, seed=i) for i in range(8)]
        shop = Workshop(model=graph, directory=cache / "built", calibration=feeds, transformer=True)
        kinds = (("onnxruntime", "fp32"), ("openvino", "int8-static"), ("onnxruntime", "int8-dynamic"))
        recipes = [Recipe(engine=e, precision=p, profile=ONE) for e, p in kinds]
        digests.append([shop.build(recipe).digest for recipe in recipes])
    assert digests[0] == digests[1]
    assert len(set(digests[0])) == 3


def test_the_task_reaches_the_original(tmp_path: Path) -> None:
    """The folder says that it is a classifier; who asks for its features must get them."""
    folder = bert(tmp_path / "bert", "AutoModelForSequenceClassification")
    assert open_source(folder, cache=tmp_path).outputs[0].name == "logits"
    source = open_source(folder, cache=tmp_path, task="features")
    with open_worker(original_variant(source, 1), None, source.task) as worker:
        assert "last_hidden_state" in worker.run(example_feeds(source, 2, 5))


def test_a_task_goes_all_the_way_when_the_original_ships(tmp_path: Path) -> None:
    import contextlib

    from vengine.api.run import run

    model = bert(tmp_path / "bert", "AutoModelForSequenceClassification")
    report = optimize(
        model,
        data=workload(texts(24)),
        task="features",
        settings=Settings(time_seconds=2, threads=1, engines=("torch",)),
        out=tmp_path / "kept.vengine",
        cache=tmp_path / "cache",
    )
    assert (report["met"], report["task"]) == (False, "features")
    assert report["side_by_side"][0]["output"] == "last_hidden_state"
    assert report["side_by_side"][0]["cosine"] == pytest.approx(1.0, abs=1e-6)
    with contextlib.suppress(UsageError):
        assert "last_hidden_state" in run(tmp_path / "kept.vengine", ["the red car"])["outputs"]


def test_a_kept_onnx_model_ships_its_checked_copy_with_all_optimisation_off(tmp_path: Path) -> None:
    source = open_source(write_onnx(tmp_path / "small.onnx"), cache=tmp_path)
    variant = kept_variant(source, export(source, tmp_path / "export").path, 1)
    assert (variant.recipe.engine, variant.recipe.precision) == ("onnxruntime", "reference")
    path = variant.directory / variant.entry
    feeds = {"x": np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)}
    copy, given = (get_engine("onnxruntime").open(p, "reference", ONE).run(feeds)["y"] for p in (path, source.path))
    assert path.parent == tmp_path / "export"
    assert np.array_equal(copy, given)


# --- nothing is dropped in silence --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [3, 4]}, "lengths was given beside a Workload"),
        ({"concurrency": 8}, "concurrency was given beside a Workload"),
        ({"objective": "memory"}, "objective was given beside a Workload"),
        ({"settings": Settings(engines=("openvin",))}, "openvin"),
        ({"settings": Settings(precision="int2")}, "int2"),
        ({"settings": Settings(level="safe", precision="int8")}, "lossy"),
        ({"settings": Settings(precision="fp32", op_types_to_quantize=("MatMul",))}, "no effect"),
        ({"settings": Settings(keep_io_types=False)}, "only the precision 'fp16' does"),
        ({"settings": Settings(time_seconds=0)}, "no trial"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_arguments_that_would_have_no_effect_are_refused(
    arguments: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        optimize(toy(tmp_path, {}), data=workload(), out=tmp_path / "x.vengine", cache=tmp_path, **arguments)
    assert not (tmp_path / "x.vengine").exists()


@pytest.mark.parametrize(
    ("field", "values"),
    [("concurrency", (1, 4)), ("objective", ("latency", "memory")), ("lengths", ((), (3,)))],
    ids=["concurrency", "objective", "lengths"],
)
def test_another_question_gets_its_own_journal(
    field: str, values: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch)  # no candidates: only the question's place matters here
    for value in values:
        optimize(
            toy(tmp_path, {}),
            data=Workload(samples=workload().samples, digest="sha256:same", **{field: value}),
            settings=SHORT,
            out=tmp_path / "x.vengine",
            cache=tmp_path / "cache",
        )
    assert len(list((tmp_path / "cache" / "work").iterdir())) == 2


def test_samples_in_memory_are_named_by_every_element() -> None:
    """A printed array of ten thousand elements shows six of them."""

    def samples(value: float) -> list[Sample]:
        array = np.zeros(10_000, np.float32)
        array[5_000] = value
        return [Sample(tensors={"x": array}), Sample(text="a")]

    assert digest_samples(samples(0)) == digest_samples(samples(0))
    assert digest_samples(samples(0)) != digest_samples(samples(1))
    assert digest_samples([Sample(text="a")]) != digest_samples([Sample(text="a", label="b")])


def test_a_model_of_several_labels_from_its_data_to_its_verdict(tmp_path: Path) -> None:
    """Random weights, and labels that are the original's own answers: what ships must give the same sets."""
    import json

    from tests.sources.making import WORDS

    names = ["red", "blue", "green", "grey"]
    model = bert(
        tmp_path / "bert",
        "AutoModelForSequenceClassification",
        problem_type="multi_label_classification",
        id2label=dict(enumerate(names)),
        label2id={name: i for i, name in enumerate(names)},
    )
    source = open_source(model, cache=tmp_path)
    assert (source.several_labels, source.labels) == (True, tuple(names))
    written = [" ".join((WORDS * 3)[i % 7 : i % 7 + 2 + i % 11]) + f" {WORDS[i % len(WORDS)]}" for i in range(48)]
    data = tmp_path / "sets.jsonl"
    rows = [{"text": text, "labels": [names[i % 4], names[(i + 1) % 4]][: i % 3]} for i, text in enumerate(written)]
    data.write_text("\n".join(map(json.dumps, rows)))
    report = optimize(
        model,
        data=data,
        settings=Settings(time_seconds=2, threads=1, engines=("onnxruntime",), level="safe"),
        out=tmp_path / "sets.vengine",
        cache=tmp_path / "cache",
    )
    verdicts = [trial["verdict"] for trial in report["trials"] if trial["verdict"]]
    assert verdicts, report["refused"]
    assert {v["metric"] for v in verdicts} == {"micro_f1"}
    assert all(v["outcome"] == "pass" for v in verdicts)  # equal to rounding
    assert {v["samples"] for v in verdicts} == {48}
    assert "logits" in report["side_by_side"][0]["output"]
    assert set(report["side_by_side"][0]["original_answer"].split(", ")) <= {*names, "none"}
    watched = report["breakdown"]
    assert [row["who"] for row in watched] == ["original", "bundle"]
    assert watched[1]["engine"] == "onnxruntime"
    for row in watched:
        told = sum(share["ms"] for share in row["shares"]) + row["gap_ms"]
        assert told == pytest.approx(row["wall_ms"], rel=0.05)
        assert row["nodes"][0]["ms"] >= row["nodes"][-1]["ms"] > 0


@pytest.mark.parametrize("metric", ["ndcg@3", None])
def test_passages_of_queries_are_judged_by_their_order(
    metric: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import json

    play(monkeypatch, "good")
    found = texts(90)
    data = tmp_path / "ranking.jsonl"
    groups = [found[i : i + 3] for i in range(0, 90, 3)]
    rows = [{"query": g[0], "passages": [*g[1:], g[0]], "relevance": [0, 0, 2]} for g in groups]
    data.write_text("\n".join(map(json.dumps, rows)))
    report = optimize(
        toy(tmp_path, {"good": {"delay_ms": 0.2}}),
        data=data,
        budget=Budget(metric=metric),
        settings=Settings(time_seconds=5, threads=1),
        out=tmp_path / "x.vengine",
        cache=tmp_path / "cache",
    )
    (trial,) = report["trials"]
    assert trial["verdict"]["metric"] == (metric or "ndcg@10")
    assert (trial["verdict"]["original"], trial["verdict"]["samples"]) == (1.0, 30)
    assert report["accuracy"]["verdict"] == "pass"
