"""The journal survives a kill at any byte, and never hands out what is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from vengine.tune.journal import Journal
from vengine.types import Recipe, RuntimeProfile, Trial, Variant


def recipe(threads: int) -> Recipe:
    return Recipe(engine="fake", precision="fp32", profile=RuntimeProfile(threads=threads))


def trial(threads: int, **facts: object) -> Trial:
    return Trial(recipe=recipe(threads), status="failed", reason="why not", **facts)  # type: ignore[arg-type]


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    Journal(tmp_path / "j").write(trial(1))
    again = Journal(tmp_path / "j")
    assert again.get(recipe(1)) == trial(1)
    assert again.get(recipe(2)) is None


@pytest.mark.parametrize("cut", [1, 10, 50])
def test_a_line_cut_short_by_a_kill_is_dropped_and_the_next_one_is_whole(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "j"
    journal = Journal(path)
    journal.write(trial(1))
    journal.write(trial(2))
    path.write_bytes(path.read_bytes()[:-cut])
    resumed = Journal(path)
    assert (resumed.get(recipe(1)), resumed.get(recipe(2))) == (trial(1), None)
    resumed.write(trial(3))
    assert Journal(path).get(recipe(3)) == trial(3)


def test_a_trial_whose_files_are_gone_is_run_again(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    variant = Variant(recipe=recipe(1), directory=tmp_path, entry="model.json", digest="sha256:0", size_bytes=2)
    journal = Journal(tmp_path / "j")
    journal.write(trial(1, variant=variant))
    assert journal.get(recipe(1)) is not None
    (tmp_path / "model.json").unlink()
    assert journal.get(recipe(1)) is None
