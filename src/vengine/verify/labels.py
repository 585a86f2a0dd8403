"""From the user's labels to the model's classes, with a clear word for a label that fits none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vengine.errors import DataError
from vengine.types import Sample
from vengine.verify.arrange import excerpt

_SHOWN = 12


def label_indices(
    samples: Sequence[Sample], classes: Sequence[str], width: int, places: Sequence[int] = ()
) -> NDArray[np.intp]:
    """The class number of each sample's label.

    A label is a class name (compared exactly, then without case, spaces, "-" and "_") or a class
    number 0 … width − 1. A name wins over a number, so classes called "1" … "5" mean themselves.

    Args:
        samples: all of them have a label.
        classes: the model's class names in the order of its logits; may be empty.
        width: how many logits the model has.
        places: where each sample stands among the user's, for the message; () counts them.

    Raises:
        DataError: a label is no class; the message names it and the known classes.
    """
    names = tuple(classes) if len(classes) == width else ()
    exact = {name: i for i, name in enumerate(names)}
    loose: dict[str, int | None] = {}
    for i, name in enumerate(names):
        loose[_plain(name)] = None if _plain(name) in loose else i  # two names alike: only exact counts
    rows = places or range(len(samples))
    return np.array([_index(s, n, exact, loose, width) for n, s in zip(rows, samples, strict=True)], dtype=np.intp)


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c not in " _-")


def _index(sample: Sample, row: int, exact: dict[str, int], loose: dict[str, int | None], width: int) -> int:
    label = (sample.label or "").strip()
    if label in exact:
        return exact[label]
    near = loose.get(_plain(label))
    if near is not None:
        return near
    number = label.upper().removeprefix("LABEL_")
    if number.isdecimal() and int(number) < width:
        return int(number)
    known = list(exact)
    listed = ", ".join(known[:_SHOWN]) + (f", … ({len(known)} in all)" if len(known) > _SHOWN else "")
    raise DataError(
        f"label {label!r} is not a class of the model",
        where=f"sample {row + 1}: {excerpt(sample, 60)!r}",
        next_step=(f"known classes: {listed}; " if known else "the model doesn't name its classes; ")
        + f"class numbers 0 to {width - 1} are accepted",
    )
