"""Sequence packing: several texts share one row of tokens, so that nothing is computed for padding.

A packed graph reads, beside the token ids, the position of each token in its own text, the number of its text in the
row (1, 2, …; 0 is padding), and the numbers that are asked for. Tokens see tokens of the same number only, and a
pooled output has one place for each number. Here an ordinary padded call is turned into rows of such a graph, and the
rows' outputs back into what the ordinary call would have given.

    input_ids, token_type_ids, position_ids, segment_ids  int64 [rows, tokens]
    slots                                                 int64 [slots], 1 … slots
    NAME_by_slot [rows, slots, …] where the original's output NAME is [batch, …]
    NAME [rows, tokens, …] where it is [batch, length, …]

Best-fit decreasing (Johnson 1973) fills the rows: of one width, at most one is less than half full. Short texts get
shorter rows, because attention weighs each token of a row against all others.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from vengine.text import padded_length
from vengine.types import TensorSpec

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]
Outputs = dict[str, Array]

ADDED = ("position_ids", "segment_ids", "slots")
"""What a packed graph reads beside the original's inputs; it does without the original's attention mask."""
BY_SLOT = "_by_slot"
"""How the names of outputs end that have a place a text: engines forget what the axes were called."""
RAGGED_TOKENS = 1 << 16  # so many padded tokens may be handed over in one call: the padding costs nothing but its zeros
_SHORTEST_ROW = 64
_LEAST_TOKENS = 4  # a row of n tokens has room for n / 4 texts: fewer slots, fewer shapes, and most texts are longer


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One text of a padded call: its tokens lie in row `row`, columns `first` … `first + length − 1`."""

    call: int
    row: int
    first: int
    length: int


@dataclass(kw_only=True)
class Row:
    """A row that is being filled."""

    width: int
    pieces: list[Piece] = field(default_factory=list)
    used: int = 0

    @property
    def slots(self) -> int:
        return max(1, self.width // _LEAST_TOKENS)

    def placed(self) -> Iterator[tuple[int, Piece, slice, slice]]:
        """(place in the row from 0, piece, its columns in its call, its columns here)."""
        start = 0
        for place, piece in enumerate(self.pieces):
            of = slice(piece.first, piece.first + piece.length)
            yield place, piece, of, slice(start, start + piece.length)
            start += piece.length


def pieces_of(calls: Sequence[Feeds]) -> list[Piece]:
    """All texts of padded calls, from the first token that the mask shows to the last one; length 0 shows none."""
    found = []
    for number, feeds in enumerate(calls):
        mask = feeds["attention_mask"] != 0
        width = mask.shape[1]
        if not width:
            found += [Piece(call=number, row=row, first=0, length=0) for row in range(len(mask))]
            continue
        firsts, lasts = mask.argmax(axis=1), width - mask[:, ::-1].argmax(axis=1)
        shown = mask.any(axis=1)
        for row, (first, last, any_) in enumerate(zip(firsts.tolist(), lasts.tolist(), shown.tolist(), strict=True)):
            piece = Piece(call=number, row=row, first=first if any_ else 0, length=last - first if any_ else 0)
            found.append(piece)
    return found


def rows_of(pieces: Sequence[Piece], row_tokens: int) -> list[Row]:
    """Lay pieces into rows of at most `row_tokens`; a longer one opens a row of its own length, padded in steps.

    Args:
        row_tokens: a row is half as wide, and half again down to 64, where its longest text fills a quarter at most.
    """
    rows: list[Row] = []
    room: list[tuple[int, int]] = []  # (free tokens, place in `rows`), sorted
    for piece in sorted(pieces, key=lambda p: -p.length):
        at = bisect_left(room, (piece.length, -1))
        if at < len(room):
            _, place = room.pop(at)
        else:
            place = len(rows)
            rows.append(Row(width=max(_width_for(piece.length, row_tokens), padded_length(piece.length))))
        row = rows[place]
        row.pieces.append(piece)
        row.used += piece.length
        if row.used < row.width and len(row.pieces) < row.slots:
            insort(room, (row.width - row.used, place))
    if len(rows) == 1:
        rows[0].width = min(rows[0].width, max(padded_length(rows[0].used), len(rows[0].pieces) * _LEAST_TOKENS))
    return rows


def _width_for(length: int, row_tokens: int) -> int:
    width = row_tokens
    while width >= max(2 * _SHORTEST_ROW, 4 * length):
        width //= 2
    return width


def fill(rows: Sequence[Row], calls: Sequence[Feeds], names: Sequence[str]) -> dict[str, Array]:
    """The feeds of a packed graph for rows of one width.

    Args:
        calls: what the rows' pieces belong to.
        names: the packed graph's inputs.
    """
    width = rows[0].width
    single = all(len(row.pieces) == 1 for row in rows)
    shape = (len(rows), width)
    made: dict[str, Array] = {name: np.zeros(shape, dtype=np.int64) for name in names if name != "slots"}
    counted = np.arange(width, dtype=np.int64)
    for r, row in enumerate(rows):
        for place, piece, of, to in row.placed():
            feeds = calls[piece.call]
            for name, array in made.items():
                if name == "position_ids":
                    array[r, to] = counted[: piece.length]
                elif name == "segment_ids":
                    array[r, to] = np.where(feeds["attention_mask"][piece.row, of] != 0, place + 1, 0)
                else:
                    array[r, to] = feeds[name][piece.row, of]
    if "slots" in names:
        made["slots"] = np.arange(1, (1 if single else rows[0].slots) + 1, dtype=np.int64)
    return made


def outward(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """A packed graph's inputs and outputs as the original's callers know them.

    Inputs lose what `ADDED` names and gain the mask. Outputs [rows, slots, …] become [batch, …], outputs
    [rows, tokens, …] become [batch, length, …].
    """
    ids = [spec for spec in inputs if spec.name not in ADDED]
    named = [TensorSpec(name=spec.name, dtype=spec.dtype, shape=("batch", "length")) for spec in ids]
    mask = TensorSpec(name="attention_mask", dtype="int64", shape=("batch", "length"))
    at = 1 if named and named[0].name == "input_ids" else len(named)
    shown = []
    for spec in outputs:
        shape = ("batch", *spec.shape[2:]) if is_pooled(spec.name) else ("batch", "length", *spec.shape[2:])
        shown.append(TensorSpec(name=spec.name.removesuffix(BY_SLOT), dtype=spec.dtype, shape=shape))
    return [*named[:at], mask, *named[at:]], shown


def is_pooled(name: str) -> bool:
    """Whether this output of a packed graph has a place a text, and not one a token."""
    return name.endswith(BY_SLOT)


def take(calls: Sequence[Feeds], rows: Sequence[Row], outputs: Mapping[str, Array], into: Sequence[Outputs]) -> None:
    """Put what a packed call gave for these rows where it belongs.

    Args:
        into: for each of `calls` {output of the original: array}; arrays are made when the first of their values
            arrives. Outputs of tokens are zero where the call has padding.
    """
    for packed_name, array in outputs.items():
        pooled, name = is_pooled(packed_name), packed_name.removesuffix(BY_SLOT)
        for r, row in enumerate(rows):
            for place, piece, of, here in row.placed():
                target = _target(calls, into, piece.call, name, array, pooled)
                if pooled:
                    target[piece.row] = array[r, place]
                else:
                    target[piece.row, of] = array[r, here]


def _target(calls: Sequence[Feeds], into: Sequence[Outputs], call: int, name: str, like: Array, pooled: bool) -> Array:
    if name not in into[call]:
        batch, length = calls[call]["attention_mask"].shape
        shape = (batch, *like.shape[2:]) if pooled else (batch, length, *like.shape[2:])
        into[call][name] = np.zeros(shape, dtype=like.dtype)
    return into[call][name]
