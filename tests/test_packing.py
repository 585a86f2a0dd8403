"""Rows without padding: every text comes back whole, whatever the lengths, masks and widths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vengine.packing import BY_SLOT, RAGGED_TOKENS, fill, outward, pieces_of, rows_of, take
from vengine.types import TensorSpec

NAMES = ("input_ids", "token_type_ids", "position_ids", "segment_ids", "slots")
LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=40)


def call(lengths: list[int], *, left: bool = False, seed: int = 0) -> dict[str, Any]:
    """A padded call of texts with these lengths."""
    random = np.random.default_rng(seed)
    width = max(1, *lengths)
    places = np.arange(width)[None, :]
    counts = np.array(lengths)[:, None]
    mask = (places >= width - counts if left else places < counts).astype(np.int64)
    ids = random.integers(1, 1000, mask.shape) * mask
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids % 2) * mask}


def graph(feeds: dict[str, Any]) -> dict[str, Any]:
    """A packed graph in numpy: for each token what it is, and for each slot the sum over its tokens."""
    tokens = feeds["input_ids"] * 7 + feeds["token_type_ids"] * 3 + feeds["position_ids"]
    of_slot = feeds["segment_ids"][:, None, :] == feeds["slots"][None, :, None]
    return {f"sum{BY_SLOT}": (of_slot * tokens[:, None, :]).sum(-1)[..., None], "tokens": tokens[..., None]}


def plain(feeds: dict[str, Any]) -> dict[str, Any]:
    """What the original answers: positions count from the first token that the mask shows."""
    mask = feeds["attention_mask"]
    positions = np.arange(mask.shape[1])[None, :] - mask.argmax(axis=1)[:, None]
    tokens = (feeds["input_ids"] * 7 + feeds["token_type_ids"] * 3 + positions) * mask
    return {"sum": tokens.sum(-1)[..., None], "tokens": tokens[..., None]}


def through(calls: list[dict[str, Any]], row_tokens: int) -> list[dict[str, Any]]:
    rows = rows_of(pieces_of(calls), row_tokens)
    into: list[dict[str, Any]] = [{} for _ in calls]
    for width in {row.width for row in rows}:
        same = [row for row in rows if row.width == width]
        take(calls, same, graph(fill(same, calls, NAMES)), into)
    return into


@given(lengths=LENGTHS, row_tokens=st.sampled_from([1, 8, 16, 64, 128]), left=st.booleans())
def test_every_text_gets_its_own_answer(lengths: list[int], row_tokens: int, left: bool) -> None:
    feeds = call(lengths, left=left)
    (got,) = through([feeds], row_tokens)
    for name, wanted in plain(feeds).items():
        np.testing.assert_array_equal(got[name], wanted)


@given(many=st.lists(LENGTHS, min_size=1, max_size=5))
def test_texts_of_several_calls_share_rows(many: list[list[int]]) -> None:
    calls = [call(lengths, seed=i) for i, lengths in enumerate(many)]
    for feeds, got in zip(calls, through(calls, 64), strict=True):
        for name, wanted in plain(feeds).items():
            np.testing.assert_array_equal(got[name], wanted)


@given(lengths=LENGTHS, row_tokens=st.sampled_from([8, 16, 64, 128]))
def test_rows_hold_each_piece_once_within_their_width_and_slots(lengths: list[int], row_tokens: int) -> None:
    rows = rows_of(pieces_of([call(lengths)]), row_tokens)
    held = sorted(piece.row for row in rows for piece in row.pieces)
    assert held == list(range(len(lengths)))
    for row in rows:
        assert sum(piece.length for piece in row.pieces) == row.used <= row.width
        assert len(row.pieces) <= row.slots or len(row.pieces) == 1
    if min(lengths) >= 4:  # else slots run out before tokens
        for width in {row.width for row in rows}:
            assert sum(row.used <= row.width // 2 for row in rows if row.width == width) <= 1


@pytest.mark.parametrize(
    ("lengths", "row_tokens", "widths"),
    [
        ([40] * 3, 128, [128]),
        ([40] * 4, 128, [128, 128]),
        ([16] * 8, 128, [64, 64]),  # short texts, shorter rows
        ([33] + [16] * 6, 128, [128, 64]),
        ([16] * 8, 256, [64, 64]),
        ([256] * 3, 128, [256] * 3),
        ([200, 10, 10], 128, [224]),  # the short ones fill what the step of the long one left
        ([200, 20, 10], 128, [224, 64]),
        ([5], 128, [8]),  # one text alone has no row to fill
        ([5, 6], 128, [16]),
        ([100], 64, [112]),  # padded in steps; position and mask of the padding are nobody's
        ([0], 64, [8]),
    ],
)
def test_widths(lengths: list[int], row_tokens: int, widths: list[int]) -> None:
    assert [row.width for row in rows_of(pieces_of([call(lengths)]), row_tokens)] == widths


def test_a_hole_in_the_mask_stays_a_hole() -> None:
    feeds = call([6, 4])
    feeds["attention_mask"][0, 2] = 0
    rows = rows_of(pieces_of([feeds]), 16)
    made = fill(rows, [feeds], NAMES)
    np.testing.assert_array_equal(made["segment_ids"][0, :10], [1, 1, 0, 1, 1, 1, 2, 2, 2, 2])
    np.testing.assert_array_equal(made["position_ids"][0, :10], [0, 1, 2, 3, 4, 5, 0, 1, 2, 3])


def test_a_row_a_text_asks_for_one_slot() -> None:
    rows = rows_of(pieces_of([call([64, 60])]), 64)
    assert fill(rows, [call([64, 60])], NAMES)["slots"].tolist() == [1]


def test_texts_of_no_width_at_all() -> None:
    empty = {name: np.zeros((2, 0), dtype=np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    assert [piece.length for piece in pieces_of([empty])] == [0, 0]


def test_a_packed_graph_looks_like_the_original_from_outside() -> None:
    inputs = [TensorSpec(name=n, dtype="int64", shape=("rows", "tokens")) for n in NAMES[:4]]
    inputs.append(TensorSpec(name="slots", dtype="int64", shape=("slots",)))
    outputs = [
        TensorSpec(name=f"sentence_embedding{BY_SLOT}", dtype="float32", shape=("batch", "length", 384)),
        TensorSpec(name="last_hidden_state", dtype="float32", shape=("rows", "tokens", 384)),
    ]
    shown, given = outward(inputs, outputs)
    assert [(spec.name, spec.shape) for spec in shown] == [
        ("input_ids", ("batch", "length")),
        ("attention_mask", ("batch", "length")),
        ("token_type_ids", ("batch", "length")),
    ]
    assert [(spec.name, spec.shape) for spec in given] == [
        ("sentence_embedding", ("batch", 384)),
        ("last_hidden_state", ("batch", "length", 384)),
    ]


def test_a_long_list_is_laid_out_in_no_time_that_grows_with_its_square() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, 20_000).tolist()
    calls = [call(lengths[i : i + 500]) for i in range(0, len(lengths), 500)]
    rows = rows_of(pieces_of(calls), 128)
    assert sum(row.used for row in rows) / sum(row.width for row in rows) > 0.98
    assert RAGGED_TOKENS >= 500 * 60
