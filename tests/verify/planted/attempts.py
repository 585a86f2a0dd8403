"""A changed model on its way to the judgement that decides what ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.verify.planted import texts
from tests.verify.planted.subjects import BUDGET, Subject

from vengine.engines.base import Feeds, Outputs, Session
from vengine.engines.torch_engine import TorchSession
from vengine.errors import VengineError
from vengine.sources.checkpoint import load
from vengine.sources.directory_reading import Reading, read_directory
from vengine.text import Tokenizer
from vengine.tune.prepare import Prepared
from vengine.tune.trial import broken_promise, compare

Run = Callable[[Feeds], Outputs]
Calls = Callable[[Run, Feeds], Outputs]


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """What stands in for the original, and how texts reach it."""

    session: Session
    prepared: Prepared


Change = Callable[[Subject], Attempt]


def refusal(subject: Subject, change: Change) -> str:
    """Why the changed model may not ship, "" when it may: the steps of a trial up to its race."""
    try:
        attempt = change(subject)
        return broken_promise(*compare(attempt.session, attempt.prepared, subject.original, BUDGET))
    except VengineError as error:
        return f"failed: {error.what}"


class Wrapped:
    """A session whose calls go through a function first."""

    precision_run = "fp32"

    def __init__(self, inner: Session, calls: Calls) -> None:
        self.inputs, self.outputs = inner.inputs, inner.outputs
        self._inner, self._calls = inner, calls

    def run(self, feeds: Feeds) -> Outputs:
        return self._calls(self._inner.run, feeds)

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        return [self.run(feeds) for feeds in many]

    def close(self) -> None:
        pass


def calls(around: Calls) -> Change:
    """The original behind something that spoils its calls."""
    return lambda subject: Attempt(session=Wrapped(subject.session, around), prepared=subject.prepared)


def then(change: Change, around: Calls) -> Change:
    """A changed model behind something that changes its calls."""

    def attempt(subject: Subject) -> Attempt:
        made = change(subject)
        return replace(made, session=Wrapped(made.session, around))

    return attempt


def remembering(made: Callable[[], Calls]) -> Change:
    """The same, for something that keeps a state from call to call."""
    return lambda subject: calls(made())(subject)


def for_samples(made: Callable[[Subject], Calls]) -> Change:
    """The same, for something that looks at the samples."""
    return lambda subject: calls(made(subject))(subject)


def outputs(spoil: Callable[[Any], Any]) -> Change:
    """The original with each output array spoilt."""
    return calls(lambda run, feeds: {name: spoil(array) for name, array in run(feeds).items()})


def renamed(name: str) -> Change:
    """The original, whose first output got another name."""

    def attempt(subject: Subject) -> Attempt:
        first = subject.session.outputs[0]
        session = Wrapped(subject.session, lambda run, feeds: {name: run(feeds)[first.name]})
        session.outputs = (replace(first, name=name),)
        return Attempt(session=session, prepared=subject.prepared)

    return attempt


def inputs(spoil: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    """The original with spoilt feeds."""
    return calls(lambda run, feeds: run(spoil(dict(feeds))))


def weights(spoil: Callable[[Any], None], reread: Callable[[Reading], Reading] = lambda r: r) -> Change:
    """The model read anew and its transformers module changed in place; `reread` changes what stands around it."""

    def attempt(subject: Subject) -> Attempt:
        import torch

        loaded = load(reread(read_directory(subject.path, subject.source.task)))
        with torch.no_grad():
            spoil(loaded.module.model)
        session = TorchSession(torch, loaded.module, subject.session.inputs, subject.session.outputs)
        return Attempt(session=session, prepared=subject.prepared)

    return attempt


def tokenizer(window: int = texts.WINDOW, **facts: Any) -> Change:
    """The original behind another tokenizer."""

    def attempt(subject: Subject) -> Attempt:
        other = Tokenizer(texts.tokenizer_json(**facts), window)
        return Attempt(session=subject.session, prepared=_read_by(other, subject.prepared))

    return attempt


def _read_by(other: Tokenizer, prepared: Prepared) -> Prepared:
    return replace(prepared, tokenizer=other, encodings=tuple(other.encode(prepared.texts)))
