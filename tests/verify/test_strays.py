"""One answer far off and alone is a fault; coarse but even errors, and answers that flip by a hair, are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from vengine.types import Budget, Sample, Task
from vengine.verify.compare import verdict
from vengine.verify.strays import stray_fault

N, CLASSES = 500, 5
RANDOM = np.random.default_rng(3)
CLASS = RANDOM.integers(0, CLASSES, N)
LOGITS = 4 * np.eye(CLASSES)[CLASS] + RANDOM.normal(0, 0.8, (N, CLASSES))
SCORES = RANDOM.normal(0, 2, (N, 1))
TOKENS = [4 * np.eye(CLASSES)[RANDOM.integers(0, CLASSES, n)] + RANDOM.normal(0, 0.5, (n, CLASSES)) for n in [9] * N]
SETS = 3 * RANDOM.choice([-1.0, 1.0], (N, CLASSES)) + RANDOM.normal(0, 0.3, (N, CLASSES))
SAMPLES = tuple(Sample(text=f"text {i}") for i in range(N))
NAMES = tuple("abcde")
KINDS: dict[str, tuple[Task, Any, bool]] = {
    "classes": ("classification", LOGITS, False),
    "yes or no": ("classification", SCORES, False),
    "scores": ("scoring", SCORES, False),
    "tokens": ("token-classification", TOKENS, False),
    "sets": ("classification", SETS, True),
}


def near(rows: Any, size: float, seed: int = 1) -> list[Any]:
    """Every answer a little off, as quantisation has it: errors of very unequal size."""
    draw = np.random.default_rng(seed)
    return [row + size * draw.lognormal(0, 0.6) * draw.standard_normal(np.shape(row)) for row in rows]


def fault(kind: str, after: list[Any]) -> Any:
    task, before, sets = KINDS[kind]
    return stray_fault(task, before, after, SAMPLES, NAMES, sets=sets)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, 1e-6, 0.01, 0.05])
def test_one_opposite_answer_is_found_among_any_errors(kind: str, size: float) -> None:
    before = KINDS[kind][1]
    place = int(np.argmax([np.abs(row).max(axis=-1).min() for row in before]))
    after = near(before, size)
    assert fault(kind, after) is None
    after[place] = -np.asarray(before[place])
    found = fault(kind, after)
    assert found is not None
    assert found.sample == place
    assert [c.text for c in found.changes] == [f"text {place}"]
    assert "1 of 500 samples" in found.reason


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0.0, 0.01, 0.1, 0.5, 3.0])
def test_errors_of_one_kind_are_left_to_the_metric(kind: str, size: float) -> None:
    assert fault(kind, near(KINDS[kind][1], size)) is None


def test_an_answer_that_flips_by_a_hair_is_no_stray() -> None:
    after = near(LOGITS, 0.001)
    after[7][(CLASS[7] + 1) % CLASSES] = after[7].max() + 0.01
    assert fault("classes", after) is None


def test_a_sure_answer_that_becomes_surer_is_no_stray() -> None:
    after = near(LOGITS, 0.001)
    after[7] = after[7] * 3
    assert fault("classes", after) is None


# Errors of sound int8 variants reach 0.07 of the spread; here the largest sizes reach more than that.
@given(st.integers(0, 10_000), st.floats(0.001, 0.1))
@example(6528, 0.1)
def test_no_sound_variant_is_refused_by_chance(seed: int, size: float) -> None:
    assert fault("classes", near(LOGITS, size, seed)) is None


def test_the_verdict_names_the_sample() -> None:
    after = np.array(near(LOGITS, 0.001))
    place = int(np.argmax(np.abs(LOGITS).max(axis=1)))
    after[place] = np.roll(LOGITS[place], 1)
    found = verdict("classification", {"logits": LOGITS}, {"logits": after}, SAMPLES, Budget(), NAMES)
    assert (found.outcome, found.metric, found.worst_sample) == ("fail", "wrong sample", f"text {place}")
    assert [(c.text, c.original, c.optimized) for c in found.changes] == [
        (f"text {place}", NAMES[CLASS[place]], NAMES[(CLASS[place] + 1) % CLASSES])
    ]
