"""Calls of many shapes, drawn from the user's lengths or from a spread of them; the same seed gives the same calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from vengine.api.calls import call, token_ids
from vengine.types import TensorSpec

if TYPE_CHECKING:
    from vengine.api.subjects import Subject
    from vengine.engines.base import Feeds

_BATCHES = (1, 2, 4, 8)
_MOST_TOKENS = 4096  # of one call
_MOST_SHAPES = 96
_LONGEST = 256  # where neither data nor model say less
_SHORTEST = 4

Shape = tuple[int, int]  # batch, width: what an engine sees


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What can be asked, cut in two: the shapes that are met while warming up, and those that come later."""

    inputs: tuple[TensorSpec, ...]
    lengths: tuple[int, ...]  # tokens of a text; () for a model without a length
    familiar: tuple[Shape, ...]
    fresh: tuple[Shape, ...]
    possible: int  # how many shapes there are in all, those that are never asked included
    ids: tuple[int, int]

    def feeds(self, shape: Shape) -> Feeds:
        """One call of this shape."""
        batch, width = shape
        return call(self.inputs, batch, width, width, self.ids)

    @property
    def usual(self) -> Shape:
        """The familiar shape in the middle: neither the smallest nor the largest."""
        ordered = sorted(self.familiar, key=lambda s: (s[0] * s[1], s))
        return ordered[len(ordered) // 2]


def traffic(subject: Subject, inputs: Sequence[TensorSpec], texts: Sequence[int], seed: int) -> Traffic:
    """Every shape that such lengths make, in batches of 1, 2, 4 and 8, as far as the model's axes are free.

    Args:
        subject: what is asked; a bundle's texts are padded to its steps.
        inputs: as its session tells them.
        texts: lengths of the user's texts in tokens; () takes a spread from 4 to the model's longest, at most 256.
        seed: draws which half is met first.
    """
    free_batch = any(spec.shape and isinstance(spec.shape[0], str) for spec in inputs)
    free_length = any(len(spec.shape) > 1 and isinstance(spec.shape[1], str) for spec in inputs)
    lengths = tuple(texts) or tuple(range(_SHORTEST, min(_LONGEST, subject.max_tokens or _LONGEST) + 1))
    widths = sorted({subject.width(n) for n in lengths}) if free_length else [1]
    batches = _BATCHES if free_batch else (1,)
    shapes = [(b, w) for b in batches for w in widths if b * w <= _MOST_TOKENS]
    Random(seed).shuffle(shapes)
    possible, shapes = len(shapes), shapes[:_MOST_SHAPES]
    half = -(-len(shapes) // 2)
    return Traffic(
        inputs=tuple(inputs),
        lengths=lengths if free_length else (),
        familiar=tuple(shapes[:half]),
        fresh=tuple(shapes[half:]),
        possible=possible,
        ids=token_ids([subject.vocabulary]),
    )


def lengths_of(data: str | Path, subject: Subject) -> list[int]:
    """Tokens of each text of a data file, as the subject's own tokenizer counts them.

    Raises:
        UsageError: the subject has no tokenizer, so that texts have no length.
        DataError: the file can't be used.
    """
    from vengine.errors import UsageError
    from vengine.text import Tokenizer
    from vengine.workload import read_workload

    if subject.tokenizer is None:
        raise UsageError(
            f"{subject.name} has no tokenizer, so the data says nothing about its calls",
            next_step="leave --data out: the batches are drawn",
        )
    samples = read_workload(data).samples
    tokenizer = Tokenizer.from_file(subject.tokenizer, subject.max_tokens)
    texts = [s.text if s.pair is None else (s.text, s.pair) for s in samples]
    return [max(1, encoding.length) for encoding in tokenizer.encode(texts, True)]
