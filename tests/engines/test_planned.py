"""A plan over several sessions answers as one: the right variant, the right cuts, the right order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engines.making import ONE, fake, text_feeds

from vengine.engines.base import Feeds, Outputs, Session, get_engine
from vengine.engines.planned import PlannedSession, TextRunner, chunks, has_free_batch
from vengine.errors import EngineError, UsageError
from vengine.text import Tokenizer
from vengine.types import Plan, PlanEntry, RuntimeProfile, TensorSpec

pytestmark = pytest.mark.timed

TOKENS = [{"name": "hidden", "dtype": "float32", "shape": ["batch", "length", 4]}]


class Recorder:
    """A session that remembers the shapes of its calls and passes them on."""

    def __init__(self, inner: Session) -> None:
        self._inner = inner
        self.inputs, self.outputs, self.precision_run = inner.inputs, inner.outputs, inner.precision_run
        self.calls: list[tuple[int, ...]] = []
        self.rounds: list[int] = []

    def run(self, feeds: Feeds) -> Outputs:
        self.calls.append(feeds["input_ids"].shape)
        return self._inner.run(feeds)

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        self.rounds.append(len(many))
        return [self.run(feeds) for feeds in many]

    def close(self) -> None:
        self._inner.close()


def recorder(folder: Path, name: str, **behaviour: Any) -> Recorder:
    target = folder / name
    target.mkdir(exist_ok=True)
    return Recorder(get_engine("fake").open(fake(target, **behaviour), "fp32", ONE))


def one(digest: str = "only") -> Plan:
    return Plan(entries=(PlanEntry(variant=digest, tokens_min=1),))


def profile(chunk_tokens: int | None, streams: int = 1) -> RuntimeProfile:
    return RuntimeProfile(threads=2, chunk_tokens=chunk_tokens, streams=streams)


# batch, length, chunk_tokens, streams → rows of each run
CUTS = [
    (8, 256, 512, 1, [2, 2, 2, 2]),
    (8, 256, 1024, 2, [4, 4]),
    (9, 10, 40, 1, [3, 3, 3]),
    (10, 10, 40, 1, [3, 3, 4]),
    (1, 16, 512, 1, [1]),
    (4, 16, 64, 1, [4]),
    (4, 16, 63, 1, [2, 2]),
    (3, 600, 512, 1, [1, 1, 1]),
    (8, 16, None, 1, [8]),
    (8, 16, None, 2, [4, 4]),
    (1, 16, None, 2, [1]),
    (3, 16, 512, 2, [1, 2]),
    (6, 10, 20, 2, [1, 2, 1, 2]),
    (0, 5, 512, 1, [0]),
]


@pytest.mark.parametrize(("batch", "length", "limit", "streams", "rows"), CUTS)
def test_cuts(batch: int, length: int, limit: int | None, streams: int, rows: list[int]) -> None:
    assert [c.stop - c.start for c in chunks(batch, batch * length, limit, streams)] == rows


@given(st.integers(0, 70), st.integers(1, 600), st.none() | st.integers(1, 2048), st.integers(1, 4))
def test_cuts_cover_the_batch_within_the_limit(batch: int, length: int, limit: int | None, streams: int) -> None:
    cuts = chunks(batch, batch * length, limit, streams)
    assert [row for c in cuts for row in range(c.start, c.stop)] == list(range(batch))
    sizes = [c.stop - c.start for c in cuts]
    assert max(sizes) - min(sizes) <= 1
    assert limit is None or max(sizes) <= 1 or max(sizes) * length <= limit


@pytest.mark.parametrize("outputs", [None, TOKENS])
@pytest.mark.parametrize(("chunk", "calls"), [(None, [(7, 6)]), (12, [(1, 6), (2, 6), (2, 6), (2, 6)])])
def test_cutting_changes_nothing_but_the_calls(
    tmp_path: Path, outputs: Any, chunk: int | None, calls: list[tuple[int, int]]
) -> None:
    inner = recorder(tmp_path, "m", **({"outputs": outputs} if outputs else {}))
    feeds = text_feeds(7, 6)
    whole = inner.run(feeds)
    inner.calls.clear()
    answer = PlannedSession(one(), {"only": inner}, {"only": profile(chunk)}).run(feeds)
    assert sorted(inner.calls) == calls
    for name in whole:
        np.testing.assert_array_equal(answer[name], whole[name])


@pytest.mark.parametrize(
    ("shapes", "free"),
    [
        ([("batch", "length"), ("batch", 8)], True),
        ([("batch", 3, 4, 4), ("batch", 8)], True),
        ([("batch", "length"), (1, 8)], False),
        ([(1, "length"), (1, 8)], False),
        ([("batch", "length"), ("detections", 6)], False),
        ([("batch", "length"), ()], False),
        ([], False),
    ],
)
def test_only_a_free_batch_axis_everywhere_may_be_cut(shapes: list[tuple[int | str, ...]], free: bool) -> None:
    specs = [TensorSpec(name=str(i), dtype="float32", shape=shape) for i, shape in enumerate(shapes)]
    assert has_free_batch(specs[:1], specs[1:]) is free


def test_a_model_without_a_free_batch_is_run_whole(tmp_path: Path) -> None:
    inner = recorder(tmp_path, "m")
    fixed = (TensorSpec(name="sentence_embedding", dtype="float32", shape=("answers", 8)),)
    PlannedSession(one(), {"only": inner}, {"only": profile(5)}, outputs=fixed).run(text_feeds(4, 5))
    assert inner.calls == [(4, 5)]


def test_parts_that_do_not_fit_together_are_an_error_not_an_answer(tmp_path: Path) -> None:
    class Summing(Recorder):
        def run(self, feeds: Feeds) -> Outputs:
            return {"sentence_embedding": super().run(feeds)["sentence_embedding"].sum(axis=0, keepdims=True)}

    inner = Summing(get_engine("fake").open(fake(tmp_path), "fp32", ONE))
    with pytest.raises(EngineError, match="no row for each row"):
        PlannedSession(one(), {"only": inner}, {"only": profile(10)}).run(text_feeds(4, 5))


PLAN = Plan(
    entries=(
        PlanEntry(variant="a", tokens_min=1, tokens_max=16),
        PlanEntry(variant="b", tokens_min=17, tokens_max=99),
        PlanEntry(variant="a", tokens_min=100),
    )
)


@pytest.mark.parametrize(
    ("batch", "length", "variant"), [(1, 1, "a"), (1, 16, "a"), (1, 17, "b"), (9, 11, "b"), (10, 10, "a"), (8, 64, "a")]
)
def test_the_plan_picks_by_tokens(tmp_path: Path, batch: int, length: int, variant: str) -> None:
    members = {name: recorder(tmp_path, name) for name in "ab"}
    session = PlannedSession(PLAN, members)
    session.run(text_feeds(batch, length))
    assert session.variant_for(text_feeds(batch, length)) == variant
    assert {name: len(member.calls) for name, member in members.items()} == {
        variant: 1,
        "b" if variant == "a" else "a": 0,
    }


LADDERS = Plan(
    entries=(
        PlanEntry(variant="b", tokens_min=100, batch_min=2),
        PlanEntry(variant="a", tokens_min=1, batch_min=2),
        PlanEntry(variant="b", tokens_min=1, tokens_max=16),
        PlanEntry(variant="a", tokens_min=1),
    )
)


@pytest.mark.parametrize(
    ("batch", "length", "variant"), [(1, 16, "b"), (1, 17, "a"), (1, 200, "a"), (2, 50, "b"), (2, 8, "a"), (4, 4, "a")]
)
def test_single_texts_and_batches_are_two_ladders(tmp_path: Path, batch: int, length: int, variant: str) -> None:
    session = PlannedSession(LADDERS, {name: recorder(tmp_path, name) for name in "ab"})
    assert session.variant_for(text_feeds(batch, length)) == variant


def test_many_calls_come_back_in_order_and_each_variant_gets_its_own_in_one_go(tmp_path: Path) -> None:
    members = {"a": recorder(tmp_path, "a"), "b": recorder(tmp_path, "b", scale=2)}
    session = PlannedSession(PLAN, members, {"a": profile(60), "b": profile(60)})
    many = [text_feeds(b, length, seed) for seed, (b, length) in enumerate([(1, 5), (2, 20), (8, 16), (1, 16), (3, 9)])]
    answers = session.run_many(many)
    assert {name: member.rounds for name, member in members.items()} == {"a": [5], "b": [2]}
    for feeds, answer in zip(many, answers, strict=True):
        np.testing.assert_array_equal(answer["sentence_embedding"], session.run(feeds)["sentence_embedding"])


def test_no_calls_at_all(tmp_path: Path) -> None:
    assert PlannedSession(one(), {"only": recorder(tmp_path, "m")}, {"only": profile(8)}).run_many([]) == []


@pytest.mark.parametrize(("plan", "match"), [(one("gone"), "gone, which is not open"), (Plan(entries=()), "empty")])
def test_plans_that_cannot_be_followed(tmp_path: Path, plan: Plan, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        PlannedSession(plan, {"only": recorder(tmp_path, "m")})


@pytest.mark.parametrize("profiles", [None, {"a": profile(8), "b": profile(8)}])
@pytest.mark.parametrize(
    ("feeds", "match"),
    [
        ({"ids": np.ones((2, 3))}, "input 'attention_mask' is missing"),
        ({}, "input 'attention_mask' is missing"),
        ({**text_feeds(), "more": np.ones((2, 5))}, "no input 'more'"),
    ],
)
def test_wrong_feeds_are_refused_by_name(tmp_path: Path, profiles: Any, feeds: Any, match: str) -> None:
    members = {name: get_engine("fake").open(fake(tmp_path), "fp32", ONE) for name in "ab"}
    session = PlannedSession(PLAN, members, profiles)
    with pytest.raises(UsageError, match=match):
        session.run(feeds)
    with pytest.raises(UsageError, match=match):
        session.run_many([feeds, feeds])


WORDS = ["[PAD]", "[UNK]", *(f"w{i}" for i in range(40))]


def tokenizer(side: str = "Right") -> Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    backend = Backend(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    spec = json.loads(backend.to_str())
    return Tokenizer(json.dumps(spec), max_tokens=20)


TEXTS = [" ".join(f"w{(i * 7 + n) % 40}" for n in range(length)) for i, length in enumerate([3, 1, 12, 5, 5, 20, 2, 9])]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_tokens", [20, 60, None])
def test_texts_come_back_in_their_own_order(tmp_path: Path, side: Any, batch_tokens: int | None) -> None:
    inner = recorder(tmp_path, "m", outputs=[*TOKENS, {"name": "pooled", "dtype": "float32", "shape": ["batch", 8]}])
    runner = TextRunner(inner, tokenizer(), batch_tokens=batch_tokens, side=side)
    answer = runner.run_texts(TEXTS)
    assert all(batch * length <= max(20, batch_tokens or 512) for batch, length in inner.calls)
    assert isinstance(answer["pooled"], np.ndarray)
    assert answer["pooled"].shape == (len(TEXTS), 8)
    for index, text in enumerate(TEXTS):
        single = runner.run_texts([text])
        np.testing.assert_allclose(answer["pooled"][index], single["pooled"][0], atol=1e-6)
        np.testing.assert_allclose(answer["hidden"][index], single["hidden"][0], atol=1e-6)
        assert len(answer["hidden"][index]) == len(text.split()), "padding must be cut off"


def test_no_texts_and_empty_texts(tmp_path: Path) -> None:
    runner = TextRunner(recorder(tmp_path, "m"), tokenizer())
    assert runner.run_texts([]) == {"sentence_embedding": []}
    assert np.isfinite(runner.run_texts(["", "w1"])["sentence_embedding"]).all()


def test_a_model_of_one_length_gets_that_length(tmp_path: Path) -> None:
    inputs = [{"name": n, "dtype": "int64", "shape": ["batch", 24]} for n in ("input_ids", "attention_mask")]
    inner = recorder(tmp_path, "m", inputs=inputs)
    TextRunner(inner, tokenizer(), batch_tokens=96).run_texts(TEXTS)
    assert {length for _, length in inner.calls} == {24}


def test_the_runner_takes_the_sessions_chunk(tmp_path: Path) -> None:
    inner = recorder(tmp_path, "m")
    session = PlannedSession(one(), {"only": inner}, {"only": profile(24)})
    TextRunner(session, tokenizer()).run_texts(TEXTS)
    assert max(batch * length for batch, length in inner.calls) <= 24


@pytest.mark.parametrize("change", [lambda a: a[:-1], lambda a: np.concatenate([a, a[:1]])])
def test_lost_and_invented_answers_are_the_engines_error(tmp_path: Path, change: Any) -> None:
    class Careless(Recorder):
        def run(self, feeds: Feeds) -> Outputs:
            return {name: change(array) for name, array in super().run(feeds).items()}

    session = Careless(recorder(tmp_path, "m"))
    with pytest.raises(EngineError, match="one row each was expected"):
        TextRunner(session, tokenizer()).run_texts(TEXTS)
