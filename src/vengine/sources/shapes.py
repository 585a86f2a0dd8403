"""What a model's inputs and outputs are: numbers, and which dimensions are free, learned by running it at two sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vengine.errors import SourceError
from vengine.types import TensorSpec


def specs_of(
    first: Mapping[str, Any], second: Mapping[str, Any], sizes_first: Mapping[str, int], sizes_second: Mapping[str, int]
) -> tuple[TensorSpec, ...]:
    """Specs of outputs: a dimension that follows a named size in both runs gets its name.

    Args:
        first: outputs (numpy arrays) of one run.
        second: outputs of another run, at other sizes.
        sizes_first: the first run's sizes, for instance {"batch": 2, "length": 5}.
        sizes_second: the second run's; every size must differ.

    Raises:
        ValueError: names or ranks differ between the runs, or a dimension moved that no size explains.
    """
    if list(first) != list(second):
        raise ValueError(f"the outputs change with the input's size: {list(first)} and {list(second)}")
    return tuple(
        TensorSpec(
            name=name,
            dtype=str(array.dtype),
            shape=_free(name, array.shape, second[name].shape, sizes_first, sizes_second),
        )
        for name, array in first.items()
    )


def require_numbers(specs: tuple[TensorSpec, ...], kind: str, path: Path) -> None:
    """Refuse a graph without tensors of numbers on one of its sides: there is nothing to run, or to compare.

    Raises:
        SourceError: no such tensors at all, or one of texts or objects.
    """
    step = "take a graph that reads and gives numbers: leave the string steps to the program around it"
    if not specs:
        raise SourceError(f"the graph has no {kind}", where=str(path), next_step=step)
    for spec in specs:
        if spec.dtype in ("object", "string") or spec.dtype.startswith(("<U", "str")):
            raise SourceError(f"{kind} {spec.name} holds texts, not numbers", where=str(path), next_step=step)


def _free(
    name: str, one: tuple[int, ...], two: tuple[int, ...], sizes_one: Mapping[str, int], sizes_two: Mapping[str, int]
) -> tuple[int | str, ...]:
    if len(one) != len(two):
        raise ValueError(f"output {name} changes its rank with the input's size")
    shape: list[int | str] = []
    for axis, (a, b) in enumerate(zip(one, two, strict=True)):
        if a == b:
            shape.append(int(a))
            continue
        known = [size for size in sizes_one if sizes_one[size] == a and sizes_two[size] == b]
        shape.append(known[0] if known else f"{name}_{axis}")
    return tuple(shape)
