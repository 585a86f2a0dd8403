"""Broken models are refused, all of them, and sound ones are not: the judgement that ships, on small real models.

A third of the rows runs in every test run, on one model each; with `-m slow` all rows run on all models.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.verify.planted.attempts import refusal
from tests.verify.planted.catalogue import FAULTS, QUICK_SOUND, SOUND_VARIANTS
from tests.verify.planted.subjects import SUBJECTS, Subject
from tests.verify.planted.table import Row, pairs, some_pairs

Made = Callable[[str], Subject]


def ids(found: list[tuple[Row, str]]) -> list[str]:
    return [f"{name}: {row.name}" for row, name in found]


def refused(made: Made, row: Row, name: str) -> None:
    assert refusal(made(name), row.change), "this fault would ship"


def accepted(made: Made, row: Row, name: str) -> None:
    assert refusal(made(name), row.change) == ""


@pytest.mark.parametrize(("row", "name"), some_pairs(FAULTS), ids=ids(some_pairs(FAULTS)))
def test_a_planted_fault_is_refused(made: Made, row: Row, name: str) -> None:
    refused(made, row, name)


@pytest.mark.parametrize(("row", "name"), some_pairs(QUICK_SOUND), ids=ids(some_pairs(QUICK_SOUND)))
def test_a_sound_variant_is_not(made: Made, row: Row, name: str) -> None:
    accepted(made, row, name)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "name"), pairs(FAULTS), ids=ids(pairs(FAULTS)))
def test_every_planted_fault_is_refused(made: Made, row: Row, name: str) -> None:
    refused(made, row, name)


@pytest.mark.slow
@pytest.mark.parametrize(("row", "name"), pairs(SOUND_VARIANTS), ids=ids(pairs(SOUND_VARIANTS)))
def test_no_sound_variant_is_refused(made: Made, row: Row, name: str) -> None:
    accepted(made, row, name)


def test_enough_is_planted() -> None:
    """A row that loses its models by a slip would pass in silence."""
    faults, sound = pairs(FAULTS), pairs(SOUND_VARIANTS)
    assert len({row.name for row in FAULTS}) == len(FAULTS) >= 60
    assert len(sound) >= 30
    assert {name for _, name in faults} == {name for _, name in sound} == set(SUBJECTS)
    assert {name for _, name in some_pairs(FAULTS)} == set(SUBJECTS)
    assert [row.name for row in FAULTS if not row.on and not row.within] == []
