"""A model that looks at its neighbours, its padding or its place is caught; one that doesn't passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from vengine.errors import DataError, EngineError
from vengine.text import Encoding
from vengine.types import Invariance, Task
from vengine.verify.invariance import ALWAYS, COST, PERHAPS, bears, invariance, invariance_of_tensors

NAMES = ("input_ids", "attention_mask")
Feeds = Mapping[str, np.ndarray]
RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal(0, 1, (100, 16))
TABLE[0] = 3.0  # the padding token is loud: whoever forgets the mask hears it


def texts(count: int = 40) -> list[Encoding]:
    lengths = RANDOM.integers(2, 30, count)
    ids = [RANDOM.integers(1, 100, n) for n in lengths]
    return [Encoding(ids=i, type_ids=np.zeros_like(i), truncated=False) for i in ids]


def mean(feeds: Feeds) -> np.ndarray:
    """Zero for a row without a token."""
    mask = feeds["attention_mask"][..., None]
    return (TABLE[feeds["input_ids"]] * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-30)


def one_scale(feeds: Feeds) -> np.ndarray:
    """Like dynamic int8: one scale for the whole batch, and few steps."""
    rows = TABLE[feeds["input_ids"]]
    step = np.abs(rows).max() / 7
    mask = feeds["attention_mask"][..., None]
    return (np.round(rows / step) * step * mask).sum(axis=1) / mask.sum(axis=1)


def listens(feeds: Feeds) -> np.ndarray:
    rows = mean(feeds)
    return rows + 0.3 * rows.mean(axis=0)


MODELS: dict[str, tuple[Callable[[Feeds], np.ndarray], Task, bool]] = {
    "mean over the mask": (lambda f: unit(mean(f)), "embedding", True),
    "hidden states": (lambda f: TABLE[f["input_ids"]], "features", True),
    "logits": (lambda f: mean(f) @ TABLE[:4].T, "classification", True),
    "float noise": (lambda f: unit(mean(f)) + 1e-4 * np.random.default_rng().normal(0, 1, 16), "embedding", True),
    "no mask": (lambda f: unit(TABLE[f["input_ids"]].mean(axis=1)), "embedding", False),
    "first row for all": (lambda f: unit(mean(f)[:1].repeat(len(f["input_ids"]), axis=0)), "embedding", False),
    "rows reversed": (lambda f: unit(mean(f)[::-1]), "embedding", False),
    "one scale a batch": (lambda f: unit(one_scale(f)), "embedding", False),
    "listens to neighbours": (lambda f: unit(listens(f)), "embedding", False),
    "scaled by the batch": (lambda f: mean(f) * (1 + 0.1 * len(f["input_ids"])), "classification", False),
    "place in the batch": (lambda f: unit(mean(f)) + 0.1 * np.arange(len(f["input_ids"]))[:, None], "embedding", False),
    "hidden states shifted": (lambda f: TABLE[(f["input_ids"] + f["input_ids"].shape[1]) % 100], "features", False),
    "score with an offset": (lambda f: 1000 + mean(f)[:, :1], "scoring", True),
    "score moved by the batch": (lambda f: 1000 + mean(f)[:, :1] + 0.1 * len(f["input_ids"]), "scoring", False),
    "NaN in company": (lambda f: np.where(len(f["input_ids"]) > 1, np.nan, mean(f)), "embedding", False),
}


def check(model: Callable[[Feeds], np.ndarray], task: Task, encodings: list[Encoding], **more: object) -> Invariance:
    return invariance(lambda f: {"out": model(f)}, encodings, NAMES, 0, task, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_company_must_not_matter(name: str) -> None:
    model, task, sound = MODELS[name]
    found = check(model, task, texts())
    assert found.outcome == ("pass" if sound else "fail"), found
    assert -1 <= found.worst <= 1 + 1e-12


@pytest.mark.parametrize(
    ("model", "moves"),
    [
        (lambda f: unit(TABLE[f["input_ids"]].mean(axis=1)), "alone_vs_padded"),
        (lambda f: unit(listens(f)), "alone_vs_batch"),
        (lambda f: unit(listens(f)), "alone_vs_neighbours"),
    ],
)
def test_the_comparison_that_moves_is_told_apart(model: Callable[[Feeds], np.ndarray], moves: str) -> None:
    assert getattr(check(model, "embedding", texts()), moves) < 0.999


def sorted_rows_only(feeds: Feeds) -> np.ndarray:
    """Right only where rows come by rising or by falling length, as they do in the other batches."""
    lengths = feeds["attention_mask"].sum(axis=1)
    steps = np.diff(lengths[lengths > 0])
    return unit(mean(feeds)) * (1 if (steps >= 0).all() or (steps <= 0).all() else -1)


def poisoned(feeds: Feeds) -> np.ndarray:
    """A softmax over nothing gives NaN, which a shared scale spreads over the whole batch."""
    rows = mean(feeds)
    return rows * np.where(feeds["attention_mask"].any(axis=1).all(), 1.0, np.nan)


def counts_from_the_left(feeds: Feeds) -> np.ndarray:
    """Positions are counted over the padding, as in BERT."""
    place = 1 + 0.2 * np.arange(feeds["input_ids"].shape[1])[None, :, None]
    mask = feeds["attention_mask"][..., None]
    return unit((TABLE[feeds["input_ids"]] * place * mask).sum(axis=1))


def empty_row_of_its_own(feeds: Feeds) -> np.ndarray:
    """NaN in the empty row alone hurts nobody."""
    rows = mean(feeds)
    rows[~feeds["attention_mask"].any(axis=1)] = np.nan
    return rows


EVERY = tuple(way.key for way in PERHAPS)


@pytest.mark.parametrize(
    ("model", "moves"),
    [
        (mean, None),
        (empty_row_of_its_own, None),
        (sorted_rows_only, "in another order of that batch"),
        (poisoned, "beside an empty row"),
        (counts_from_the_left, "padded on the other side"),
        (lambda f: mean(f) * (1 + (len(f["input_ids"]) == 1) * (1 - f["attention_mask"].mean())), "padded to twice"),
    ],
)
def test_the_circumstance_that_moves_an_answer_is_named_with_its_text(
    model: Callable[[Feeds], np.ndarray], moves: str | None
) -> None:
    names = [f"text {i}" for i in range(40)]
    found = check(model, "embedding", texts(), perhaps=EVERY, texts=names)
    assert [c.what for c in found.checks] == [way.what for way in (*ALWAYS, *PERHAPS)]
    assert found.outcome == ("fail" if moves else "pass"), found
    worst = min(found.checks, key=lambda c: c.similarity)
    assert found.worst == worst.similarity
    assert moves is None or worst.what.startswith(moves)
    assert all(c.worst_sample in names for c in found.checks)


def test_the_three_documented_numbers_are_those_of_their_rows() -> None:
    found = check(lambda f: unit(one_scale(f)), "embedding", texts())
    rows = [c.similarity for c in found.checks][:3]
    assert rows == [found.alone_vs_batch, found.alone_vs_padded, found.alone_vs_neighbours]


@pytest.mark.parametrize(
    ("model", "names", "borne"),
    [
        (mean, NAMES, ("left", "empty")),
        (counts_from_the_left, NAMES, ("empty",)),
        (poisoned, NAMES, ("left",)),
        (mean, ("input_ids",), ()),
    ],
)
def test_a_variant_is_asked_only_for_what_the_original_bears(
    model: Callable[[Feeds], np.ndarray], names: tuple[str, ...], borne: tuple[str, ...]
) -> None:
    assert bears(lambda f: {"out": model(f)}, texts(), names, 0, "embedding") == borne


def test_what_the_original_cant_run_is_asked_of_nobody() -> None:
    def model(feeds: Feeds) -> Mapping[str, np.ndarray]:
        if not feeds["attention_mask"].any(axis=1).all():
            raise EngineError("a row without a token")
        return {"out": mean(feeds)}

    assert bears(model, texts(), NAMES, 0, "embedding") == ("left",)


def test_all_circumstances_together_cost_what_they_are_said_to() -> None:
    """In tokens, against the texts alone; the trial sets its number of texts by this."""
    tokens = []

    def model(feeds: Feeds) -> np.ndarray:
        tokens.append(feeds["input_ids"].size)
        return mean(feeds)

    lengths = np.random.default_rng(7).integers(2, 30, 24)
    encodings = [Encoding(ids=np.full(n, 5), type_ids=np.zeros(n, dtype=int), truncated=False) for n in lengths]
    check(model, "embedding", encodings, perhaps=EVERY)
    assert 0.8 * COST < sum(tokens) / lengths.sum() <= COST


def test_left_padding_is_read_from_the_right_end() -> None:
    for side in ("left", "right"):
        assert check(lambda f: TABLE[f["input_ids"]], "features", texts(), side=side).outcome == "pass"


def test_the_number_is_a_cosine_for_vectors_of_length_one() -> None:
    angle = 0.1

    def turned(feeds: Feeds) -> np.ndarray:
        turn = angle if len(feeds["input_ids"]) > 1 else 0.0
        return np.tile([np.cos(turn), np.sin(turn)], (len(feeds["input_ids"]), 1))

    found = check(turned, "embedding", texts())
    assert found.alone_vs_batch == pytest.approx(np.cos(angle))
    assert found.alone_vs_padded == pytest.approx(1.0)


def test_padding_stops_at_the_models_window_and_the_culprit_is_named() -> None:
    widest = []

    def model(feeds: Feeds) -> np.ndarray:
        widest.append(feeds["input_ids"].shape[1])
        rows = unit(mean(feeds))
        rows[(feeds["input_ids"] == 99).any(axis=1) & (len(rows) > 1)] *= -1
        return rows

    encodings = [Encoding(ids=np.full(n, n), type_ids=np.zeros(n, dtype=int), truncated=False) for n in range(2, 21)]
    marked = Encoding(ids=np.array([5, 99, 5]), type_ids=np.zeros(3, dtype=int), truncated=False)
    found = check(
        model,
        "embedding",
        [*encodings, marked],
        max_tokens=25,
        texts=[f"text {i}" for i in range(19)] + ["the culprit"],
    )
    assert max(widest) == 25
    assert found.worst_sample == "the culprit"


@pytest.mark.parametrize(("count", "outcome"), [(1, "undecided"), (2, "pass"), (7, "pass"), (9, "pass"), (500, "pass")])
def test_any_number_of_texts(count: int, outcome: str) -> None:
    calls = []

    def model(feeds: Feeds) -> np.ndarray:
        calls.append(len(feeds["input_ids"]))
        return unit(mean(feeds))

    assert check(model, "embedding", texts(count)).outcome == outcome
    assert max(calls) <= 8
    assert len(calls) <= 64


def test_no_texts_are_refused() -> None:
    with pytest.raises(DataError, match="no texts"):
        check(mean, "embedding", [])


# --- outputs of other forms ------------------------------------------------------------------


def attention(feeds: Feeds) -> np.ndarray:
    """[batch, tokens, tokens]: two axes that follow the width of the call."""
    rows = TABLE[feeds["input_ids"]]
    return np.einsum("bid,bjd->bij", rows, rows) * feeds["attention_mask"][:, None, :]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("model", "sound"),
    [
        (lambda f: TABLE[f["input_ids"], 0], True),  # a number for each token
        (lambda f: TABLE[(f["input_ids"] + f["input_ids"].shape[1]) % 100, 0], False),
        (attention, True),
        (lambda f: attention(f) * (1 + 0.1 * len(f["input_ids"])), False),
        (lambda f: np.ones((len(f["input_ids"]), 8)), True),  # texts of 8 tokens don't make a vector of 8 long
    ],
)
def test_each_axis_that_follows_the_width_loses_its_padding(
    side: str, model: Callable[[Feeds], np.ndarray], sound: bool
) -> None:
    found = check(model, "features", texts(), side=side)
    assert found.outcome == ("pass" if sound else "fail"), found


@pytest.mark.parametrize("lost", [lambda a: a[:-1], lambda a: np.concatenate([a, a]), lambda a: a.sum()])
def test_lost_and_invented_rows_are_an_error_of_the_engine(lost: Callable[[np.ndarray], np.ndarray]) -> None:
    with pytest.raises(EngineError, match="one row each"):
        check(lambda f: np.asarray(lost(mean(f))), "embedding", texts())
    with pytest.raises(EngineError, match="one row each"):
        check_tensors(lambda f: np.asarray(lost(f["x"])), pictures())


# --- tensors ---------------------------------------------------------------------------------


def pictures(count: int = 40, width: int = 6) -> list[Feeds]:
    return [{"x": row[None]} for row in np.random.default_rng(3).normal(0, 1, (count, width))]


def check_tensors(model: Callable[[Feeds], np.ndarray], calls: list[Feeds]) -> Invariance | None:
    return invariance_of_tensors(lambda f: {"out": model(f)}, calls, "tensor")


@pytest.mark.parametrize(
    ("model", "moves"),
    [
        (lambda f: f["x"] ** 2, ""),
        (lambda f: f["x"] + 1e-5 * len(f["x"]), ""),
        (lambda f: f["x"] * (1 + 0.1 * len(f["x"])), "alone_vs_batch"),
        (lambda f: f["x"][::-1], "alone_vs_neighbours"),
        (lambda f: f["x"] + 0.3 * f["x"].mean(axis=0), "alone_vs_batch"),
        (lambda f: np.round(f["x"] / np.abs(f["x"]).max() * 7) * np.abs(f["x"]).max() / 7, "alone_vs_batch"),
        (lambda f: np.where(len(f["x"]) > 1, np.nan, f["x"]), "alone_vs_neighbours"),
    ],
)
def test_company_must_not_matter_to_tensors_either(model: Callable[[Feeds], np.ndarray], moves: str) -> None:
    found = check_tensors(model, pictures())
    assert found is not None
    assert found.outcome == ("fail" if moves else "pass"), found
    assert found.alone_vs_padded is None
    assert [c.what for c in found.checks] == [way.what for way in ALWAYS if way.key != "padded"]
    if moves:
        assert getattr(found, moves) < 0.999


def test_only_samples_of_one_shape_share_a_batch() -> None:
    widths = []

    def model(feeds: Feeds) -> np.ndarray:
        widths.append(feeds["x"].shape)
        return feeds["x"] * len(feeds["x"])

    found = check_tensors(model, [*pictures(3, width=5), *pictures(7), *pictures(2, width=4)])
    assert found is not None
    assert found.outcome == "fail"
    assert {width for _, width in widths} == {6}
    assert found.worst_sample.startswith("sample ")
    assert check_tensors(model, [*pictures(1, width=5), *pictures(1)]) is None  # nothing can form a batch
    lone = check_tensors(model, pictures(1))
    assert lone is not None
    assert lone.outcome == "undecided"


def test_no_tensors_are_refused() -> None:
    with pytest.raises(DataError, match="no samples"):
        check_tensors(lambda f: f["x"], [])
