"""The workload as calls: how many texts arrive together, how long they are, and what each side gets of it."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tune.making import texts, toy, workload

from vengine.errors import DataError
from vengine.tune.prepare import WORKLOAD, Prepared, prepare
from vengine.tune.trial import company_texts
from vengine.types import Recipe, RuntimeProfile, Sample, Settings, Source, TensorSpec, Workload

VARIANT = Recipe(engine="fake", precision="fp32", profile=RuntimeProfile(threads=1))


def prepared(folder: Path, **facts: Any) -> Prepared:
    return prepare(toy(folder, {}), workload(texts(80), **facts), Settings())


def sizes(work: list[list[dict[str, Any]]]) -> list[list[int]]:
    """Texts in each call of each burst."""
    return [[len(call["input_ids"]) for call in burst] for burst in work]


@pytest.mark.parametrize(
    ("facts", "original", "bundle"),
    [
        pytest.param({}, {1}, {1}, id="latency: one text after the other"),
        pytest.param({"concurrency": 4}, {4}, {4}, id="four arrive together"),
        pytest.param({"concurrency": 7}, {7}, {7}, id="seven arrive together"),
        pytest.param({"objective": "throughput"}, {32}, {128}, id="a list: batches against the whole"),
        pytest.param({"objective": "throughput", "concurrency": 16}, {16}, {16}, id="a list that comes by sixteen"),
        pytest.param({"objective": "memory", "concurrency": 2}, {2}, {2}, id="memory"),
    ],
)
def test_how_many_texts_are_there_at_once(
    facts: dict[str, Any], original: set[int], bundle: set[int], tmp_path: Path
) -> None:
    ready = prepared(tmp_path, **facts)
    as_it_arrives, as_packed = sizes(ready.work(WORKLOAD, None)), sizes(ready.work(WORKLOAD, VARIANT))
    assert {sum(burst) for burst in as_it_arrives} == original
    assert all(len(burst) == 1 for burst in as_it_arrives), "the original pads what arrives together"
    assert {sum(burst) for burst in as_packed} == bundle
    assert sum(map(sum, as_it_arrives)) == sum(map(sum, as_packed)), "both run the same texts"


def test_a_burst_is_packed_by_length_for_the_bundle(tmp_path: Path) -> None:
    ready = prepared(tmp_path, concurrency=16)

    def padding(recipe: Recipe | None) -> float:
        masks = [call["attention_mask"] for burst in ready.work(WORKLOAD, recipe) for call in burst]
        return sum(float((mask == 0).sum()) for mask in masks)

    packed = Recipe(engine="fake", precision="fp32", profile=RuntimeProfile(threads=1, chunk_tokens=64))
    assert padding(packed) < 0.7 * padding(None)


@pytest.mark.parametrize("lengths", [(3,), (5, 40), (64,), (200,)], ids=str)
def test_lengths_that_arrive_are_the_lengths_that_run(lengths: tuple[int, ...], tmp_path: Path) -> None:
    """Whatever the samples' own lengths are (here at most 24); a model of 64 tokens cuts what is longer."""
    ready = prepared(tmp_path, lengths=lengths)
    ran = {int(call["attention_mask"].sum()) for burst in ready.work(WORKLOAD, None) for call in burst}
    assert ran == {min(n, 64) for n in lengths}


def test_without_lengths_the_samples_own_quantiles_run(tmp_path: Path) -> None:
    ready = prepared(tmp_path)
    own = sorted(e.length for e in ready.encodings)
    ran = sorted(int(call["attention_mask"].sum()) for [call] in ready.work(WORKLOAD, None))
    assert (ran[0], ran[-1]) == (own[len(own) // 48], own[47 * len(own) // 48])
    assert abs(np.mean(ran) - np.mean(own)) < 1


def tensors(free: bool) -> tuple[Source, Workload]:
    shape: tuple[int | str, ...] = ("batch", 4) if free else (1, 4)
    source = Source(
        kind="onnx",
        name="t",
        location="t",
        path=Path("t"),
        task="tensor",
        digest="sha256:0",
        licence="unknown",
        parameters=1,
        weight_bytes=4,
        inputs=(TensorSpec(name="x", dtype="float32", shape=shape),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=shape),),
    )
    rows = tuple(Sample(tensors={"x": np.full(4, i, np.float32)}) for i in range(12))
    return source, Workload(samples=rows, concurrency=3)


@pytest.mark.parametrize(("free", "calls"), [(True, [3]), (False, [1, 1, 1])], ids=["free batch", "batch of one"])
def test_tensors_that_arrive_together(free: bool, calls: list[int]) -> None:
    source, traffic = tensors(free)
    work = prepare(source, traffic, Settings()).work(WORKLOAD, VARIANT)
    assert [[len(call["x"]) for call in burst] for burst in work] == [calls] * 8


def test_lengths_of_a_model_without_texts_are_refused() -> None:
    source, traffic = tensors(True)
    with pytest.raises(DataError, match="lengths"):
        prepare(source, Workload(samples=traffic.samples, lengths=(3,)), Settings())


def test_at_most_so_many_samples_are_verified_from_all_over_the_file(tmp_path: Path) -> None:
    source = toy(tmp_path, {})
    traffic = workload(texts(80))
    few = prepare(source, traffic, Settings(verify_samples=8))
    places = [traffic.samples.index(sample) for sample in few.samples]
    assert len(places) == 8
    assert max(places) >= 60


ALL_CELLS = ["1x16", "1x64", "1x128", "1x256", "8x16", "8x64", "8x128", "8x256"]


@pytest.mark.parametrize(
    ("tokens", "cells"),
    [
        pytest.param(math.inf, ALL_CELLS, id="fast: all of them"),
        pytest.param(4176, ALL_CELLS, id="just affordable"),
        pytest.param(4175, ALL_CELLS[:-1], id="the largest goes first"),
        pytest.param(1500, ["1x16", "1x64", "1x128", "1x256", "8x16", "8x64"], id="and the next"),
        pytest.param(1, ["1x16", "1x64", "8x16", "8x64"], id="two of each are kept"),
    ],
)
def test_a_slow_model_is_timed_on_smaller_cells(tokens: float, cells: list[str], tmp_path: Path) -> None:
    source = replace(toy(tmp_path, {}), max_tokens=256)
    ready = prepare(source, workload(texts(80)), Settings()).thinned(tokens)
    assert [cell.name for cell in ready.cells] == cells
    assert ready.cut(10).cells == ready.cells, "cutting what is verified doesn't bring them back"


@pytest.mark.parametrize(("concurrency", "least"), [(1, 8), (4, 12)])
def test_a_slow_model_is_timed_on_fewer_texts_of_the_same_lengths(concurrency: int, least: int, tmp_path: Path) -> None:
    ready = prepared(tmp_path, concurrency=concurrency)
    slow = ready.thinned(1)
    assert len(slow.drawn) == least < len(ready.drawn)
    means = [np.mean([text.length for text in p.arriving]) for p in (ready, slow)]
    assert means[1] == pytest.approx(means[0], rel=0.15)
    assert slow.samples == ready.samples


@pytest.mark.parametrize(("tokens", "count"), [(math.inf, 24), (1e6, 24), (600.0, None), (1.0, 8)])
def test_a_slow_model_keeps_fewer_texts_company(tokens: float, count: int | None, tmp_path: Path) -> None:
    found = company_texts(prepared(tmp_path).thinned(tokens))
    assert 8 <= found <= 24
    assert count is None or found == count
    assert count is not None or 8 < found < 24


def test_places_of_a_cut_are_where_its_samples_stand(tmp_path: Path) -> None:
    ready = prepared(tmp_path)
    for most in (7, 64, 500):
        assert tuple(ready.samples[i] for i in ready.places(most)) == ready.cut(most).samples
