"""A profile of a bundle is that of the variant which answers; a source's is that of the untouched original."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bundle.making import Toy, bundle
from tests.engines.making import WIDTH, layer

from vengine.api.profile import profile
from vengine.bundle.read import Bundle
from vengine.engines import ceilings
from vengine.engines.process import WorkerSession
from vengine.errors import BundleError, NoVariantForThisCpu, SourceError, UsageError

pytestmark = pytest.mark.timed

CEILINGS = ceilings.Ceilings(threads=1, fp32=ceilings.Ceiling(value=1e12, by="a test"))


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ceilings take seconds and are tested where they are measured; here, how many threads they were asked for."""
    asked: list[int] = []

    def told(_: WorkerSession, threads: int) -> ceilings.Ceilings:
        asked.append(threads)
        return CEILINGS

    monkeypatch.setattr(WorkerSession, "ceilings", told)
    return asked


def named(name: str, **more: Any) -> Mapping[str, Any]:
    return {"nodes": [{"name": name, "kind": "MatMul", "share": "products", "ms": 0.01}], **more}


def two(folder: Path) -> Bundle:
    """Small calls go to one variant, large ones to another, which is cut into chunks of 32 tokens."""
    toys = [
        Toy(precision="fp32", behaviour=named("small")),
        Toy(precision="bf16", behaviour=named("large"), chunk_tokens=32),
        Toy(precision="int8", behaviour=named("far"), isa=("no_such_flag",)),
    ]
    return bundle(folder, toys, plan=((0, 1, 64), (1, 65, None)), fallback=0)


@pytest.mark.parametrize(
    ("shape", "precision", "node", "runs"), [((2, 32), "fp32", "small", 1), ((4, 32), "bf16", "large", 4)]
)
def test_the_plan_picks_the_variant(
    tmp_path: Path, shape: tuple[int, int], precision: str, node: str, runs: int
) -> None:
    made = two(tmp_path)
    found = profile(made.root, shape)
    assert (found["kind"], found["engine"], found["precision"]) == ("bundle", "fake", precision)
    assert found["variant"] in {v.digest for v in made.manifest.content.variants}
    assert found["digest"] == made.digest
    assert [(n["name"], n["runs"]) for n in found["nodes"]] == [(node, runs)]
    assert {tuple(i["shape"]) for i in found["inputs"]} == {shape}


def test_one_may_ask_for_another_variant(tmp_path: Path) -> None:
    made = two(tmp_path)
    assert profile(made.root, (1, 8), variant="fake bf16")["nodes"][0]["name"] == "large"
    with pytest.raises(BundleError, match="none of the bundle's variants"):
        profile(made.root, (1, 8), variant="fake fp8")
    with pytest.raises(NoVariantForThisCpu, match="no_such_flag"):
        profile(made.root, (1, 8), variant="fake int8")


@pytest.mark.parametrize(("threads", "told"), [(None, 1), (3, 3)])
def test_the_ceilings_get_the_threads_of_the_nodes(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch, threads: int | None, told: int
) -> None:
    monkeypatch.setattr("vengine.api.profile.this_machine", lambda: two(tmp_path / "m").manifest.evidence.machine)
    found = profile(two(tmp_path).root, (1, 8), threads=threads)
    assert found["threads"] == told
    assert measured == [told]


def test_a_call_longer_than_the_model_takes_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"65 tokens, and the longest text of toy has 64"):
        profile(two(tmp_path).root, (1, 65))


def test_a_damaged_variant_is_not_run(tmp_path: Path) -> None:
    made = two(tmp_path)
    (path,) = (p for p in made.root.rglob("model.json") if "small" in p.read_text())
    text = path.read_text()
    path.write_text(text.replace("small", "smell"))
    with pytest.raises(BundleError, match="not what its digest says"):
        profile(made.root, (1, 8))
    assert profile(made.root, (4, 32))["nodes"][0]["name"] == "large"  # whose files are whole


def test_a_source_runs_as_its_author_meant_it(tmp_path: Path) -> None:
    found = profile(layer(tmp_path / "m.onnx"), (4, 32), threads=1, cache=tmp_path / "cache")
    assert (found["kind"], found["engine"], found["precision"]) == ("source", "onnxruntime", "reference")
    assert found["precision_run"] == "fp32"
    (product,) = [n for n in found["nodes"] if n["share"] == "products"]
    assert product["flops"] == 2 * 4 * 32 * WIDTH * WIDTH
    assert product["of_roof"] == pytest.approx(product["flops_per_s"] / 1e12)
    assert sum(s["part"] for s in found["shares"]) + found["gap_part"] == pytest.approx(1)
    assert found["gap_ms"] >= 0
    assert found["plain_ms"]["low"] <= found["plain_ms"]["value"] <= found["plain_ms"]["high"]


@pytest.mark.parametrize("what", ["bundle", "source"])
def test_the_trace_is_one_call(tmp_path: Path, what: str) -> None:
    target = two(tmp_path).root if what == "bundle" else layer(tmp_path / "m.onnx")
    place = tmp_path / "out.json"
    for _ in range(2):  # a trace of ours may be replaced
        found = profile(target, (4, 32), threads=1, trace=place, cache=tmp_path / "cache")
    assert found["trace"] == str(place)
    events = [e for e in json.loads(place.read_text())["traceEvents"] if e["ph"] == "X"]
    (whole,) = (e for e in events if e["cat"] == "call")
    nodes = [e for e in events if e is not whole]
    assert {e["name"] for e in nodes} == {n["name"] for n in found["nodes"]}
    assert all(e["ts"] >= 0 and e["dur"] >= 0 and e["ts"] + e["dur"] <= whole["dur"] for e in nodes)
    assert not list(tmp_path.glob(".*.part"))


PLACES = [("nowhere/t.json", "doesn't exist"), (".", "no trace lies where"), ("mine.txt", "no trace lies where")]


@pytest.mark.parametrize(("place", "match"), PLACES)
def test_a_trace_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, match: str
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    monkeypatch.setattr(WorkerSession, "_start", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(UsageError, match=match):
        profile(two(tmp_path).root, (1, 8), trace=tmp_path / place)
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shut").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="can't be written to"):
        profile(two(tmp_path).root, (1, 8), trace=tmp_path / "shut" / "t.json")


@pytest.mark.parametrize(("place", "match"), [("nowhere/p.html", "doesn't exist"), ("mine.txt", "no HTML page")])
def test_a_page_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, match: str
) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    monkeypatch.setattr(WorkerSession, "_start", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(UsageError, match=match):
        profile(two(tmp_path).root, (1, 8), page=tmp_path / place)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_the_page_is_written_whole(tmp_path: Path) -> None:
    for _ in range(2):  # a page may be replaced
        found = profile(two(tmp_path / "m").root, (1, 8), page=tmp_path / "p.html")
        shutil.rmtree(tmp_path / "m")
    assert found["page"] == str(tmp_path / "p.html")
    text = (tmp_path / "p.html").read_text()
    assert text.lower().startswith("<!doctype html")
    assert text.rstrip().endswith("</html>")
    assert "toy.vengine" in text


def test_a_source_has_no_variants(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only a bundle has variants"):
        profile(layer(tmp_path / "m.onnx"), (1, 8), variant="onnxruntime fp32")


@pytest.mark.parametrize(("name", "match"), [("words.txt", "no kind of model"), ("gone", "there is no")])
def test_what_is_neither_bundle_nor_model(tmp_path: Path, name: str, match: str) -> None:
    (tmp_path / "words.txt").write_text("hello")
    with pytest.raises(SourceError, match=match):
        profile(tmp_path / name, cache=tmp_path / "cache")


def test_profiling_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.chdir(folder)
    profile(layer(tmp_path / "m.onnx"), (1, 8), threads=1, cache=tmp_path / "cache")
    # onnxruntime leaves `.ses` there whenever it is imported, profile or not.
    assert [path.name for path in folder.iterdir() if path.name != ".ses"] == []


def test_openvino_is_profiled_in_a_bundle(tmp_path: Path) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed; pip install 'vengine[openvino]'")
    from tests.bundle.test_real_engines import WIDTH as SIZE
    from tests.bundle.test_real_engines import tiny

    found = profile(tiny(tmp_path, (("openvino", "fp32", ()),)).root, (64, 1))
    (product,) = [n for n in found["nodes"] if n["share"] == "products"]
    assert (product["kind"], product["output"], product["flops"]) == (
        "FullyConnected",
        [64, SIZE],
        2 * 64 * SIZE * SIZE,
    )
    assert np.isfinite(product["of_roof"])
