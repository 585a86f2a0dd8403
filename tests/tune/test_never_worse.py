"""Never worse: what may not ship doesn't, the report says why, and the original is on disk, whole."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.tune.making import play, texts, toy, workload

from vengine.api.optimize import optimize
from vengine.api.verify import verify
from vengine.cli.optimize import exit_code
from vengine.types import Budget, Settings

pytestmark = pytest.mark.timed

LOOSE = Budget(max_drop=0.3)
SMALL = Budget(memory_limit_bytes=400 << 20)
FAST = {"delay_ms": 0.3}


def run(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    variants: Mapping[str, Mapping[str, Any]],
    *,
    budget: Budget = Budget(),  # noqa: B008 - frozen
    samples: int = 60,
    seconds: float = 2,
    original: Mapping[str, Any] | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """`optimize` with the fake playing everything."""
    play(monkeypatch, *variants)
    return optimize(
        toy(folder, variants, **(original or {})),
        data=workload(texts(samples), **facts),
        budget=budget,
        settings=Settings(time_seconds=seconds, threads=1),
        out=folder / "toy.vengine",
        cache=folder / "cache",
    )


def kept_the_original(folder: Path, report: Mapping[str, Any]) -> bool:
    """Whether the bundle on disk is whole, and everything in it goes to the original."""
    checked = verify(folder / "toy.vengine")
    return (
        checked["ok"]
        and [v["precision"] for v in checked["variants"]] == ["original"]
        and [v["precision"] for v in report["variants"]] == ["original"]
        and report["fallback"]["precision"] == "original"
    )


BAD = [
    pytest.param({"delay_ms": 3}, "refused", "slower than the original", Budget(), id="slower"),
    pytest.param({**FAST, "scale": 3}, "refused", "3 times as large", Budget(), id="answers scaled"),
    pytest.param({**FAST, "noise": 0.07}, "refused", "more than the budget", Budget(), id="over the budget"),
    pytest.param({**FAST, "nan_on": 1}, "refused", "NaN", Budget(), id="not a number"),
    pytest.param({**FAST, "neighbours": 0.3}, "refused", "other company", LOOSE, id="depends on its neighbours"),
    pytest.param({**FAST, "places": 0.005}, "refused", "other company", LOOSE, id="depends on its place"),
    pytest.param({**FAST, "left": 0.3}, "refused", "padded on the other side", Budget(), id="hears left padding"),
    pytest.param(
        {**FAST, "poisoned": True}, "refused", "beside an empty row: -1.0", Budget(), id="poisoned by padding"
    ),
    pytest.param({**FAST, "allocate_mb": 700}, "failed", "of 400 MiB", SMALL, id="over the memory limit"),
    pytest.param({**FAST, "crash_on": 2}, "failed", "SIGSEGV", Budget(), id="crashes when it runs"),
    pytest.param({**FAST, "crash_on": "open", "crash_with": 3}, "failed", "3", Budget(), id="crashes when it opens"),
    pytest.param({**FAST, "hang_on": 2}, "failed", "2 s", Budget(), id="hangs"),
    pytest.param({**FAST, "raise_on": "open"}, "failed", "refuses", Budget(), id="the engine refuses it"),
]


@pytest.mark.parametrize(("behaviour", "status", "reason", "budget"), BAD)
def test_what_breaks_a_promise_stays_out_and_the_original_ships(
    behaviour: dict[str, Any],
    status: str,
    reason: str,
    budget: Budget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vengine.tune.trial.HANG_S", 2.0)
    report = run(tmp_path, monkeypatch, {"bad": behaviour}, budget=budget)
    assert [(t["recipe"]["precision"], t["status"]) for t in report["trials"]] == [("bad", status)]
    assert reason in report["refused"][0]["reason"]
    assert (report["met"], report["outcome"], exit_code(report)) == (False, "fail", 3)
    assert kept_the_original(tmp_path, report)


@pytest.mark.slow
def test_a_variant_that_dies_in_the_last_race_is_dropped_and_the_next_one_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its trial takes some 500 calls a process, the race of the finalists more than 800.
    variants = {"late": {"delay_ms": 0.6, "crash_on": 680}, "good": {"delay_ms": 1.2}}
    report = run(tmp_path, monkeypatch, variants, original={"delay_ms": 2.5}, seconds=6)
    assert {t["recipe"]["precision"]: t["status"] for t in report["trials"]} == {"late": "failed", "good": "ok"}
    assert "in the race" in report["refused"][0]["reason"]
    assert [v["precision"] for v in report["variants"]] == ["good"]
    assert report["met"]


def test_the_good_one_ships_beside_bad_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = {"wrong": {"delay_ms": 0, "noise": 1.5}, "dead": {"crash_on": 1}, "good": FAST}
    report = run(tmp_path, monkeypatch, variants, seconds=5)
    assert (report["met"], report["outcome"], exit_code(report)) == (True, "pass", 0)
    assert [v["precision"] for v in report["variants"]] == ["good"]
    assert {r["recipe"] for r in report["refused"]} == {"fake wrong", "fake dead"}
    ratio = report["speedup"]["workload"]
    assert 1.0 < ratio["low"] <= ratio["ratio"] <= ratio["high"] < 6
    assert verify(tmp_path / "toy.vengine")["ok"]


def test_answers_that_drift_are_found_before_they_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sound for as many calls as a trial takes to verify it, wrong after some more."""
    variants = {"tired": {"delay_ms": 0.2, "drift_after": 200}, "good": {"delay_ms": 0.6}}
    report = run(tmp_path, monkeypatch, variants, seconds=5)
    assert {t["recipe"]["precision"]: t["status"] for t in report["trials"]} == {"tired": "failed", "good": "ok"}
    assert "differently after many other requests" in report["refused"][0]["reason"]
    assert [v["precision"] for v in report["variants"]] == ["good"]
    asked = {check["what"]: check["similarity"] for check in report["invariance"]["checks"]}
    assert asked["after many other requests"] == 1.0
    assert asked["in another session, with two threads"] == 1.0


def test_answers_that_change_with_the_threads_do_not_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone with its own number of threads it is right, and so is every comparison before the plan."""
    report = run(tmp_path, monkeypatch, {"frail": {"delay_ms": 0.2, "threads": 0.5}}, seconds=5)
    assert not report["met"]
    assert "differently in another session, with two threads" in report["refused"][0]["reason"]


@pytest.mark.parametrize(
    ("original", "least", "most"),
    [({}, 0.0, 1e-6), ({"noise": 0.01, "repeats": 0.01}, 0.002, 0.2)],
    ids=["exact", "noisy"],
)
def test_errors_are_told_beside_the_originals_own_noise(
    original: dict[str, Any], least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path, monkeypatch, {"good": {**FAST, "noise": 0, "repeats": 0}}, original=original)
    floor, accuracy = report["original"]["noise"], report["accuracy"]
    assert least <= floor["max_relative"] <= most
    assert (floor["runs"], floor["samples"]) == (2, 60)
    assert accuracy["noise"] == floor["max_relative"]
    assert accuracy["error"] is not None
    assert accuracy["reason"].endswith(("noise", "exactly", "bit"))


def test_what_the_original_doesnt_bear_is_asked_of_no_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(tmp_path, monkeypatch, {"good": FAST}, original={"left": 0.3, "poisoned": True})
    assert report["trials"][0]["status"] == "ok", report["refused"]


SHORT = {"delay_ms": 0.6, "delay_us_per_token": 36}  # of milliseconds, so that a busy machine hides none
LONG = {"delay_ms": 4.8, "delay_us_per_token": 1.5}


@pytest.mark.parametrize(
    ("crowded_ms", "shipped"),
    [
        pytest.param(0, {"short", "long"}, id="each serves its range"),
        pytest.param(36, {"short"}, id="but not together"),
    ],
)
def test_two_variants_ship_only_where_they_are_no_slower_together(
    crowded_ms: float, shipped: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = {"short": SHORT, "long": {**LONG, "crowded_ms": crowded_ms}}
    original = {"delay_ms": 6, "delay_us_per_token": 60}
    report = run(tmp_path, monkeypatch, variants, original=original, seconds=5)
    assert {v["precision"] for v in report["variants"]} == shipped


def test_what_there_was_no_time_for_is_skipped_and_not_called_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path, monkeypatch, {"good": FAST}, seconds=1e-9)
    assert [t["status"] for t in report["trials"]] == ["skipped"]
    assert "--time" in report["refused"][0]["reason"]
    assert kept_the_original(tmp_path, report)


def test_equal_speed_is_not_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(tmp_path, monkeypatch, {"same": {}})
    # An interval that excludes 1 by luck may be there once in many runs, but never by more than noise.
    assert not report["met"] or report["speedup"]["workload"]["ratio"] < 1.1
    assert report["met"] or kept_the_original(tmp_path, report)


def test_too_few_samples_are_undecided_with_the_number_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path, monkeypatch, {"near": {**FAST, "noise": 0.005}}, samples=8)
    assert (report["met"], report["outcome"], exit_code(report)) == (False, "undecided", 4)
    [trial] = report["trials"]
    assert trial["verdict"]["more_samples"] >= 12
    assert f"about {trial['verdict']['more_samples']} more samples" in report["why"]
    assert kept_the_original(tmp_path, report)


def test_the_same_variant_passes_with_enough_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(tmp_path, monkeypatch, {"near": {**FAST, "noise": 0.005}})["outcome"] == "pass"


def test_everything_is_compared_with_the_original_and_not_with_a_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two variants that agree with each other, and not with the original."""
    wrong = {**FAST, "noise": 1.5}
    report = run(tmp_path, monkeypatch, {"one": wrong, "two": wrong}, seconds=5)
    assert [t["status"] for t in report["trials"]] == ["refused", "refused"]
    assert kept_the_original(tmp_path, report)


def test_an_original_that_is_not_finite_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vengine.errors import DataError

    with pytest.raises(DataError, match="NaN"):
        # The third call: the first two only warm up.
        run(tmp_path, monkeypatch, {"good": FAST}, original={"nan_on": 3, "delay_ms": 0})
    assert not (tmp_path / "toy.vengine").exists()


def test_a_variant_that_answers_otherwise_by_neighbours_is_no_fallback_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants = {"shy": {**FAST, "neighbours": 0.3}, "lossy good": {"delay_ms": 0.6}}
    report = run(tmp_path, monkeypatch, variants, budget=LOOSE, seconds=5)
    assert [v["precision"] for v in report["variants"]] == ["lossy good"]
    assert report["fallback"]["precision"] == "original"


MEMORY = {"lean": {"delay_ms": 0.6, "allocate_mb": 0}, "wide": {**FAST, "allocate_mb": 120}}


@pytest.mark.parametrize(
    ("objective", "winner"), [pytest.param("latency", "wide", marks=pytest.mark.slow), ("memory", "lean")]
)
def test_the_objective_decides_what_wins(
    objective: str, winner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path, monkeypatch, MEMORY, original={"allocate_mb": 60}, objective=objective, seconds=5)
    assert report["met"], report["why"]
    assert {v["precision"] for v in report["variants"]} == {winner}


@pytest.mark.parametrize(
    ("variant", "reason"),
    [({**FAST, "allocate_mb": 120}, "no less memory"), ({"delay_ms": 3, "allocate_mb": 0}, "slower")],
    ids=["larger", "slower"],
)
def test_for_memory_it_must_be_smaller_and_not_slower(
    variant: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run(tmp_path, monkeypatch, {"other": variant}, original={"allocate_mb": 60}, objective="memory")
    assert (report["met"], report["outcome"]) == (False, "fail")
    assert reason in report["why"] + report["trials"][0]["reason"]
    assert kept_the_original(tmp_path, report)


def test_a_bundle_that_was_there_stays_when_the_run_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch, {"wrong": {**FAST, "scale": 3}})
    before = sorted(os.listdir(tmp_path / "toy.vengine"))
    monkeypatch.setattr("vengine.api.optimize._ship", _full_disk)
    with pytest.raises(OSError, match="No space"):
        run(tmp_path, monkeypatch, {"wrong": {**FAST, "scale": 4}})
    assert sorted(os.listdir(tmp_path / "toy.vengine")) == before
    assert verify(tmp_path / "toy.vengine")["ok"]


def _full_disk(*_: Any) -> Any:
    raise OSError(28, "No space left on device")
