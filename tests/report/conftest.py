"""The sample report, and reports made from it that are harder to show."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

Report = dict[str, Any]
# Tags, attributes, quotes, a terminal escape, a direction override, and an address that must never be fetched.
POISON = "<script>alert(1)</script>\"'><img src=https://evil.example/x onerror=alert(2)>\u202e\x1b[31m|`*_[a](b)"
NOT_TEXT = {"status", "objective", "outcome", "engine", "precision", "digest", "verdict"}


@pytest.fixture
def sample() -> Report:
    """Invented numbers; see "fixture" inside."""
    return json.loads((Path(__file__).parent / "sample.json").read_text("utf-8"))


@pytest.fixture
def failed(sample: Report) -> Report:
    """Every contender refused: the original ships."""
    sample |= {"met": False, "outcome": "fail", "why": "nothing was faster", "variants": [], "speedup": {}}
    sample |= {"accuracy": {}, "invariance": None, "side_by_side": []}
    for trial in sample["trials"]:
        trial |= {"status": "refused", "reason": "slower"}
    return sample


@pytest.fixture
def poisoned(sample: Report) -> Report:
    """Every text is hostile."""
    return poison(sample)


@pytest.fixture
def reports(sample: Report) -> dict[str, Report]:
    """Reports of many shapes, by name."""
    return variations(sample)


def poison(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: v if k in NOT_TEXT else poison(v) for k, v in value.items()} | {POISON: POISON}
    if isinstance(value, list):
        return [poison(v) for v in value]
    return POISON if isinstance(value, str) else value


def variations(sample: Report) -> dict[str, Report]:
    """The sample bent in the ways that reports are bent in practice, and in some that they shouldn't be."""
    found = {"sample": sample, "empty": {}, "null": dict.fromkeys(sample), "poisoned": poison(sample)}
    found["wrong types"] = dict.fromkeys(sample, 7) | {"trials": [1, None, {}], "variants": [{}], "met": True}
    for name, change in {
        "no trials": {"trials": [], "refused": []},
        "no cells": {"cells": {}, "original": {}},
        "tensors": {"task": "tensor", "invariance": None, "workload": {"lengths": {}, "samples": 64}},
        "nan": {"memory": {"original_rss": float("nan")}, "speedup": {"workload": {"ratio": float("inf")}}},
        "undecided": {"outcome": "undecided", "met": False, "variants": []},
        "no budget": {"budget": {"max_drop": 0, "memory_limit_bytes": 1}},
    }.items():
        found[name] = copy.deepcopy(sample) | change
    return found
