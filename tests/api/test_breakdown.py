"""The call that is watched for the report is one of usual size."""

from __future__ import annotations

import pytest

from vengine.api.breakdown import usual_call
from vengine.tune.race import Load

CELLS = [Load(name=f"{b}x{n}", batch=b, length=n) for b in (8, 1) for n in (16, 64, 256)]


@pytest.mark.parametrize(
    ("lengths", "wanted"),
    [([], "1x16"), ([9], "1x16"), ([60, 300, 5], "1x64"), ([500], "1x256"), ([10, 10, 400], "1x16")],
)
def test_it_is_single_and_of_median_length(lengths: list[int], wanted: str) -> None:
    assert usual_call(CELLS, lengths).name == wanted


def test_a_model_without_single_calls_is_watched_in_a_batch() -> None:
    assert usual_call([Load(name="8x1", batch=8, length=1)], [1]).name == "8x1"
