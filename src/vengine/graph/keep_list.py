"""Which nodes of a graph must stay in fp32 when the rest runs in fp16 or bf16: found, not asked for.

First the rules of `ranges`. Then the outputs decide: while the rounded graph is outside of the tolerance, the node
behind it is found by bisection (the shortest beginning of the graph that must stay in fp32 ends with it), kept, and
the question is asked again. At the end each found node is given up once more, and stays only if it is missed.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from vengine.errors import UsageError
from vengine.graph.half_precision import HalfType
from vengine.graph.ranges import Kept, ruled
from vengine.graph.rounding import Feeds, Rounding, typed_model

TOLERANCE = 0.02  # relative error of a row: for a unit vector a cosine of 0.9998
_MOST_FOUND = 24  # then whole beginnings of the graph are kept: the error is everybody's, and no node's
_TIGHTER = 4.0


@dataclass(frozen=True, kw_only=True)
class KeepList:
    """What stays in fp32, and what that gives on the samples."""

    kept: tuple[Kept, ...]
    error: float  # relative, with these kept
    plain_error: float  # with none kept; inf where something overflows
    tolerance: float
    samples: int
    runs: int  # of the rounded graph, until this was found

    @property
    def nodes(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(kept.node for kept in self.kept)


def find_keep_list(
    path: Path,
    half: HalfType,
    samples: Sequence[Feeds],
    *,
    tolerance: float = TOLERANCE,
    force: Collection[str] = (),
    only: Collection[str] = (),
    tight: bool = False,
) -> KeepList:
    """Search the nodes that must stay.

    Args:
        path: the ONNX file in fp32.
        samples: calls; a few of the lengths that come.
        tolerance: the largest relative error of a row of an output.
        force: operator types or node names that stay, whatever is measured.
        only: operator types or node names that may be converted; () = all.
        tight: allow a quarter of the error that there is with `force` and `only` alone, where that is less.

    Raises:
        UsageError: a word in `force` or `only` names nothing in the graph, or the graph can't be converted.
    """
    rounding = Rounding(path, half, samples)
    kept = {k.node: k for k in forced(path, rounding.names, force=force, only=only)}
    plain = rounding.error(list(kept))
    tolerance = min(tolerance, plain / _TIGHTER) if tight else tolerance
    kept = {k.node: k for k in ruled(path, half, samples, tolerance)} | kept
    by_rule = set(kept)
    while (error := rounding.error(kept)) > tolerance:
        rest = [name for name in rounding.names if name not in kept]
        assert rest, "with every node in fp32 nothing is rounded"
        end = _shortest_beginning(rounding, kept, rest, tolerance)
        many = len(kept) - len(by_rule) >= _MOST_FOUND
        for name in rest[:end] if many else rest[end - 1 : end]:
            told = "infinite" if error == float("inf") else f"{error:.2g}"
            kept[name] = Kept(
                node=name, reason=f"in {half.name} the outputs' error is {told}; {tolerance:.2g} is allowed"
            )
    found = [name for name in kept if name not in by_rule]
    for name in found if len(found) <= _MOST_FOUND else []:
        if (without := rounding.error(set(kept) - {name})) <= tolerance:
            del kept[name]
            error = without
    order = {name: place for place, name in enumerate(rounding.names)}
    return KeepList(
        kept=tuple(sorted(kept.values(), key=lambda k: order[k.node])),
        error=error,
        plain_error=plain,
        tolerance=tolerance,
        samples=len(samples),
        runs=rounding.runs,
    )


def _shortest_beginning(rounding: Rounding, kept: Collection[str], rest: Sequence[str], tolerance: float) -> int:
    """The least n for which keeping `rest[:n]` too is enough."""
    low, high = 0, len(rest)  # low is not enough, high is
    while high - low > 1:
        middle = (low + high) // 2
        if rounding.error({*kept, *rest[:middle]}) > tolerance:
            low = middle
        else:
            high = middle
    return high


def forced(path: Path, names: Sequence[str], *, force: Collection[str], only: Collection[str]) -> tuple[Kept, ...]:
    """The nodes that the user's words keep in fp32.

    Raises:
        UsageError: a word is neither an operator type nor a node of the graph.
    """
    types = {node.name or "": node.op_type for node in typed_model(path).graph}
    for word in (*force, *only):
        require_word(word, types)
    kept = [Kept(node=n, reason="asked for") for n in names if n in force or types[n] in force]
    if only:
        kept += [
            Kept(node=n, reason="not among the operators to convert")
            for n in names
            if n not in only and types[n] not in only and n not in {k.node for k in kept}
        ]
    return tuple(kept)


def require_words(model: Path, words: Collection[str]) -> None:
    """Raise UsageError unless each word is a node's name or an operator type of the ONNX file."""
    if words:
        types = {node.name or "": node.op_type for node in typed_model(model).graph}
        for word in words:
            require_word(word, types)


def require_word(word: str, types: dict[str, str]) -> None:
    """Raise UsageError, with the nearest name, unless the word is a node's name or an operator type.

    Args:
        types: node name → operator type.
    """
    known = {*types, *types.values()}
    if word in known:
        return
    near = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.0)
    raise UsageError(
        f"{word!r} is neither an operator type nor a node name of this graph; the nearest is {near[0]!r}",
        next_step=f"operator types here: {', '.join(sorted(set(types.values())))}",
    )
