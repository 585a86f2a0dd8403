"""Does an answer depend on its neighbours, its padding or its place in the batch?

Dynamic int8 does: it chooses one scale for a whole tensor, so a loud neighbour costs a quiet text
its precision. Each text is run alone and in company, and the answers are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vengine.engines.base import require_rows
from vengine.errors import DataError
from vengine.text import Encoding, feeds
from vengine.types import Invariance, Outcome, Task
from vengine.verify.arrange import Array

Feeds = Mapping[str, Array]
Run = Callable[[dict[str, NDArray[Any]]], Mapping[str, Array]]
Answers = list[dict[str, Array]]  # one for each text, without padding

_TEXTS = 24
_COMPANY = 8


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One call: which texts it held, to how many tokens it was padded, and what came out."""

    group: Sequence[int]
    width: int
    outputs: Mapping[str, Array]


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

    def ask(groups: Sequence[Sequence[int]], stretch: int = 1) -> list[_Call]:
        return [_padded_call(run, few, group, names, pad_id, side, stretch, max_tokens) for group in groups]

    singles = [[i] for i in range(len(few))]
    runs = (ask(singles), ask(_mixed(len(few))), ask(singles, stretch=2), ask(_alike(len(few))))
    axes, lengths = _token_axes([*runs[0], *runs[2]]), [e.length for e in few]
    alone, *others = (_of_each(calls, axes, lengths, side) for calls in runs)
    return _judged(alone, others, task, bound, lambda i: _words(texts, chosen[i], "text"))


def invariance_of_tensors(
    run: Run,
    calls: Sequence[Feeds],
    task: Task,
    bound: float = 0.999,
    *,
    texts: Sequence[str] = (),
    count: int = _TEXTS,
) -> Invariance | None:
    """The same for a model of tensors: some samples alone, in batches of 8, and among other neighbours.

    Nothing is padded, so that comparison stands at 1.

    Args:
        run: feeds → outputs of the model under test, any batch.
        calls: the user's samples, each as a batch of one. Those of the most frequent shape are taken.
        texts: the samples in words, for the report.

    Returns:
        As `invariance`; None where no two samples have the same shapes: nothing can form a batch.
    """
    if not calls:
        raise DataError("there are no samples to check invariance on", next_step="give a file of samples with --data")
    alike = _of_one_shape(calls)
    if len(alike) < 2 <= len(calls):
        return None
    chosen = [alike[i] for i in _spread([0] * len(alike), count)]

    def ask(groups: Sequence[Sequence[int]]) -> Answers:
        asked = [_Call(group=g, width=0, outputs=_stacked(run, [calls[chosen[i]] for i in g])) for g in groups]
        return _of_each(asked, {}, [0] * len(chosen), "right")

    alone = ask([[i] for i in range(len(chosen))])
    others = (ask(_mixed(len(chosen))), alone, ask(_alike(len(chosen))))
    return _judged(alone, others, task, bound, lambda i: _words(texts, chosen[i], "sample"))


def _judged(
    alone: Answers, others: Sequence[Answers], task: Task, bound: float, words: Callable[[int], str]
) -> Invariance:
    """Answers alone against those in a batch, padded, and among other neighbours."""
    similar = [_similarities(alone, other, task) for other in others]
    worst = [float(s.min()) for s in similar]
    outcome: Outcome = "pass" if min(worst) >= bound else "fail"
    if len(alone) < 2 and outcome == "pass":
        outcome = "undecided"
    return Invariance(
        outcome=outcome,
        alone_vs_batch=worst[0],
        alone_vs_padded=worst[1],
        alone_vs_neighbours=worst[2],
        bound=bound,
        worst_sample=words(int(np.argmin(np.min(similar, axis=0)))),
    )


def _words(texts: Sequence[str], place: int, kind: str) -> str:
    return texts[place][:80] if place < len(texts) else f"{kind} {place + 1}"


def _of_one_shape(calls: Sequence[Feeds]) -> list[int]:
    """Places of the samples of the most frequent shape: only those can stand in one batch."""
    by_shape: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for i, call in enumerate(calls):
        by_shape.setdefault(tuple(call[name].shape for name in sorted(call)), []).append(i)
    return max(by_shape.values(), key=len)


def _stacked(run: Run, calls: Sequence[Feeds]) -> Mapping[str, Array]:
    outputs = run({name: np.concatenate([call[name] for call in calls]) for name in calls[0]})
    require_rows(outputs, len(calls))
    return outputs


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


def _padded_call(
    run: Run,
    encodings: Sequence[Encoding],
    group: Sequence[int],
    names: Sequence[str],
    pad_id: int,
    side: Literal["left", "right"],
    stretch: int,
    max_tokens: int | None,
) -> _Call:
    longest = max(1, *(encodings[i].length for i in group))
    width = longest * stretch if max_tokens is None else max(longest, min(longest * stretch, max_tokens))
    outputs = run(feeds([encodings[i] for i in group], names, pad_id, length=width, side=side))
    require_rows(outputs, len(group))
    return _Call(group=group, width=width, outputs=outputs)


def _token_axes(calls: Sequence[_Call]) -> dict[str, tuple[int, ...]]:
    """For each output the axes that follow the width of the call: one for hidden states, two for attention maps."""
    different = len({call.width for call in calls}) > 1

    def axes(name: str) -> tuple[int, ...]:
        shapes = [call.outputs[name].shape for call in calls]
        if not different and len(shapes[0]) < 3:
            return ()  # calls of one width only: a vector may be as wide by chance
        known = range(1, min(map(len, shapes)) if different else 2)
        return tuple(a for a in known if all(s[a] == c.width for s, c in zip(shapes, calls, strict=True)))

    return {name: axes(name) for name in calls[0].outputs}


def _of_each(calls: Sequence[_Call], axes: Mapping[str, tuple[int, ...]], lengths: Sequence[int], side: str) -> Answers:
    """Each text's own part of the outputs, in the texts' order."""
    found: dict[int, dict[str, Array]] = {}
    for call in calls:
        for row, i in enumerate(call.group):
            found[i] = {
                name: _own(rows[row], axes.get(name, ()), lengths[i], side) for name, rows in call.outputs.items()
            }
    return [found[i] for i in range(len(lengths))]


def _own(row: Array, axes: Sequence[int], length: int, side: str) -> Array:
    """A text's own part of an output, without the padding: [tokens, …] where a token has a row or a number."""
    for axis in axes:
        size = row.shape[axis - 1]
        kept = slice(size - length, size) if side == "left" else slice(0, length)
        row = row[(slice(None),) * (axis - 1) + (kept,)]
    return row[:, None] if axes and row.ndim == 1 else row


def _similarities(alone: Answers, other: Answers, task: Task) -> NDArray[np.float64]:
    """[texts] the worst output's similarity of each text."""
    by_output = [_output_similarity([a[n] for a in alone], [b[n] for b in other], task) for n in alone[0]]
    return np.asarray(np.min(by_output, axis=0))


def _output_similarity(alone: Sequence[Array], other: Sequence[Array], task: Task) -> NDArray[np.float64]:
    first = [np.atleast_2d(np.asarray(a, dtype=np.float64)) for a in alone]
    second = [np.atleast_2d(np.asarray(b, dtype=np.float64)) for b in other]
    rows = [row for a in first for row in a.reshape(-1, a.shape[-1])]  # of attention maps each has its own width
    if task == "scoring" and len(rows) > 1 and len({len(row) for row in rows}) == 1:
        middle = np.mean(rows, axis=0)
        rows = [row - middle for row in rows]
    size = math.sqrt(float(np.mean([row @ row for row in rows]))) if rows else 0.0
    return np.array(list(_row_similarities(first, second, size)))


def _row_similarities(first: Sequence[Array], second: Sequence[Array], size: float) -> Iterator[float]:
    for a, b in zip(first, second, strict=True):
        if a.shape != b.shape or not np.isfinite(b).all() or not np.isfinite(a).all():
            yield -1.0
            continue
        distance = float(np.linalg.norm(b - a, axis=-1).max(initial=0.0))
        share = 0.0 if distance == 0 else distance / size if size > 0 else math.inf
        yield max(-1.0, 1 - share**2 / 2)
