"""A row of the tables: what is changed, and on which models."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tests.verify.planted.attempts import Change
from tests.verify.planted.subjects import SUBJECTS

ALL = tuple(SUBJECTS)
TEXTS = tuple(name for name in ALL if name != "vit")
EMBEDDINGS = ("bert", "mpnet")
CLASSES = ("distilbert", "electra", "modernbert")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One change, and the subjects that it is planted in.

    `within` are those where it was measured to stay within the budget of 1 %, so that it may ship there: their
    answers move, and on these samples hardly anybody would notice. They are counted apart.
    """

    name: str
    change: Change
    on: tuple[str, ...]
    within: tuple[str, ...] = ()


def row(
    name: str,
    change: Change,
    on: Collection[str] = TEXTS,
    *,
    but: Collection[str] = (),
    within: Collection[str] = (),
) -> Row:
    """A row, without the subjects in `but` (there it changes nothing, or can't be done) and in `within`."""
    return Row(
        name=name,
        change=change,
        on=tuple(s for s in on if s not in but and s not in within),
        within=tuple(within),
    )


def pairs(rows: Iterable[Row]) -> list[tuple[Row, str]]:
    """Every row on every subject of its."""
    return [(row, name) for row in rows for name in row.on]


def some_pairs(rows: Sequence[Row]) -> list[tuple[Row, str]]:
    """Every third row on one subject each, the subjects in turn."""
    return [(row, row.on[place % len(row.on)]) for place, row in enumerate([row for row in rows if row.on][::3])]
