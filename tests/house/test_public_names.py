"""The public surface is pinned: a name comes or goes only on purpose, and the CHANGELOG says so."""

from __future__ import annotations

import pytest

import vengine
from vengine.cli.main import VERBS

PUBLIC = ["Budget", "Settings", "VectorizationOptimizer", "VengineError", "Workload", "__version__", "load", "optimize"]


def test_the_public_names_are_these() -> None:
    assert vengine.__all__ == PUBLIC
    assert dir(vengine) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_name_is_there(name: str) -> None:
    assert getattr(vengine, name) is not None


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        vengine.optimise  # noqa: B018


def test_each_verb_calls_the_library_function_of_its_name() -> None:
    from importlib import import_module

    for verb in VERBS:
        assert callable(getattr(import_module(f"vengine.api.{verb}"), verb)), verb
