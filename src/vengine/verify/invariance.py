"""Does an answer depend on its neighbours, its padding or its place in the batch?

Dynamic int8 does: it chooses one scale for a whole tensor, so a loud neighbour costs a quiet text
its precision. Each text is run alone and in company, and the answers are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vengine.errors import DataError
from vengine.text import Encoding, feeds
from vengine.types import Invariance, Task
from vengine.verify.arrange import Array

Run = Callable[[dict[str, NDArray[np.int64]]], Mapping[str, Array]]
Answers = list[dict[str, Array]]  # one for each text, without padding

_TEXTS = 24
_COMPANY = 8


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
    side: Literal["left", "right"] = "right",
    count: int = _TEXTS,
) -> Invariance:
    """Run some texts alone, in batches of 8, padded to twice their length, and among other neighbours.

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

    Returns:
        The worst similarity of each comparison. `undecided` when there is only one text to run.
    """
    if not encodings:
        raise DataError("there are no texts to check invariance on", next_step="give a file of texts with --data")
    chosen = _spread([e.length for e in encodings], count)
    few = [encodings[i] for i in chosen]

    def answers(groups: Sequence[Sequence[int]], stretch: int = 1) -> Answers:
        return _answers(run, few, groups, names, pad_id, side, stretch, max_tokens)

    singles = [[i] for i in range(len(few))]
    alone = answers(singles)
    others = (answers(_mixed(len(few))), answers(singles, stretch=2), answers(_alike(len(few))))
    similar = [_similarities(alone, other, task) for other in others]
    worst = [float(s.min()) for s in similar]
    culprit = chosen[int(np.argmin(np.min(similar, axis=0)))]
    if len(few) < 2:
        outcome: Literal["pass", "fail", "undecided"] = "undecided" if min(worst) >= bound else "fail"
    else:
        outcome = "pass" if min(worst) >= bound else "fail"
    return Invariance(
        outcome=outcome,
        alone_vs_batch=worst[0],
        alone_vs_padded=worst[1],
        alone_vs_neighbours=worst[2],
        bound=bound,
        worst_sample=texts[culprit][:80] if culprit < len(texts) else f"text {culprit + 1}",
    )


def _spread(lengths: Sequence[int], count: int) -> list[int]:
    """Up to `count` indices, evenly over the sorted lengths, the shortest and the longest among them."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return [order[p] for p in places.tolist()]


def _mixed(count: int) -> list[list[int]]:
    """Batches of about 8 that mix short and long: every k-th of the sorted texts."""
    step = max(1, math.ceil(count / _COMPANY))
    return [list(range(start, count, step)) for start in range(step)]


def _alike(count: int) -> list[list[int]]:
    """Other neighbours and other places: batches of like lengths, longest first."""
    backwards = list(range(count - 1, -1, -1))
    return [backwards[i : i + _COMPANY] for i in range(0, count, _COMPANY)]


def _answers(
    run: Run,
    encodings: Sequence[Encoding],
    groups: Sequence[Sequence[int]],
    names: Sequence[str],
    pad_id: int,
    side: Literal["left", "right"],
    stretch: int,
    max_tokens: int | None,
) -> Answers:
    found: dict[int, dict[str, Array]] = {}
    for group in groups:
        longest = max(1, *(encodings[i].length for i in group))
        width = longest * stretch if max_tokens is None else max(longest, min(longest * stretch, max_tokens))
        outputs = run(feeds([encodings[i] for i in group], names, pad_id, length=width, side=side))
        for row, i in enumerate(group):
            found[i] = {name: _own(rows[row], width, encodings[i].length, side) for name, rows in outputs.items()}
    return [found[i] for i in range(len(encodings))]


def _own(row: Array, width: int, length: int, side: str) -> Array:
    """A text's own part of an output: without the padding, where the output has a row a token."""
    if row.ndim < 2 or row.shape[0] != width:
        return row
    return row[width - length :] if side == "left" else row[:length]


def _similarities(alone: Answers, other: Answers, task: Task) -> NDArray[np.float64]:
    """[texts] the worst output's similarity of each text."""
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
