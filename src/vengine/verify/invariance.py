"""Does an answer depend on its neighbours, its padding, its place in the batch, or on what was asked before?

Dynamic int8 does: it chooses one scale for a whole tensor, so a loud neighbour costs a quiet text
its precision. Each text is run alone and in company, and the answers are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vengine.errors import DataError, VengineError
from vengine.text import Encoding, feeds
from vengine.types import Company, Invariance, Outcome, Task
from vengine.verify.arrange import Array

Run = Callable[[dict[str, NDArray[np.int64]]], Mapping[str, Array]]
Answers = list[dict[str, Array]]  # one for each text, without padding
Groups = list[list[int]]  # texts that are run together
Side = Literal["left", "right"]

MOST_TEXTS, LEAST_TEXTS = 24, 8
COST = 11  # all circumstances together take about so many times the work of the texts alone
_COMPANY = 8


@dataclass(frozen=True, kw_only=True)
class Circumstance:
    """One way to keep a text company. `groups`: number of texts (sorted by length) → who runs with whom."""

    key: str
    what: str
    groups: Callable[[int], Groups]
    stretch: int = 1  # padded to so many times the longest text
    turned: bool = False  # padded on the other side
    empty_row: bool = False  # a fully masked row runs first in the batch


def _single(count: int) -> Groups:
    return [[i] for i in range(count)]


def _mixed(count: int) -> Groups:
    """Batches of about 8 that mix short and long: every k-th of the sorted texts."""
    step = max(1, math.ceil(count / _COMPANY))
    return [list(range(start, count, step)) for start in range(step)]


def _alike(count: int, size: int = _COMPANY) -> Groups:
    """Other neighbours and other places: batches of like lengths, longest first."""
    backwards = list(range(count - 1, -1, -1))
    return [backwards[i : i + size] for i in range(0, count, size)]


def _shuffled(count: int) -> Groups:
    """The same batches as `_alike` in another order, sorted neither way."""
    return [group[1::2] + group[::2] for group in _alike(count)]


_ALONE = Circumstance(key="alone", what="alone", groups=_single)
ALWAYS = (
    Circumstance(key="batch", what="in a batch of 8", groups=_mixed),
    Circumstance(key="padded", what="padded to twice its length", groups=_single, stretch=2),
    Circumstance(key="neighbours", what="among other neighbours", groups=_alike),
    Circumstance(key="order", what="in another order of that batch", groups=_shuffled),
)
# Asked of a variant only where the original itself bears it: positions may count from the left.
PERHAPS = (
    Circumstance(key="left", what="padded on the other side", groups=_alike, turned=True),
    Circumstance(key="empty", what="beside an empty row", groups=lambda n: _alike(n, _COMPANY - 1), empty_row=True),
)


def invariance(
    run: Run,
    encodings: Sequence[Encoding],
    names: Sequence[str],
    pad_id: int,
    task: Task,
    bound: float = 0.999,
    *,
    texts: Sequence[str] = (),
    max_tokens: int | None = None,
    side: Side = "right",
    count: int = MOST_TEXTS,
    perhaps: Collection[str] = (),
) -> Invariance:
    """Run some texts alone, and in each circumstance of `ALWAYS`: in batches, padded, in another order, …

    Two answers are compared by 1 − ½ (distance ÷ usual size)², which for vectors of length one is
    their cosine, and which also sees a change of scale; for outputs with a row a token the worst
    token counts. The usual size is the root mean square over all texts alone (of the spread, for a
    scoring model: what counts is how far texts differ).

    Args:
        run: feeds → outputs of the model under test, any batch and length.
        encodings: the user's texts as tokens; up to `count` are taken, spread over the lengths.
        names: the model's inputs.
        task: what the model does.
        bound: the least similarity that passes.
        texts: the texts themselves, for the report.
        max_tokens: padding goes no further.
        side: where the padding goes.
        perhaps: keys of `PERHAPS` that are tried too (see `bears`).

    Returns:
        The worst similarity of each comparison. `undecided` when there is only one text to run.
    """
    if not encodings:
        raise DataError("there are no texts to check invariance on", next_step="give a file of texts with --data")
    bench = _Bench(run=run, encodings=encodings, names=names, pad_id=pad_id, side=side, max_tokens=max_tokens)
    chosen = _spread([e.length for e in encodings], count)
    tried = (*ALWAYS, *(c for c in PERHAPS if c.key in perhaps))
    alone = bench.answers(chosen, _ALONE)
    similar = np.array([similarities(alone, bench.answers(chosen, way), task) for way in tried])

    def named(row: NDArray[np.float64]) -> str:
        culprit = chosen[int(np.argmin(row))]
        return texts[culprit][:80] if culprit < len(texts) else f"text {culprit + 1}"

    worst = {c.key: float(row.min()) for c, row in zip(tried, similar, strict=True)}
    sound: Outcome = "pass" if len(chosen) > 1 else "undecided"
    return Invariance(
        outcome=sound if min(worst.values()) >= bound else "fail",
        alone_vs_batch=worst["batch"],
        alone_vs_padded=worst["padded"],
        alone_vs_neighbours=worst["neighbours"],
        bound=bound,
        worst_sample=named(np.min(similar, axis=0)),
        checks=tuple(
            Company(what=c.what, similarity=worst[c.key], worst_sample=named(row))
            for c, row in zip(tried, similar, strict=True)
        ),
    )


def bears(
    run: Run,
    encodings: Sequence[Encoding],
    names: Sequence[str],
    pad_id: int,
    task: Task,
    bound: float = 0.999,
    *,
    max_tokens: int | None = None,
    count: int = LEAST_TEXTS,
) -> tuple[str, ...]:
    """Keys of `PERHAPS` that leave this model's answers as they are; it is the original, on a few texts.

    A model without a mask bears neither: it can't tell padding from text.
    """
    if "attention_mask" not in names or not encodings:
        return ()
    bench = _Bench(run=run, encodings=encodings, names=names, pad_id=pad_id, side="right", max_tokens=max_tokens)
    chosen = _spread([e.length for e in encodings], count)
    alone = bench.answers(chosen, _ALONE)

    def borne(way: Circumstance) -> bool:
        try:
            return bool(similarities(alone, bench.answers(chosen, way), task).min() >= bound)
        except VengineError:  # what the original can't run at all, no variant has to
            return False

    return tuple(way.key for way in PERHAPS if borne(way))


@dataclass(frozen=True, kw_only=True)
class _Bench:
    """A model and the texts that it is given."""

    run: Run
    encodings: Sequence[Encoding]
    names: Sequence[str]
    pad_id: int
    side: Side
    max_tokens: int | None

    def answers(self, chosen: Sequence[int], way: Circumstance) -> Answers:
        """The chosen texts' own parts of the outputs, in this circumstance."""
        texts = [self.encodings[i] for i in chosen]
        found: dict[int, dict[str, Array]] = {}
        side = self.side if not way.turned else "left" if self.side == "right" else "right"
        for group in way.groups(len(texts)):
            longest = max(1, *(texts[i].length for i in group))
            width = longest * way.stretch
            if self.max_tokens is not None:
                width = max(longest, min(width, self.max_tokens))
            rows = [_EMPTY] * way.empty_row + [texts[i] for i in group]
            outputs = self.run(feeds(rows, self.names, self.pad_id, length=width, side=side))
            for row, i in enumerate(group, start=int(way.empty_row)):
                found[i] = {name: _own(out[row], width, texts[i].length, side) for name, out in outputs.items()}
        return [found[i] for i in range(len(texts))]


_EMPTY = Encoding(ids=np.zeros(0, dtype=np.int64), type_ids=np.zeros(0, dtype=np.int64), truncated=False)


def _spread(lengths: Sequence[int], count: int) -> list[int]:
    """Up to `count` indices, evenly over the sorted lengths, the shortest and the longest among them."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return [order[p] for p in places.tolist()]


def _own(row: Array, width: int, length: int, side: str) -> Array:
    """A text's own part of an output: without the padding, where the output has a row a token."""
    if row.ndim < 2 or row.shape[0] != width:
        return row
    return row[width - length :] if side == "left" else row[:length]


def similarities(alone: Answers, other: Answers, task: Task) -> NDArray[np.float64]:
    """[texts] the worst output's similarity of each text; −1 where an answer isn't finite or has another shape."""
    by_output = [_output_similarity([a[n] for a in alone], [b[n] for b in other], task) for n in alone[0]]
    return np.asarray(np.min(by_output, axis=0))


def _output_similarity(alone: Sequence[Array], other: Sequence[Array], task: Task) -> NDArray[np.float64]:
    first = [np.atleast_2d(np.asarray(a, dtype=np.float64)) for a in alone]
    second = [np.atleast_2d(np.asarray(b, dtype=np.float64)) for b in other]
    rows = np.concatenate([a.reshape(-1, a.shape[-1]) for a in first])
    if task == "scoring" and len(rows) > 1:
        rows = rows - rows.mean(axis=0)
    size = float(np.sqrt(np.mean(np.sum(rows**2, axis=1))))
    return np.array(list(_row_similarities(first, second, size)))


def _row_similarities(first: Sequence[Array], second: Sequence[Array], size: float) -> Iterator[float]:
    for a, b in zip(first, second, strict=True):
        if a.shape != b.shape or not np.isfinite(b).all() or not np.isfinite(a).all():
            yield -1.0
            continue
        distance = float(np.linalg.norm(b - a, axis=-1).max(initial=0.0))
        share = 0.0 if distance == 0 else distance / size if size > 0 else math.inf
        yield max(-1.0, 1 - share**2 / 2)
