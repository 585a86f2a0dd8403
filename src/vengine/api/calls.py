"""Calls that are made up to be timed: the same for every model with the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vengine.types import TensorSpec

if TYPE_CHECKING:
    import numpy as np

_TOKEN_IDS = (100, 2000)  # random ids from this range, or from the upper half of a smaller vocabulary


def vocabulary_of(tokenizer: Path | None) -> int | None:
    """How many tokens a tokenizer's file knows; None without a tokenizer."""
    from vengine.text import Tokenizer

    return None if tokenizer is None else Tokenizer.from_file(tokenizer, None).vocabulary


def token_ids(vocabularies: Sequence[int | None]) -> tuple[int, int]:
    """A range of ids that every one of the vocabularies has."""
    known = min((size for size in vocabularies if size), default=_TOKEN_IDS[1])
    return (min(_TOKEN_IDS[0], known // 2), min(_TOKEN_IDS[1], known))


def call(
    inputs: Sequence[TensorSpec], batch: int, length: int, width: int, token_ids: tuple[int, int]
) -> dict[str, np.ndarray]:
    """One call that fits the inputs.

    Args:
        inputs: of the model; each free first axis becomes `batch`, each other free axis `width`.
        batch, length, width: rows, tokens of each, and what they are padded to.
        token_ids: ids are drawn from this range.
    """
    import numpy as np

    draw = np.random.default_rng(length)
    made = {}
    for spec in inputs:
        shape = [
            batch if i == 0 and isinstance(d, str) else width if isinstance(d, str) else d
            for i, d in enumerate(spec.shape)
        ]
        if spec.name == "attention_mask":
            made[spec.name] = (np.arange(width) < length).astype(spec.dtype)[None].repeat(batch, 0)
        elif spec.name == "token_type_ids":
            made[spec.name] = np.zeros(shape, spec.dtype)
        elif np.issubdtype(np.dtype(spec.dtype), np.integer):
            ids = draw.integers(*token_ids, (batch, length))
            made[spec.name] = np.pad(ids, ((0, 0), (0, width - length))).astype(spec.dtype)
        else:
            made[spec.name] = draw.standard_normal(shape).astype(spec.dtype)
    return made
