"""Several labels a text: the answer is a set, and a set that changed is seen whatever its largest logit is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vengine.errors import DataError
from vengine.types import Budget, Sample
from vengine.verify.compare import Judge
from vengine.verify.label_sets import losses_and_gains, set_codes, true_sets
from vengine.verify.metrics import get_metric, micro_f1

N, CLASSES = 600, 5
NAMES = ("billing", "delivery", "damage", "praise", "other")
RANDOM = np.random.default_rng(3)
TRUTH = RANDOM.random((N, CLASSES)) < 0.3
LOGITS = 4 * TRUTH - 2 + RANDOM.normal(0, 1.2, (N, CLASSES))
TEXTS = tuple(Sample(text=f"letter {i}") for i in range(N))
LABELLED = tuple(
    Sample(text=f"letter {i}", labels=tuple(NAMES[c] for c in np.flatnonzero(row))) for i, row in enumerate(TRUTH)
)
HALF = (*LABELLED[:300], *TEXTS[300:])


def judged(samples: tuple[Sample, ...], after: np.ndarray, rows: int = N, **budget: Any) -> Any:
    judge = Judge(
        "classification", {"logits": LOGITS[:rows]}, samples[:rows], Budget(**budget), NAMES, several_labels=True
    )
    return judge.verdict({"logits": after[:rows]})


def crossed(losses: int, gains: int = 0) -> np.ndarray:
    """So many samples in which one class that isn't the largest crosses the line, for the worse or for the better."""
    after, right = LOGITS + 1e-3, (LOGITS > 0) == TRUTH
    done = {True: 0, False: 0}
    for i in np.flatnonzero(LOGITS.max(axis=1) > 1):
        for c in np.argsort(LOGITS[i])[:-1]:
            good = bool(right[i, c])
            if done[good] < (losses if good else gains):
                after[i, c] = -0.02 * np.sign(LOGITS[i, c])
                done[good] += 1
                break
    return after


@pytest.mark.parametrize("samples", [LABELLED, TEXTS], ids=["labelled", "unlabelled"])
def test_sets_that_change_are_seen_where_the_largest_logit_stays(samples: tuple[Sample, ...]) -> None:
    after = crossed(90)
    assert (after.argmax(axis=1) == LOGITS.argmax(axis=1)).all()
    found = judged(samples, after)
    assert found.outcome == "fail", found
    assert found.changed == 90
    assert found.metric == ("micro_f1" if samples is LABELLED else "label set agreement")


@pytest.mark.parametrize(
    ("samples", "losses", "gains", "outcome"),
    [
        (LABELLED, 0, 0, "pass"),
        (LABELLED, 5, 0, "undecided"),
        (LABELLED, 0, 9, "pass"),
        (TEXTS, 0, 0, "pass"),
        (TEXTS, 2, 0, "undecided"),
    ],
)
def test_the_outcome_follows_what_changed(samples: tuple[Sample, ...], losses: int, gains: int, outcome: str) -> None:
    found = judged(samples, crossed(losses, gains))
    assert found.outcome == outcome, found
    assert (found.more_samples > 0) is (outcome == "undecided")
    if samples is LABELLED and losses + gains:
        assert f"{losses} answers became wrong and {gains} right (exact McNemar test" in found.reason


def test_nothing_changed_on_few_samples_is_undecided() -> None:
    """A bootstrap has no width there; the paired interval has."""
    assert judged(LABELLED, crossed(0), rows=100).outcome == "undecided"


def test_accuracy_is_that_of_whole_sets() -> None:
    found = judged(LABELLED, crossed(60), metric="accuracy")
    whole = ((LOGITS > 0) == TRUTH).all(axis=1)
    assert found.original == pytest.approx(whole.mean())
    after = ((crossed(60) > 0) == TRUTH).all(axis=1)
    assert found.optimized == pytest.approx(after.mean())
    assert f"{int(np.sum(whole & ~after))} answers became wrong" in found.reason


def test_the_metrics_are_those_of_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    answer = LOGITS > 0
    assert micro_f1(answer, TRUTH) == pytest.approx(sklearn.f1_score(TRUTH, answer, average="micro"))
    macro = get_metric("macro_f1").fn(answer, TRUTH)
    assert macro == pytest.approx(sklearn.f1_score(TRUTH, answer, average="macro"))
    one, other = LOGITS.argmax(axis=1), TRUTH.argmax(axis=1)
    assert micro_f1(one, other) == pytest.approx(np.mean(one == other))
    assert micro_f1(np.zeros((4, 2), dtype=bool), np.zeros((4, 2), dtype=bool)) == 1.0


def test_changed_sets_are_listed_in_words_with_the_margin_of_the_class_that_crossed() -> None:
    found = judged(HALF, crossed(25))
    first = found.changes[0]
    place = int(first.text.removeprefix("letter "))
    assert first.label == (", ".join(LABELLED[place].labels or ()) or "none")
    assert first.original == (", ".join(NAMES[c] for c in np.flatnonzero(LOGITS[place] > 0)) or "none")
    crossing = (LOGITS[place] > 0) != (crossed(25)[place] > 0)
    assert first.margin == pytest.approx(np.abs(np.tanh(LOGITS[place][crossing] / 2)).max())
    assert found.samples == 300


def test_sets_have_equal_codes_where_they_are_equal() -> None:
    one, two = set_codes(TRUTH, np.roll(TRUTH, 1, axis=0))
    assert ((one == two) == (np.roll(TRUTH, 1, axis=0) == TRUTH).all(axis=1)).all()


def test_losses_and_gains_count_samples() -> None:
    truth = np.array([[1, 0], [1, 1], [0, 0]], dtype=bool)
    before, after = np.array([[1, 0], [1, 0], [0, 0]], dtype=bool), np.array([[0, 1], [1, 1], [0, 1]], dtype=bool)
    assert losses_and_gains(before, after, truth, whole=True) == (2, 1)
    assert losses_and_gains(before, after, truth, whole=False) == (2, 1)
    assert losses_and_gains(before, before, truth, whole=False) == (0, 0)


def test_a_single_label_is_a_set_of_one_and_an_unknown_one_is_named() -> None:
    samples = (*LABELLED[:2], Sample(text="x", label="praise"), Sample(text="y", labels=()))
    found = true_sets(samples, NAMES, CLASSES)
    assert found[2:].tolist() == [[False, False, False, True, False], [False] * 5]
    with pytest.raises(DataError, match="'refund' is not a class") as caught:
        true_sets((*samples, Sample(text="z", labels=("praise", "refund"))), NAMES, CLASSES)
    assert "sample 5" in str(caught.value)


def test_lists_of_labels_are_left_aside_where_they_say_nothing() -> None:
    rows = RANDOM.normal(0, 1, (N, 8))
    judge = Judge("embedding", {"out": rows}, LABELLED, Budget())
    found = judge.verdict({"out": rows})
    assert found.metric == "cosine"
    assert "Lists of labels were left aside" in found.reason
