"""The sample report is what the schema says, so that a report that shows it shows the real one."""

from __future__ import annotations

from typing import Any

import pytest

from vengine import types
from vengine.digests import from_json


@pytest.mark.parametrize(
    ("key", "noun"),
    [
        ("source", types.Source),
        ("machine", types.Machine),
        ("budget", types.Budget),
        ("settings", types.Settings),
        ("invariance", types.Invariance),
    ],
)
def test_a_noun_of_the_sample_reads_back(sample: dict[str, Any], key: str, noun: type) -> None:
    assert isinstance(from_json(noun, sample[key]), noun)


def test_the_trials_and_cells_read_back(sample: dict[str, Any]) -> None:
    assert [from_json(types.Trial, t).recipe.engine for t in sample["trials"]]
    assert all(from_json(types.Cell, c).calls for cells in sample["cells"].values() for c in cells)


def test_it_says_that_it_is_invented(sample: dict[str, Any]) -> None:
    assert "Nothing here was measured" in sample["fixture"]
