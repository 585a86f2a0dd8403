"""Pipelines of passes, by the words that a recipe uses: applied, checked beside the untouched graph, and bisected.

The graph that comes out must answer as the one that went in, with the runtime's optimisation off, at several sizes,
with padding on both sides and with a row that is all padding. When it doesn't, the pass that broke it is found by
bisection and left out, and its result names the node where the answers part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from vengine.errors import UsageError
from vengine.graph.export import DATA, EXTERNAL_FROM_BYTES, MODEL
from vengine.graph.export_checks import Case, cases_for, compare
from vengine.graph.known import is_initializer
from vengine.graph.passes import (
    attention,
    drop_identities,
    drop_nan_guards,
    drop_unused,
    finite_masks,
    fold_constants,
    gelu,
    one_mask,
    plain_transposes,
    reduce_masks,
    rms_norm,
    share_initializers,
    skip_norm,
)
from vengine.sources import example_feeds, onnx_file
from vengine.sources.checkpoint import brief
from vengine.types import Exactness, PassResult, Source

if TYPE_CHECKING:
    import onnx_ir as ir


class Pass(Protocol):
    """A file of graph/passes: changes a model in place and says what it did."""

    NAME: str
    EXACTNESS: Exactness

    @staticmethod
    def run(model: ir.Model) -> PassResult:
        """Change the model."""
        ...


CLEAN: tuple[Any, ...] = (
    fold_constants,
    drop_identities,
    plain_transposes,
    reduce_masks,
    finite_masks,
    drop_nan_guards,
    one_mask,
    share_initializers,
    drop_unused,
)
FUSED: tuple[Any, ...] = (*CLEAN[:-1], rms_norm, gelu, skip_norm, attention, drop_unused)
PIPELINES: Mapping[str, tuple[Any, ...]] = {"clean": CLEAN, "fused": FUSED}  # a recipe's words


@dataclass(frozen=True, kw_only=True)
class Question:
    """One call with the answers of the untouched graph."""

    case: Case
    feeds: Mapping[str, Any]
    answers: Mapping[str, Any]


class _Broken(Exception):
    """A pass that raised, or a check that failed."""

    def __init__(self, reason: str, culprit: Pass | None = None, question: Question | None = None) -> None:
        super().__init__(reason)
        self.reason, self.culprit, self.question = reason, culprit, question


def apply(model: Path, target: Path, steps: Sequence[Any], source: Source) -> tuple[PassResult, ...]:
    """Write `target`/model.onnx: the model after these passes, less those that change its answers.

    Args:
        model: an .onnx file; it is not changed.
        steps: the passes, in order; see `PIPELINES`.
        source: says which inputs the model accepts.

    Raises:
        UsageError: no pass found anything to do.
    """
    target.mkdir(parents=True, exist_ok=True)
    questions = _ask(model, source)
    results, refused = _sound(model, target, steps, questions, source)
    if not any(result.matched for result in results.values()):
        raise UsageError("the passes find nothing to do in this graph", where=str(model))
    return tuple({**results, **refused}[step.NAME] for step in steps)


def _sound(
    model: Path, target: Path, steps: Sequence[Any], questions: Sequence[Question], source: Source
) -> tuple[dict[str, PassResult], dict[str, PassResult]]:
    """Write the model after all passes that keep its answers: (their results, those of the passes left out)."""
    refused: dict[str, PassResult] = {}
    while True:
        left = [step for step in steps if step.NAME not in refused]
        try:
            _, results = _run(model, target, left)
            _check(target / MODEL, questions, source)
        except _Broken as broken:
            culprit, node, reason = _bisect(model, target, left, questions, source, broken)
            why = f"left out, because it changes the answers: {reason}"
            refused[culprit.NAME] = PassResult(
                name=culprit.NAME, exactness=culprit.EXACTNESS, matched=0, refusals=((node, why),)
            )
        else:
            return results, refused


def _run(model: Path, target: Path, steps: Sequence[Any]) -> tuple[ir.Model, dict[str, PassResult]]:
    """Run the passes over a fresh copy and write it."""
    import onnx_ir as ir

    graph, results = ir.load(model), {}
    for step in steps:
        try:
            results[step.NAME] = step.run(graph)
        except Exception as error:
            raise _Broken(f"it fails: {brief(error)}", culprit=step) from error
    save(graph, target)
    return graph, results


def save(graph: ir.Model, target: Path) -> None:
    """Write model.onnx with its weights beside it."""
    import onnx_ir as ir

    for name in (MODEL, DATA):
        (target / name).unlink(missing_ok=True)
    ir.save(graph, target / MODEL, external_data=DATA, size_threshold_bytes=EXTERNAL_FROM_BYTES)


def _ask(model: Path, source: Source) -> list[Question]:
    """The untouched graph's answers, with nothing optimised. Calls that it refuses itself hold nobody to anything."""
    session, questions = onnx_file.plain_session(model), []
    names = [output.name for output in session.get_outputs()]
    for case in cases_for(source):
        feeds = example_feeds(source, case.batch, case.length, seed=2, padding=case.padding, masked_row=case.masked_row)
        try:
            answers = dict(zip(names, session.run(names, feeds), strict=True))
        except Exception:  # the runtime raises many kinds; the export's own notes name such a size
            continue
        questions.append(Question(case=case, feeds=feeds, answers=answers))
    assert questions, "the export ran at these sizes"
    return questions


def _check(path: Path, questions: Sequence[Question], source: Source) -> None:
    """Raise `_Broken` with the first question that is answered otherwise."""
    try:
        session = onnx_file.plain_session(path)
    except Exception as error:
        raise _Broken(f"the runtime refuses the graph: {brief(error)}") from error
    names = [output.name for output in session.get_outputs()]
    for question in questions:
        try:
            got = dict(zip(names, session.run(names, dict(question.feeds)), strict=True))
        except Exception as error:
            raise _Broken(f"it fails with {question.case.what}: {brief(error)}", question=question) from error
        check = compare(question.case, question.answers, got, question.feeds, source)
        if not check.ok:
            error_is = f"largest error {check.max_abs_error:.2g}"
            raise _Broken(f"{check.what}, {error_is}", question=question)


def _bisect(
    model: Path, target: Path, steps: Sequence[Any], questions: Sequence[Question], source: Source, broken: _Broken
) -> tuple[Any, str, str]:
    """(the pass that breaks equality, the node where answers part, in words how)."""
    if broken.culprit is not None:
        return broken.culprit, "", broken.reason
    sound, bad, last = 0, len(steps), broken
    while bad - sound > 1:  # steps[:sound] answer right, steps[:bad] don't
        middle = (sound + bad) // 2
        try:
            _run(model, target, steps[:middle])
            _check(target / MODEL, questions, source)
            sound = middle
        except _Broken as found:
            bad, last = middle, found
    node = _parting(model, target, steps[:sound], steps[:bad], last.question)
    return steps[bad - 1], node, last.reason


def _parting(model: Path, target: Path, sound: Sequence[Any], bad: Sequence[Any], question: Question | None) -> str:
    """The first node, in the order of the graph, whose value is another one after the last pass."""
    if question is None:
        return ""
    try:
        before = _values(model, target, sound, question)
        after = _values(model, target, bad, question)
    except Exception:  # it doesn't run at all: the reason says so
        return ""
    for name, (node, value) in after.items():
        if name in before and _differs(before[name][1], value):
            return node
    return ""


def _values(model: Path, target: Path, steps: Sequence[Any], question: Question) -> dict[str, tuple[str, Any]]:
    """{value: (its node, what it holds)} of every float in the graph after these passes."""
    import onnx_ir as ir

    graph, _ = _run(model, target, steps)
    shown = dict[str, str]()
    for node in graph.graph:
        for value in node.outputs:
            if value.name and value.dtype == ir.DataType.FLOAT and value.shape is not None:
                shown[value.name] = node.name or node.op_type
                if not value.is_graph_output() and not is_initializer(value):
                    graph.graph.outputs.append(value)
    save(graph, target)
    session = onnx_file.plain_session(target / MODEL)
    names = list(shown)
    return dict(zip(names, zip(shown.values(), session.run(names, dict(question.feeds)), strict=True), strict=True))


def _differs(one: Any, two: Any) -> bool:
    import numpy as np

    if one.shape != two.shape:
        return True
    scale = max(float(np.abs(one[np.isfinite(one)]).max(initial=0.0)), 1e-2)
    return not np.allclose(one, two, rtol=0, atol=1e-3 * scale, equal_nan=True)
