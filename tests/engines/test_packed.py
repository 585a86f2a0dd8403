"""Packed sessions over real engines: the original's answers, no leak between neighbours, rows that are shared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.sources.making import config_of, write_model

from vengine.engines.base import Opening, get_engine
from vengine.engines.packed import PackedSession, shown
from vengine.engines.planned import PlannedSession
from vengine.errors import EngineError
from vengine.graph.export import export
from vengine.graph.export_packed import export_packed, ragged
from vengine.sources import open_source
from vengine.sources.huggingface import load_module
from vengine.types import Plan, PlanEntry, RuntimeProfile, Source

PROFILES = (
    RuntimeProfile(threads=1, row_tokens=32),
    RuntimeProfile(threads=2, row_tokens=64, chunk_tokens=128),
    RuntimeProfile(threads=2, streams=2, row_tokens=32, chunk_tokens=64),
)
NAN, HUGE = 7, 9  # token ids whose embeddings are poisoned


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Path, Path]:
    """A small BERT with a bare encoder's outputs, its ordinary and its packed graph."""
    folder = tmp_path_factory.mktemp("packed")
    source = open_source(write_model(folder / "m", config_of("bert"), "AutoModel"), cache=folder / "c")
    export_packed(source, folder / "packed")
    return source, export(source, folder / "plain").path, folder / "packed" / "model.onnx"


def session_of(path: Path, profile: RuntimeProfile, engine: str) -> PackedSession:
    opened = shown(Opening(engine=engine, path=path, precision="fp32", profile=profile).open(), profile)
    assert isinstance(opened, PackedSession)
    return opened


def original(source: Source, feeds: dict[str, Any]) -> dict[str, Any]:
    module = load_module(source.path)
    with torch.no_grad():
        return {k: v.numpy() for k, v in module(**{n: torch.from_numpy(a) for n, a in feeds.items()}).items()}


@pytest.mark.parametrize(
    ("engine", "profile"),
    [*(("openvino", profile) for profile in PROFILES), *(("onnxruntime", profile) for profile in PROFILES[:2])],
)
def test_the_original_answers(model: tuple[Source, Path, Path], engine: str, profile: RuntimeProfile) -> None:
    source, _, path = model
    session = session_of(path, profile, engine)
    for batch in (1, 2, 13):
        feeds = ragged(source, batch, 60, seed=batch)
        got, wanted, mask = session.run(feeds), original(source, feeds), feeds["attention_mask"] != 0
        np.testing.assert_allclose(got["pooler_output"], wanted["pooler_output"], atol=2e-5)
        np.testing.assert_allclose(got["last_hidden_state"][mask], wanted["last_hidden_state"][mask], atol=2e-5)
        assert not got["last_hidden_state"][~mask].any()


def poisoned(source: Source, folder: Path) -> Path:
    """The same model with two poisoned rows in its table of words."""
    from transformers import AutoModel

    model = AutoModel.from_pretrained(source.path)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[NAN] = float("nan")
        model.embeddings.word_embeddings.weight[HUGE] = 1e4
    folder.mkdir()
    for item in source.path.iterdir():
        (folder / item.name).write_bytes(item.read_bytes())
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("poison", [NAN, HUGE])
def test_a_poisoned_neighbour_changes_nothing(
    model: tuple[Source, Path, Path], tmp_path: Path, engine: str, poison: int
) -> None:
    source = open_source(poisoned(model[0], tmp_path / "m"), cache=tmp_path / "c")
    # The checks of the export never meet the poisoned tokens: the graph is written like any other.
    from vengine.graph import export_packed as packing

    packed = packing.load_packed(source.path, source.task)
    packing.write_program(packing._traced(packed, source), tmp_path, 20, packing._specs(packed))
    session = session_of(tmp_path / "model.onnx", RuntimeProfile(threads=1, row_tokens=64), engine)
    feeds = ragged(source, 6, 20, seed=3)
    for ids in (NAN, HUGE):
        feeds["input_ids"][feeds["input_ids"] == ids] = 11
    clean = session.run(feeds)
    bad = {name: array.copy() for name, array in feeds.items()}
    bad["input_ids"][2, 0] = poison
    got = session.run(bad)
    others = [0, 1, 3, 4, 5]
    assert np.isfinite(got["pooler_output"][others]).all()
    np.testing.assert_allclose(got["pooler_output"][others], clean["pooler_output"][others], atol=1e-5)
    assert np.isnan(got["pooler_output"][2]).any() == (poison == NAN)  # what the original gives, too


def test_a_text_packed_alone_and_in_company_is_the_same(model: tuple[Source, Path, Path]) -> None:
    source, _, path = model
    session = session_of(path, RuntimeProfile(threads=1, row_tokens=128), "openvino")
    feeds = ragged(source, 20, 24, seed=5)
    together = session.run(feeds)["pooler_output"]
    alone = [session.run({n: a[i : i + 1] for n, a in feeds.items()})["pooler_output"][0] for i in range(20)]
    np.testing.assert_allclose(together, np.stack(alone), atol=1e-5)


def test_many_calls_keep_their_order_and_an_empty_row_is_finite(model: tuple[Source, Path, Path]) -> None:
    source, _, path = model
    session = session_of(path, PROFILES[1], "onnxruntime")
    calls = [ragged(source, batch, 30, seed=batch) for batch in (3, 1, 5)]
    calls[0]["attention_mask"][1] = 0
    many = session.run_many(calls)
    for feeds, got in zip(calls, many, strict=True):
        want = session.run(feeds)
        np.testing.assert_allclose(got["pooler_output"], want["pooler_output"], atol=1e-5)
        assert np.isfinite(got["pooler_output"]).all()
    assert session.run_many([]) == []


@pytest.mark.parametrize(
    ("packed", "profile", "match"),
    [
        (True, RuntimeProfile(threads=1), "reads packed rows, and none were asked for"),
        (False, RuntimeProfile(threads=1, row_tokens=64), "can't read packed rows"),
    ],
)
def test_a_graph_and_a_profile_that_do_not_fit(
    model: tuple[Source, Path, Path], packed: bool, profile: RuntimeProfile, match: str
) -> None:
    path = model[2] if packed else model[1]
    bare = get_engine("onnxruntime").open(path, "fp32", profile)
    with pytest.raises(EngineError, match=match):
        shown(bare, profile)


def test_a_plan_gives_ragged_batches_to_the_packed_variant(model: tuple[Source, Path, Path]) -> None:
    source, plain, path = model
    profiles = {"plain": RuntimeProfile(threads=1), "packed": RuntimeProfile(threads=1, row_tokens=64)}
    sessions = {
        "plain": get_engine("onnxruntime").open(plain, "fp32", profiles["plain"]),
        "packed": session_of(path, profiles["packed"], "onnxruntime"),
    }
    plan = Plan(
        entries=(
            PlanEntry(variant="plain", tokens_min=1, batch_min=2, fill_min=0.95),
            PlanEntry(variant="packed", tokens_min=1, batch_min=2),
            PlanEntry(variant="plain", tokens_min=1),
        )
    )
    session = PlannedSession(plan, sessions, profiles)
    uneven, even = ragged(source, 8, 40, seed=1), ragged(source, 1, 40, seed=1)
    full = {name: np.repeat(array, 8, axis=0) for name, array in even.items()}
    assert [session.variant_for(feeds) for feeds in (uneven, full, even)] == ["packed", "plain", "plain"]
    want = sessions["plain"].run(uneven)["pooler_output"]
    np.testing.assert_allclose(session.run(uneven)["pooler_output"], want, atol=2e-5)
    assert len(session.record([uneven, even])) == 2
