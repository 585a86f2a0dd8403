"""The comparator refuses wrong outputs and accepts sound ones; three outcomes, each for its reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vengine.digests import canonical_json
from vengine.errors import DataError, UsageError
from vengine.types import Budget, Sample, Task
from vengine.verify.compare import Judge, arrange, texts_of, verdict

Outputs = dict[str, Any]
RANDOM = np.random.default_rng(11)
N, WIDTH, CLASSES = 600, 32, 6
BUDGET = Budget()


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def noisy(rows: np.ndarray, share: float, seed: int = 1) -> np.ndarray:
    """The rows with white noise of `share` of their usual size."""
    noise = np.random.default_rng(seed).normal(0, 1, rows.shape)
    return rows + share * noise * np.sqrt(np.mean(rows**2))


CLASS = RANDOM.integers(0, CLASSES, N)
CENTRES = RANDOM.normal(0, 1, (CLASSES, WIDTH))
VECTORS = unit(CENTRES[CLASS] + RANDOM.normal(0, 0.7, (N, WIDTH)))
SECOND = unit(VECTORS + RANDOM.uniform(0, 0.5, (N, 1)) * RANDOM.normal(0, 1, (N, WIDTH)))
SCORE = np.round(5 * np.clip((VECTORS * SECOND).sum(axis=1) + RANDOM.normal(0, 0.1, N), 0, 1), 1)
LOGITS = 4 * np.eye(CLASSES)[CLASS] + RANDOM.normal(0, 1.2, (N, CLASSES))
HIDDEN = [RANDOM.normal(0, 1, (n, 8)) for n in RANDOM.integers(3, 12, 60)]
TOKEN_LOGITS = [3 * RANDOM.normal(0, 1, (n, 5)) for n in RANDOM.integers(5, 30, N)]
RANKS = RANDOM.normal(0, 2, (N, 1))
IMAGES = RANDOM.normal(0, 1, (40, 3, 6, 6))

TEXTS = tuple(Sample(text=f"letter number {i}") for i in range(N))
LABELLED = tuple(Sample(text=f"letter number {i}", label=f"kind {c}") for i, c in enumerate(CLASS))
NUMBERED = tuple(Sample(text=f"letter number {i}", label=str(c)) for i, c in enumerate(CLASS))
PAIRS = tuple(Sample(text=f"left {i}", pair=f"right {i}", score=float(s)) for i, s in enumerate(SCORE))
SCORED = tuple(
    Sample(text=f"query {i}", pair="page", score=float(s)) for i, s in enumerate(RANKS[:, 0] + RANDOM.normal(0, 1, N))
)

EMBEDDED = {"sentence_embedding": VECTORS}
TWICE = {"sentence_embedding": VECTORS, "sentence_embedding:pair": SECOND}

# What each case compares: task, the original's outputs, samples.
CASES: dict[str, tuple[Task, Outputs, tuple[Sample, ...]]] = {
    "embedding": ("embedding", EMBEDDED, TEXTS),
    "embedding, classes": ("embedding", EMBEDDED, LABELLED),
    "embedding, scored pairs": ("embedding", TWICE, PAIRS),
    "features": ("features", {"last_hidden_state": HIDDEN}, TEXTS[:60]),
    "classification": ("classification", {"logits": LOGITS}, TEXTS),
    "classification, labels": ("classification", {"logits": LOGITS}, NUMBERED),
    "scoring": ("scoring", {"logits": RANKS}, TEXTS),
    "scoring, scores": ("scoring", {"logits": RANKS}, SCORED),
    "token-classification": ("token-classification", {"logits": TOKEN_LOGITS}, TEXTS),
    "tensor": ("tensor", {"map": IMAGES}, TEXTS[:40]),
}


def changed(outputs: Outputs, change: Callable[[Any], Any]) -> Outputs:
    """Every output changed; rows of a list one by one."""
    return {n: [change(r) for r in rows] if isinstance(rows, list) else change(rows) for n, rows in outputs.items()}


def one_row(outputs: Outputs, place: int, change: Callable[[np.ndarray], np.ndarray]) -> Outputs:
    """One sample changed, in every output."""
    copies = {n: [np.array(r) for r in rows] for n, rows in outputs.items()}
    for rows in copies.values():
        rows[place] = change(rows[place])
    return {n: rows if isinstance(outputs[n], list) else np.stack(rows) for n, rows in copies.items()}


def swapped(outputs: Outputs) -> Outputs:
    """Each sample gets its neighbour's answer."""
    places = np.arange(len(next(iter(outputs.values())))) ^ 1
    return {n: [rows[i] for i in places] if isinstance(rows, list) else rows[places] for n, rows in outputs.items()}


def mirrored(rows: np.ndarray) -> np.ndarray:
    return rows[..., ::-1].copy()


WRONG: dict[str, Callable[[Outputs], Outputs]] = {
    "scaled up": lambda o: changed(o, lambda r: r * 100),
    "scaled down": lambda o: changed(o, lambda r: r * 0.5),
    "sign flipped": lambda o: changed(o, lambda r: -r),
    "shifted": lambda o: changed(o, lambda r: r + 3.0),
    "zeros": lambda o: changed(o, np.zeros_like),
    "constant": lambda o: changed(o, lambda r: np.full_like(r, 0.1)),
    "neighbours swapped": swapped,
    "drowned in noise": lambda o: changed(o, lambda r: noisy(r, 1.5)),
    "one NaN": lambda o: one_row(o, 7, lambda r: r * np.nan),
    "one infinity": lambda o: one_row(o, 7, lambda r: r + np.inf),
    "row missing": lambda o: {n: rows[:-1] for n, rows in o.items()},
    "other name": lambda o: {"other": next(iter(o.values()))},
    "extra output": lambda o: {**o, "extra": next(iter(o.values()))},
    "transposed": lambda o: changed(o, lambda r: np.swapaxes(r, -1, -2)),
    "integers": lambda o: changed(o, lambda r: np.rint(r).astype(np.int64)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_outputs_fail(case: str, wrong: str) -> None:
    task, original, samples = CASES[case]
    found = verdict(task, original, WRONG[wrong](original), samples, BUDGET)
    assert found.outcome == "fail", found
    assert found.reason
    canonical_json(found)  # no NaN slips into a report


VECTOR_CASES = [c for c in CASES if CASES[c][0] in ("embedding", "features", "tensor")]


@pytest.mark.parametrize("case", VECTOR_CASES)
@pytest.mark.parametrize(
    ("wrong", "change"),
    [
        ("axes mirrored", lambda o: changed(o, mirrored)),
        ("one sign", lambda o: one_row(o, 7, lambda r: -r)),
        ("one zero", lambda o: one_row(o, 7, np.zeros_like)),
        ("one mirrored", lambda o: one_row(o, 7, mirrored)),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_one_wrong_vector_fails_whatever_the_labels_say(
    case: str, wrong: str, change: Callable[[Outputs], Outputs]
) -> None:
    task, original, samples = CASES[case]
    found = verdict(task, original, change(original), samples, BUDGET)
    assert found.outcome == "fail", (wrong, found)
    if wrong.startswith("one"):
        assert samples[7].text in found.reason
        assert found.worst_sample.startswith(samples[7].text)


def losers_mirrored(logits: np.ndarray) -> np.ndarray:
    """The winning class keeps its logit, the others exchange theirs."""
    rows = logits.copy()
    for row in rows:
        losers = np.flatnonzero(row < row.max())
        row[losers] = row[losers][::-1]
    return rows


@pytest.mark.parametrize(
    ("case", "change", "check"),
    [  # each is seen by one check alone: classes, ranks and cosines stay as they are
        ("classification", lambda r: r * 1.2, "scale"),
        ("scoring, scores", lambda r: r * 0.8, "scale"),
        ("features", lambda r: r * 1.2, "scale"),
        ("embedding, scored pairs", lambda r: r * 0.9, "scale"),
        ("classification, labels", lambda r: r - 2 * r.mean(), "shift"),
        ("classification", lambda r: losers_mirrored(r), "error"),
    ],
)
def test_each_check_of_size_fails_alone(case: str, change: Callable[[np.ndarray], np.ndarray], check: str) -> None:
    task, original, samples = CASES[case]
    found = verdict(task, original, changed(original, change), samples, BUDGET)
    assert (found.outcome, found.metric) == ("fail", check), found


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_a_change_of_size_within_bounds_passes(factor: float) -> None:
    for case in CASES.values():
        assert verdict(case[0], case[1], changed(case[1], lambda r: r * factor), case[2], BUDGET).outcome == "pass"


def test_a_rotated_space_fails_though_its_similarities_are_exact() -> None:
    turn = np.linalg.qr(np.random.default_rng(3).normal(0, 1, (WIDTH, WIDTH)))[0]
    found = verdict("embedding", TWICE, changed(TWICE, lambda r: r @ turn), PAIRS, BUDGET)
    assert found.outcome == "fail"


SOUND: dict[str, Callable[[Outputs], Outputs]] = {
    "itself": lambda o: o,
    "float32": lambda o: changed(o, lambda r: r.astype(np.float32)),
    "bf16-like noise": lambda o: changed(o, lambda r: noisy(r, 0.003)),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("sound", SOUND)
def test_sound_outputs_pass(case: str, sound: str) -> None:
    task, original, samples = CASES[case]
    found = verdict(task, original, SOUND[sound](original), samples, BUDGET)
    assert found.outcome == "pass", found
    assert found.drop.low <= found.drop.value <= found.drop.high <= BUDGET.max_drop


@pytest.mark.parametrize("case", ["embedding", "embedding, classes", "embedding, scored pairs"])
def test_int8_like_noise_on_vectors_passes(case: str) -> None:
    task, original, samples = CASES[case]
    found = verdict(task, original, changed(original, lambda r: unit(noisy(r, 0.06))), samples, BUDGET)
    assert found.outcome == "pass", found


@pytest.mark.parametrize(
    ("case", "metric", "has_original"),
    [
        ("embedding", "cosine", False),
        ("embedding, classes", "accuracy", True),
        ("embedding, scored pairs", "spearman", True),
        ("features", "cosine", False),
        ("classification", "argmax agreement", False),
        ("classification, labels", "accuracy", True),
        ("scoring", "concordance", False),
        ("scoring, scores", "spearman", True),
        ("token-classification", "argmax agreement", False),
        ("tensor", "cosine", False),
    ],
)
def test_the_data_choose_the_metric(case: str, metric: str, has_original: bool) -> None:
    task, original, samples = CASES[case]
    found = verdict(task, original, changed(original, lambda r: noisy(r, 0.003)), samples, BUDGET)
    assert found.metric == metric
    assert (found.original is not None) is has_original
    if has_original:
        assert found.original is not None
        assert found.original > 0.7
    else:
        assert found.implies or case == "features"


@pytest.mark.parametrize(
    ("case", "metric"),
    [
        ("classification, labels", "macro_f1"),
        ("embedding, classes", "macro-f1"),
        ("embedding, scored pairs", "pearson"),
        ("scoring, scores", "mse"),
        ("embedding, classes", "agreement"),
        ("classification, labels", "agreement"),
    ],
)
def test_the_user_chooses_the_metric(case: str, metric: str) -> None:
    task, original, samples = CASES[case]
    found = verdict(task, original, original, samples, Budget(metric=metric))
    assert found.outcome == "pass"
    assert found.metric == {"agreement": "cosine" if task == "embedding" else "argmax agreement"}.get(
        metric, metric.replace("-", "_")
    )


@pytest.mark.parametrize(
    ("case", "metric", "error"),
    [
        ("embedding", "accuracy", DataError),
        ("embedding, classes", "spearman", DataError),
        ("embedding, scored pairs", "accuracy", DataError),
        ("token-classification", "macro_f1", DataError),
        ("classification", "bleu", UsageError),
    ],
)
def test_a_metric_that_the_data_cant_feed_is_refused(case: str, metric: str, error: type[Exception]) -> None:
    task, original, samples = CASES[case]
    with pytest.raises(error, match=metric):
        Judge(task, original, samples, Budget(metric=metric))


# --- undecided -------------------------------------------------------------------------------


def flips(logits: np.ndarray, losses: int, gains: int, truth: np.ndarray) -> np.ndarray:
    """So many right answers made wrong by a hair, and wrong ones right; every answer moves a little."""
    moved, answer = noisy(logits, 0.001), logits.argmax(axis=1)
    right, wrong = np.flatnonzero(answer == truth)[:losses], np.flatnonzero(answer != truth)[:gains]
    for i, to in [(i, (truth[i] + 1) % CLASSES) for i in right] + [(i, truth[i]) for i in wrong]:
        moved[i, to] = moved[i].max() + 0.01
    return moved


@pytest.mark.parametrize(
    ("samples", "losses", "gains", "outcome"),
    [
        (600, 0, 0, "pass"),
        (100, 0, 0, "undecided"),  # nothing changed, and 100 samples can't exclude 1 %
        (500, 2, 0, "undecided"),
        (600, 30, 0, "fail"),
        (600, 9, 0, "undecided"),  # beyond the budget, and the interval still reaches below it
        (600, 4, 4, "undecided"),  # no loss on balance, yet not sure of it
        (600, 0, 9, "pass"),  # better is not worse
    ],
)
def test_accuracy_is_decided_by_what_changed(samples: int, losses: int, gains: int, outcome: str) -> None:
    logits, truth = LOGITS[:samples], CLASS[:samples]
    after = flips(logits, losses, gains, truth)
    found = verdict("classification", {"logits": logits}, {"logits": after}, NUMBERED[:samples], BUDGET)
    assert found.outcome == outcome, found
    assert found.samples == samples
    assert (found.more_samples > 0) is (outcome == "undecided")
    assert len(found.flipped) == min(5, losses + gains)
    if outcome == "undecided":
        assert f"about {found.more_samples} more samples" in found.reason
    if losses:
        assert f"{losses} answers became wrong and {gains} right" in found.reason
        assert re.search(r"letter number \d+: \d → \d", found.flipped[0])


@pytest.mark.parametrize(
    ("samples", "flipped", "outcome"),
    [(368, 0, "pass"), (367, 0, "undecided"), (600, 2, "undecided"), (600, 20, "fail"), (50, 0, "undecided")],
)
def test_unlabelled_classes_are_decided_by_the_exact_bound(samples: int, flipped: int, outcome: str) -> None:
    logits = LOGITS[:samples]
    after = flips(logits, flipped, 0, logits.argmax(axis=1))
    found = verdict("classification", {"logits": logits}, {"logits": after}, TEXTS[:samples], BUDGET)
    assert found.outcome == outcome, found
    assert found.optimized == pytest.approx(1 - flipped / samples)
    assert "accuracy can fall by at most" in found.implies
    if (samples, flipped) == (50, 0):
        assert found.more_samples == 368 - 50


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("samples", [3, 12])
def test_few_samples_decide_only_where_outputs_are_equal_to_rounding(case: str, samples: int) -> None:
    task, original, all_samples = CASES[case]
    few = {n: rows[:samples] for n, rows in original.items()}
    exact = verdict(task, few, changed(few, lambda r: r.astype(np.float32)), all_samples[:samples], BUDGET)
    rough = verdict(task, few, changed(few, lambda r: noisy(r, 0.003)), all_samples[:samples], BUDGET)
    assert (exact.outcome, rough.outcome) == ("pass", "undecided"), (exact, rough)
    assert "to rounding" in exact.reason
    assert rough.more_samples >= 20 - samples


def test_no_drop_allowed_passes_rounding_and_nothing_else() -> None:
    strict = Budget(max_drop=0.0)
    after = {"sentence_embedding": VECTORS.astype(np.float32)}
    assert verdict("embedding", EMBEDDED, after, TEXTS, strict).outcome == "pass"
    assert verdict("embedding", EMBEDDED, changed(EMBEDDED, lambda r: noisy(r, 0.01)), TEXTS, strict).outcome == "fail"


@pytest.mark.parametrize(("confidence", "outcome"), [(0.8, "pass"), (0.95, "undecided")])
def test_less_confidence_decides_sooner(confidence: float, outcome: str) -> None:
    logits, after = LOGITS[:300], noisy(LOGITS[:300], 0.001)
    found = verdict("classification", {"logits": logits}, {"logits": after}, TEXTS[:300], Budget(confidence=confidence))
    assert found.outcome == outcome


# --- labels ----------------------------------------------------------------------------------

NAMES = tuple(f"Kind {i}" for i in range(CLASSES))


@pytest.mark.parametrize(
    ("label", "known"),
    [
        ("Kind 3", True),
        ("kind_3", True),
        ("3", True),
        ("LABEL_3", True),
        ("kind 9", False),
        ("6", False),
        ("-1", False),
        ("", False),
    ],
)
def test_labels_fit_the_classes_or_are_refused(label: str, known: bool) -> None:
    samples = (*NUMBERED[:-1], Sample(text="the odd one", label=label))
    if known:
        Judge("classification", {"logits": LOGITS}, samples, BUDGET, NAMES)
        return
    with pytest.raises(DataError) as caught:
        Judge("classification", {"logits": LOGITS}, samples, BUDGET, NAMES)
    assert repr(label) in str(caught.value)
    assert "Kind 0, Kind 1" in str(caught.value)
    assert "sample 600" in str(caught.value)


def test_classes_that_are_called_by_numbers_mean_themselves() -> None:
    stars = ("1", "2", "3", "4", "5", "6")
    samples = tuple(Sample(text=str(i), label=str(c + 1)) for i, c in enumerate(CLASS))
    found = verdict("classification", {"logits": LOGITS}, {"logits": LOGITS}, samples, BUDGET, stars)
    assert found.original == pytest.approx(np.mean(LOGITS.argmax(axis=1) == CLASS))


def test_classes_that_differ_by_a_space_only_are_told_apart() -> None:
    names = ("ice cream", "icecream", "c", "d", "e", "f")
    samples = tuple(Sample(text=str(i), label=names[c]) for i, c in enumerate(CLASS))
    found = verdict("classification", {"logits": LOGITS}, {"logits": LOGITS}, samples, BUDGET, names)
    assert found.original == pytest.approx(np.mean(LOGITS.argmax(axis=1) == CLASS))
    with pytest.raises(DataError, match="'Ice-Cream' is not a class"):
        Judge("classification", {"logits": LOGITS}, (*samples[:-1], Sample(label="Ice-Cream")), BUDGET, names)


def test_a_single_logit_says_yes_or_no() -> None:
    logits = RANDOM.normal(0, 2, (N, 1))
    after = np.where(np.arange(N)[:, None] < 60, -0.05 * logits, 1.01 * logits)
    found = verdict("classification", {"logits": logits}, {"logits": after}, TEXTS, BUDGET)
    assert found.outcome == "fail"
    assert found.optimized == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ([str(i) for i in range(N)], "only 0 of 600 classes have two samples"),
        (["a", "a", "b", "b", *[None] * (N - 4)], "only 4 samples belong"),
        (["a", "b"] * 50 + [None] * (N - 100), "500 of 600 samples have no label"),
    ],
)
def test_labels_that_cant_train_a_probe_give_way_to_agreement(labels: list[str | None], why: str) -> None:
    samples = tuple(Sample(text=str(i), label=label) for i, label in enumerate(labels))
    found = verdict("embedding", EMBEDDED, EMBEDDED, samples, BUDGET)
    assert (found.outcome, found.metric) == ("pass", "cosine")
    assert why in found.reason


def test_a_lone_class_is_left_out_of_the_probe_and_said_so() -> None:
    samples = (*LABELLED[:-1], Sample(text="unique", label="seen once"))
    found = verdict("embedding", EMBEDDED, EMBEDDED, samples, BUDGET)
    assert (found.metric, found.samples) == ("accuracy", N - 1)
    assert "1 samples alone in their class" in found.reason


def test_a_score_without_a_pair_is_left_aside() -> None:
    samples = tuple(Sample(text=str(i), score=float(s)) for i, s in enumerate(SCORE))
    found = verdict("embedding", EMBEDDED, EMBEDDED, samples, BUDGET)
    assert found.metric == "cosine"
    assert "a score belongs to a pair" in found.reason


def test_numbers_as_labels_score_a_reranker() -> None:
    samples = tuple(Sample(text=str(i), label=str(int(r > 0))) for i, r in enumerate(RANKS[:, 0]))
    assert verdict("scoring", {"logits": RANKS}, {"logits": RANKS}, samples, BUDGET).metric == "spearman"


def test_labels_that_say_nothing_are_reported_as_an_absolute_drop() -> None:
    random = np.random.default_rng(5)
    samples = tuple(Sample(text=f"l{i}", pair=f"r{i}", score=float(s)) for i, s in enumerate(random.random(N)))
    found = verdict("embedding", TWICE, changed(TWICE, lambda r: noisy(r, 0.003)), samples, BUDGET)
    assert "absolute" in found.reason
    assert abs(found.drop.value) < 0.05


def test_an_original_that_is_not_finite_is_no_yardstick() -> None:
    with pytest.raises(DataError, match="original model itself") as caught:
        Judge("embedding", one_row(EMBEDDED, 3, lambda r: r * np.nan), TEXTS, BUDGET)
    assert "letter number 3" in str(caught.value)


def test_nothing_to_compare_is_refused() -> None:
    with pytest.raises(DataError, match="no samples"):
        Judge("embedding", {"sentence_embedding": np.zeros((0, 3))}, (), BUDGET)


# --- others ----------------------------------------------------------------------------------


def test_integer_outputs_are_compared_for_equality() -> None:
    classes = RANDOM.integers(0, 9, (N, 4))
    after = classes.copy()
    after[5, 2] += 1
    same, other = (verdict("tensor", {"ids": classes}, {"ids": x}, TEXTS, BUDGET) for x in (classes, after))
    assert (same.outcome, same.optimized) == ("pass", 1.0)
    assert other.optimized == pytest.approx(1 - 1 / N)
    assert other.worst_sample == "letter number 5"


def test_a_tensor_model_with_class_labels_is_judged_by_accuracy() -> None:
    rows = {"save": list(LOGITS)}  # lists of equal shapes are as good as an array
    assert verdict("tensor", rows, rows, NUMBERED, BUDGET).metric == "accuracy"


def test_what_vectors_imply_is_said_in_words() -> None:
    found = verdict("embedding", EMBEDDED, changed(EMBEDDED, lambda r: unit(noisy(r, 0.05))), TEXTS, BUDGET)
    numbers = re.search(r"moves by ([\d.e-]+) \(median\), and by at most ([\d.e-]+) in 95", found.implies)
    assert numbers, found.implies
    assert 0.001 < float(numbers[1]) < float(numbers[2]) < 0.1


def test_the_same_input_gives_the_same_verdict() -> None:
    for case in CASES.values():
        after = changed(case[1], lambda r: noisy(r, 0.003))
        one, two = (verdict(case[0], case[1], after, case[2], BUDGET) for _ in range(2))
        assert canonical_json(one) == canonical_json(two)
        json.loads(canonical_json(one))


def test_both_models_go_through_one_probe() -> None:
    judge = Judge("embedding", EMBEDDED, LABELLED, BUDGET)
    exact = judge.verdict(EMBEDDED)
    assert exact.original == exact.optimized
    # Half of the classes drift towards each other: a probe fitted anew would learn that and see no loss.
    drift = 0.3 * (CENTRES[CLASS ^ 1] - CENTRES[CLASS]) / np.linalg.norm(CENTRES, axis=1).mean()
    moved = judge.verdict({"sentence_embedding": unit(VECTORS + drift)})
    assert moved.original == exact.original
    assert moved.optimized < exact.optimized


@pytest.mark.parametrize(
    ("task", "samples", "texts", "first", "second"),
    [
        ("embedding", [("a", None), ("b", None), ("a", None)], ["a", "b"], (0, 1, 0), ()),
        ("embedding", [("a", "b"), ("b", "c")], ["a", "b", "c"], (0, 1), (1, 2)),
        ("scoring", [("a", "b"), ("b", "c"), ("a", "b")], [("a", "b"), ("b", "c")], (0, 1, 0), ()),
        ("scoring", [("a", None), ("b", "c")], ["a", ("b", "c")], (0, 1), ()),
    ],
)
def test_texts_run_once_and_come_back_in_order(
    task: Task, samples: list[tuple[str, str | None]], texts: list[Any], first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    found, index = texts_of([Sample(text=t, pair=p) for t, p in samples], task)
    assert (found, index.first, index.second) == (texts, first, second)
    outputs = arrange({"x": np.arange(len(found)), "y": [np.array([i]) for i in range(len(found))]}, index)
    assert outputs["x"].tolist() == list(first)
    assert [int(row[0]) for row in outputs["y"]] == list(first)
    assert (outputs["x:pair"].tolist() if second else []) == list(second)


def test_pairs_and_single_texts_dont_mix_where_texts_run_alone() -> None:
    with pytest.raises(DataError, match="sample 2 has no second text"):
        texts_of([Sample(text="a", pair="b"), Sample(text="c")], "embedding")


def test_unchanged_tokens_need_enough_tokens() -> None:
    few = [rows[:5] for rows in TOKEN_LOGITS[:25]]
    after = [noisy(rows, 0.0005, seed=i) for i, rows in enumerate(few)]
    found = verdict("token-classification", {"logits": few}, {"logits": after}, TEXTS[:25], BUDGET)
    assert (found.outcome, found.optimized) == ("undecided", 1.0)
    assert "over 125 tokens of 25 samples" in found.reason


def test_a_sample_counts_by_its_worst_output() -> None:
    original = {"good": IMAGES, "poor": IMAGES + 0.5}
    after = {"good": IMAGES, "poor": noisy(IMAGES + 0.5, 0.3)}
    found = verdict("tensor", original, after, TEXTS[:40], BUDGET)
    assert found.outcome == "fail"
    assert found.optimized < 0.97


# --- what changed, for the eye ---------------------------------------------------------------


@pytest.mark.parametrize("labelled", [True, False])
def test_changed_answers_are_listed_surest_first_with_label_answers_and_margin(labelled: bool) -> None:
    after = flips(LOGITS, 25, 5, CLASS)
    names = tuple(f"Kind {i}" for i in range(CLASSES))
    samples = NUMBERED if labelled else TEXTS
    found = verdict("classification", {"logits": LOGITS}, {"logits": after}, samples, BUDGET, names)
    assert (found.changed, len(found.changes)) == (30, 20)
    likely = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    margins = []
    for row in found.changes:
        place = int(row.text.removeprefix("letter number "))
        was, now = LOGITS[place].argmax(), after[place].argmax()
        assert (row.original, row.optimized) == (names[was], names[now])
        assert row.label == (str(CLASS[place]) if labelled else None)
        assert row.margin == pytest.approx(likely[place, was] - likely[place, now])
        margins.append(row.margin)
    assert margins == sorted(margins, reverse=True)
    everywhere = [likely[i, LOGITS[i].argmax()] - likely[i, after[i].argmax()] for i in range(N)]
    assert margins[0] == pytest.approx(max(everywhere))


def test_a_probes_changed_answers_have_the_probes_margins() -> None:
    rows = unit(np.random.default_rng(4).normal(0, 1, (N, 8)))
    samples = tuple(Sample(text=str(i), label="left" if x < 0 else "right") for i, x in enumerate(rows[:, 0]))
    outputs = [{"sentence_embedding": r} for r in (rows, unit(noisy(rows, 0.1)))]
    found = verdict("embedding", *outputs, samples, Budget(max_drop=0.5))
    assert 0 < len(found.changes) <= found.changed
    assert all(row.label and row.original != row.optimized and 0 <= (row.margin or 0) <= 1 for row in found.changes)


@pytest.mark.parametrize(
    ("case", "key", "words"),
    [
        ("embedding", "sentence_embedding", False),
        ("embedding, scored pairs", "sentence_embedding", True),
        ("scoring", "logits", True),
        ("scoring, scores", "logits", True),
        ("tensor", "map", False),
    ],
)
def test_the_furthest_moved_are_listed_where_there_are_no_classes(case: str, key: str, words: bool) -> None:
    task, original, samples = CASES[case]
    after = {name: np.array(rows) for name, rows in changed(original, lambda r: noisy(r, 0.003)).items()}
    after[key][9] = noisy(np.array(original[key])[9], 0.1)
    found = verdict(task, original, after, samples, BUDGET)
    assert found.changes[0].text.startswith(samples[9].text)
    distances = [row.distance or 0 for row in found.changes]
    assert len(distances) == 5
    assert distances == sorted(distances, reverse=True)
    assert bool(found.changes[0].original) is words
    assert found.changes[0].label == (None if samples[9].score is None else f"{samples[9].score:.4g}")


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_listed_where_nothing_moved(case: str) -> None:
    task, original, samples = CASES[case]
    found = verdict(task, original, changed(original, lambda r: r.astype(np.float64)), samples, BUDGET)
    assert (found.changed, found.changes) == (0, ())


def test_texts_with_changed_tokens_are_listed_by_their_share() -> None:
    after = [np.array(rows) for rows in TOKEN_LOGITS]
    for place, count in ((3, 2), (8, 4)):
        after[place][:count] *= -1
    found = verdict("token-classification", {"logits": TOKEN_LOGITS}, {"logits": after}, TEXTS, BUDGET)
    shares = {TEXTS[i].text: n / len(after[i]) for i, n in ((3, 2), (8, 4))}
    assert found.changed == 2
    assert [row.text for row in found.changes] == sorted(shares, key=lambda t: -shares[t])
    assert {row.optimized for row in found.changes} == {f"{n} of {len(after[i])} tokens" for i, n in ((3, 2), (8, 4))}


def test_a_long_text_is_cut_for_the_list() -> None:
    samples = tuple(Sample(text="word " * 50 + str(i)) for i in range(N))
    found = verdict("classification", {"logits": LOGITS}, {"logits": flips(LOGITS, 3, 0, CLASS)}, samples, BUDGET)
    assert {len(row.text) for row in found.changes} == {80}
