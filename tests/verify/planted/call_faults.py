"""Faults between the text and the model, and between the model and the answer: tokens, masks, batches, outputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.verify.planted import texts
from tests.verify.planted.attempts import (
    Calls,
    Run,
    calls,
    for_samples,
    inputs,
    outputs,
    remembering,
    renamed,
    tokenizer,
)
from tests.verify.planted.subjects import Subject
from tests.verify.planted.table import ALL, CLASSES, Row, row

from vengine.engines.base import Feeds, Outputs

TYPED = ("bert", "electra")
UNIT = ("bert", "mpnet")  # vectors of length one


def _each(answers: Outputs, spoil: Any) -> Outputs:
    return {name: spoil(array) for name, array in answers.items()}


# --- what goes in ----------------------------------------------------------------------------


def _mask(spoil: Any) -> Any:
    return inputs(lambda feeds: {**feeds, "attention_mask": spoil(feeds["attention_mask"])})


def _last_hidden(mask: Any) -> Any:
    """The last token of each text counts as padding."""
    return mask * (np.cumsum(mask, axis=1) < np.maximum(mask.sum(axis=1, keepdims=True), 2))


def _one_more(mask: Any) -> Any:
    """The first padding token counts as text."""
    longer = mask.copy()
    longer[:, 1:] |= mask[:, :-1]
    return longer


def _ids(spoil: Any) -> Any:
    return inputs(lambda feeds: {**feeds, "input_ids": spoil(feeds["input_ids"])})


def _first_hidden(ids: Any) -> Any:
    """CLS became another token."""
    return np.where(ids == texts.FIRST, texts.UNKNOWN, ids)


def _end_hidden(ids: Any) -> Any:
    return np.where(ids == texts.LAST, texts.UNKNOWN, ids)


def _types_swapped(feeds: dict[str, Any]) -> dict[str, Any]:
    return {**feeds, "token_type_ids": 1 - feeds["token_type_ids"]}


def _pair_order(run: Run, feeds: Feeds) -> Outputs:
    """The second text stands before the first."""
    ids = feeds["input_ids"].copy()
    for row_ in ids:
        end = int(np.flatnonzero(row_ != texts.PAD)[-1])
        cut = int(np.flatnonzero(row_ == texts.LAST)[0])
        row_[1 : end + 1] = np.concatenate([row_[cut + 1 : end + 1], row_[1 : cut + 1]])
    return run({**feeds, "input_ids": ids})


def _neighbours_exchanged(ids: Any) -> Any:
    """Tokens 1 and 2, 3 and 4, … exchange their places."""
    order = np.arange(ids.shape[1])
    order[1:-1] = ((order[1:-1] - 1) ^ 1) + 1
    return ids[:, np.minimum(order, ids.shape[1] - 1)]


def _cut_at(tokens: int) -> Any:
    """What lies beyond so many tokens is not seen."""

    def spoil(feeds: dict[str, Any]) -> dict[str, Any]:
        mask = feeds["attention_mask"].copy()
        mask[:, tokens:] = 0
        return {**feeds, "attention_mask": mask}

    return inputs(spoil)


# --- what comes out, and what else is in the batch -----------------------------------------------


def _opposite(array: Any) -> Any:
    return -array


def _next_class(array: Any) -> Any:
    """Each class gets the logit of the one before it."""
    return np.roll(array, 1, axis=-1)


def _one_in_500(value: float | Any) -> Any:
    """One text, recognised by its tokens, gets this for an answer, or what a function makes of it."""

    def made(subject: Subject) -> Calls:
        place = _surest(subject)
        marked = _marked(subject, place)

        def run(inner: Run, feeds: Feeds) -> Outputs:
            found = np.array([marked(i, feeds) for i in range(len(next(iter(feeds.values()))))])

            def spoil(a: Any) -> Any:
                wrong = value(a) if callable(value) else np.full_like(a, value)
                return np.where(found.reshape(-1, *[1] * (a.ndim - 1)), wrong, a)

            return _each(inner(feeds), spoil)

        return run

    return for_samples(made)


def _surest(subject: Subject) -> int:
    """The sample whose answer is furthest from zero: one of nothing has no opposite."""
    rows = next(iter(subject.original.judge.original.values()))
    return int(np.argmax([float(np.sqrt(np.mean(np.square(row)))) for row in rows]))


def _marked(subject: Subject, place: int) -> Any:
    """Whether a row of the feeds is this sample."""
    tensors = subject.prepared.samples[place].tensors
    if tensors is not None:
        return lambda i, feeds: np.array_equal(feeds["pixel_values"][i], tensors["pixel_values"])
    ids = subject.prepared.encodings[place].ids

    def same(i: int, feeds: Feeds) -> bool:
        row_ = feeds["input_ids"][i]
        return np.array_equal(row_[row_ != texts.PAD], ids)

    return same


def _last_copies_first(array: Any) -> Any:
    copied = array.copy()
    copied[-1] = array[0]
    return copied


def _stale_buffer() -> Calls:
    """A call gets the answer of the one before it, where that has its shape."""
    before: dict[str, Any] = {}

    def run(inner: Run, feeds: Feeds) -> Outputs:
        found = inner(feeds)
        given = {n: before[n] if n in before and before[n].shape == a.shape else a for n, a in found.items()}
        before.update(found)
        return given

    return run


def _wears_out() -> Calls:
    """From the twelfth call on every answer is the same."""
    count = 0

    def run(inner: Run, feeds: Feeds) -> Outputs:
        nonlocal count
        count += 1
        return _each(inner(feeds), lambda a: a * 0 + 0.1 if count > 12 else a)

    return run


def _restless() -> Calls:
    """Noise of a tenth of an answer's size, another one in each call."""
    random = np.random.default_rng(0)

    def noisy(array: Any) -> Any:
        return array + (0.1 * array.std() * random.standard_normal(array.shape)).astype(array.dtype)

    return lambda inner, feeds: _each(inner(feeds), noisy)


def _by_batch(factor: Any) -> Any:
    """Every answer times a factor of (rows, width, share of padding) of the call."""

    def run(inner: Run, feeds: Feeds) -> Outputs:
        first = next(iter(feeds.values()))
        padding = 1 - float(feeds["attention_mask"].mean()) if "attention_mask" in feeds else 0.0
        by = np.float32(factor(len(first), first.shape[1], padding))
        return _each(inner(feeds), lambda a: a * by)

    return calls(run)


def _mixed_in(inner: Run, feeds: Feeds) -> Outputs:
    """A fifth of the batch's mean in every answer."""
    return _each(inner(feeds), lambda a: 0.8 * a + 0.2 * a.mean(axis=0, keepdims=True))


def _fused(inner: Run, feeds: Feeds) -> Outputs:
    """A kernel that reads the first text's mask for all."""
    if "attention_mask" not in feeds:
        return inner(feeds)
    return inner({**feeds, "attention_mask": feeds["attention_mask"][:1].repeat(len(feeds["input_ids"]), axis=0)})


def _classes_swapped(array: Any) -> Any:
    return array[..., [1, 0, *range(2, array.shape[-1])]]


def _uncertain(array: Any) -> Any:
    """The first class gains by half the spread of the logits."""
    shifted = array.copy()
    shifted[..., 0] += 0.5 * array.std()
    return shifted


def _in_steps(array: Any) -> Any:
    """Three steps between zero and the largest value."""
    step = max(float(np.abs(array).max()), 1e-6) / 3
    return (np.round(array / step) * step).astype(array.dtype)


CALL_FAULTS: tuple[Row, ...] = (
    row("the mask is ignored", _mask(lambda mask: mask * 0 + 1)),
    row("the mask one token short", _mask(_last_hidden), within=("roberta", "modernbert")),
    row("the mask one token long", _mask(_one_more)),
    row("the first text's mask for all", calls(_fused)),
    row("the first token masked", _mask(lambda mask: mask * (np.arange(mask.shape[1]) > 0))),
    row("token types swapped", inputs(_types_swapped), TYPED),
    row("the pair's texts exchanged", calls(_pair_order), ("roberta",)),
    row("neighbouring tokens exchanged", _ids(_neighbours_exchanged)),
    row("CLS is another token", _ids(_first_hidden)),
    row("SEP is another token", _ids(_end_hidden)),
    row("nothing seen beyond half of the window", _cut_at(texts.WINDOW // 2), within=("modernbert",)),
    row("capitals unknown", tokenizer(lowercase=False)),
    row("no CLS", tokenizer(frame="$A [SEP]")),
    row("CLS twice", tokenizer(frame="[CLS] [CLS] $A [SEP]"), within=("modernbert",)),
    row("no SEP behind the text", tokenizer(frame="[CLS] $A"), within=("roberta", "modernbert")),
    row("cut at half of the window", tokenizer(texts.WINDOW // 2), within=("distilbert", "modernbert")),
    row("NaN for one text in 500", _one_in_500(np.nan), ALL),
    row("infinity for one text in 500", _one_in_500(np.inf), ALL),
    row("1e30 for one text in 500", _one_in_500(1e30), ALL),
    row("one text in 500 gets the opposite answer", _one_in_500(_opposite), ALL),
    row("one text in 500 gets the next class", _one_in_500(_next_class), CLASSES),
    row("NaN in batches", _by_batch(lambda rows, *_: np.nan if rows > 4 else 1.0), ALL),
    row("rows of a batch reversed", outputs(lambda a: a[::-1]), ALL),
    row("rows of a batch off by one", outputs(lambda a: np.roll(a, 1, axis=0)), ALL),
    row("a batch's last row copies its first", outputs(_last_copies_first), ALL),
    row("all rows get the first one's answer", outputs(lambda a: a[:1].repeat(len(a), axis=0)), ALL),
    row("the answer of the call before", remembering(_stale_buffer), ALL),
    row("constant from the twelfth call on", remembering(_wears_out), ALL),
    row("noise in each call", remembering(_restless), ALL, but=("electra",)),
    row("the batch's mean mixed in", calls(_mixed_in), ALL),
    row("a scale by the number of rows", _by_batch(lambda rows, *_: 1 + 0.01 * rows), ALL),
    row("a scale by the width of the call", _by_batch(lambda _, width, __: 1 + 0.002 * width)),
    row("a scale by the share of padding", _by_batch(lambda _, __, padding: 1 + 0.5 * padding)),
    row("zeros for a single row", _by_batch(lambda rows, *_: float(rows > 1)), ALL),
    row("zeros for some widths", _by_batch(lambda _, width, __: float(width % 16 != 8))),
    row("a constant", outputs(lambda a: a * 0 + 0.1), ALL),
    row("zeros", outputs(lambda a: a * 0), ALL),
    row("sign flipped", outputs(lambda a: -a), ALL),
    row("scaled by 1.2", outputs(lambda a: a * np.float32(1.2)), ALL),
    row("scaled by 0.5", outputs(lambda a: a * np.float32(0.5)), ALL),
    row("shifted", outputs(lambda a: a + 0.5 * a.std()), ALL),
    row("the last axis off by one", outputs(lambda a: np.roll(a, 1, axis=-1)), ALL, but=("roberta",)),
    row("the last axis reversed", outputs(lambda a: a[..., ::-1]), ALL, but=("roberta",)),
    row("two classes swapped", outputs(_classes_swapped), CLASSES),
    row("one class favoured", outputs(_uncertain), CLASSES),
    row("a softmax's temperature of 0.8", outputs(lambda a: a / np.float32(0.8)), CLASSES),
    row("probabilities for logits", outputs(lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True)), CLASSES),
    row("a sigmoid for a logit", outputs(lambda a: 1 / (1 + np.exp(-a))), ("roberta",)),
    row("values above one cut off", outputs(lambda a: np.clip(a, -1, 1)), ALL, but=UNIT),
    row("answers in steps", outputs(_in_steps), ALL),
    row("whole numbers", outputs(lambda a: np.rint(a).astype(np.int64)), ALL),
    row("a row too few", outputs(lambda a: a[:-1]), ALL),
    row("half of the answer", outputs(lambda a: a[..., : a.shape[-1] // 2]), ALL, but=("roberta",)),
    row("an output under another name", renamed("other"), ALL),
)
