"""One session out of several: a plan picks the variant, big batches are cut, results come back whole.

A call of 1 × 16 tokens takes about a millisecond, so what is done per call here is counted in
microseconds: shapes are read once, the plan is a few comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from vengine.engines.base import Array, Feeds, Outputs, Session, require_rows, size_of
from vengine.engines.recording import Recording, joined
from vengine.errors import EngineError, UsageError
from vengine.packing import RAGGED_TOKENS
from vengine.text import Text, Tokenizer, batches, feeds, padded_length
from vengine.types import Plan, PlanEntry, RuntimeProfile, TensorSpec


@dataclass(frozen=True, kw_only=True)
class _Member:
    session: Session
    chunk_tokens: int | None
    streams: int
    whole_up_to: float  # calls of at most so many tokens are never cut; inf where a batch can't be
    packs: bool = False  # it makes rows and calls of its own out of what it gets


class PlannedSession:
    """A session over the variants of a plan.

    Args:
        plan: entries in the order of precedence; the last one serves what no other fits.
        sessions: an open session for each digest that the plan names; variants that differ in their chunks alone
            may share one.
        profiles: how each variant is driven; a digest without one is never cut.
        inputs, outputs: the model's own description. Some engines forget the axes' names; the
            manifest remembers them. None takes the first session's.
    """

    def __init__(
        self,
        plan: Plan,
        sessions: Mapping[str, Session],
        profiles: Mapping[str, RuntimeProfile] | None = None,
        *,
        inputs: Sequence[TensorSpec] | None = None,
        outputs: Sequence[TensorSpec] | None = None,
    ) -> None:
        missing = [entry.variant for entry in plan.entries if entry.variant not in sessions]
        if missing or not plan.entries:
            raise UsageError(f"the plan names {missing[0]}, which is not open" if missing else "the plan is empty")
        first = sessions[plan.entries[0].variant]
        self.inputs = tuple(first.inputs if inputs is None else inputs)
        self.outputs = tuple(first.outputs if outputs is None else outputs)
        self.plan = plan
        self._sessions = dict(sessions)
        splits = has_free_batch(self.inputs, self.outputs)
        members = {
            digest: _member(session, (profiles or {}).get(digest), splits) for digest, session in sessions.items()
        }
        self._ranges = ranges_of(plan)
        self._asks_for_fill = any(entry.fill_min for entry in plan.entries)
        self._members = [members[entry.variant] for entry in plan.entries]

    @property
    def precision_run(self) -> str:
        return ", ".join(dict.fromkeys(member.session.precision_run for member in self._members))

    @property
    def batch_tokens(self) -> int | None:
        """The largest chunk that any variant wants, as much as comes where one packs rows; None when none is cut."""
        if any(member.packs for member in self._members):
            return RAGGED_TOKENS
        wanted = [member.chunk_tokens for member in self._members if member.chunk_tokens is not None]
        return max(wanted, default=None)

    def variant_for(self, feeds: Feeds) -> str:
        """The digest of the variant that answers this call."""
        return self.plan.entries[self._place(feeds, *self._size(feeds))].variant

    def run(self, feeds: Feeds) -> Outputs:
        batch, tokens = self._size(feeds)
        member = self._members[self._place(feeds, batch, tokens)]
        if tokens <= member.whole_up_to:
            return member.session.run(feeds)
        cuts = self._cuts(member, feeds, tokens, member.streams)
        if len(cuts) == 1:
            return member.session.run(feeds)
        return _join(member.session.run_many(_cut(feeds, cuts)), cuts)

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        """All calls, cut into chunks; each variant gets its chunks in one go, so its streams stay busy."""
        queues: dict[int, list[Feeds]] = {}
        places: list[tuple[int, int, list[slice]]] = []
        for call in many:
            batch, tokens = self._size(call)
            member = self._members[self._place(call, batch, tokens)]
            # Enough calls keep the streams busy by themselves.
            streams = member.streams if len(many) < member.streams else 1
            cuts = self._cuts(member, call, tokens, streams) if tokens > member.whole_up_to else [slice(None)]
            queue = queues.setdefault(id(member), [])
            places.append((id(member), len(queue), cuts))
            queue.extend(_cut(call, cuts) if len(cuts) > 1 else [call])
        sessions = {id(member): member.session for member in self._members}
        done = {key: sessions[key].run_many(queue) for key, queue in queues.items()}
        return [_join(done[key][start : start + len(cuts)], cuts) for key, start, cuts in places]

    def record(self, many: Sequence[Feeds]) -> list[Recording]:
        """One recording a call: its chunks one after the other, whatever the number of streams."""
        places = [self._parts(call) for call in many]
        groups: dict[int, list[Feeds]] = {}
        for member, parts in places:
            groups.setdefault(id(member), []).extend(parts)
        sessions = {id(member): member.session for member, _ in places}
        told = {key: iter(sessions[key].record(parts)) for key, parts in groups.items()}
        return [joined([next(told[id(member)]) for _ in parts]) for member, parts in places]

    def _parts(self, call: Feeds) -> tuple[_Member, list[Feeds]]:
        batch, tokens = self._size(call)
        member = self._members[self._place(call, batch, tokens)]
        cuts = self._cuts(member, call, tokens, member.streams) if tokens > member.whole_up_to else []
        return member, _cut(call, cuts) if len(cuts) > 1 else [call]

    def close(self) -> None:
        for session in {id(s): s for s in self._sessions.values()}.values():
            session.close()

    def _size(self, feeds: Feeds) -> tuple[int, int]:
        try:
            return size_of(self.inputs, feeds)
        except (KeyError, IndexError):
            return 1, 1  # wrong feeds: the session says what is wrong with them

    def _place(self, feeds: Feeds, batch: int, tokens: int) -> int:
        return place_in(self._ranges, batch, tokens, _fill(feeds) if self._asks_for_fill and batch > 1 else 1.0)

    def _cuts(self, member: _Member, feeds: Feeds, tokens: int, streams: int) -> list[slice]:
        rows = {len(array) if array.ndim else -1 for array in feeds.values()}
        if len(rows) != 1:
            return [slice(None)]  # wrong feeds, again
        return chunks(rows.pop(), tokens, member.chunk_tokens, streams)


Range = tuple[int, float, int, float]  # tokens from, to; least batch; least share of tokens


def ranges_of(plan: Plan) -> list[Range]:
    """The plan's entries as numbers to compare with."""
    return [(e.tokens_min, e.tokens_max or math.inf, e.batch_min, e.fill_min) for e in plan.entries]


def place_in(ranges: Sequence[Range], batch: int, tokens: int, fill: float = 1.0) -> int:
    """The first entry that fits; the last one where none does."""
    for place, (low, high, least, full) in enumerate(ranges):
        if low <= tokens <= high and batch >= least and fill >= full:
            return place
    return len(ranges) - 1


def _fill(feeds: Feeds) -> float:
    """The share of tokens among tokens and padding; 1 where no mask tells."""
    mask = feeds.get("attention_mask")
    return 1.0 if mask is None or not mask.size else float(np.count_nonzero(mask)) / mask.size


def entry_for(plan: Plan, batch: int, tokens: int) -> PlanEntry:
    """The entry that answers a call of this size."""
    return plan.entries[place_in(ranges_of(plan), batch, tokens)]


def _member(session: Session, profile: RuntimeProfile | None, splits: bool) -> _Member:
    if profile is not None and profile.row_tokens is not None:
        return _Member(session=session, chunk_tokens=None, streams=1, whole_up_to=math.inf, packs=True)
    if profile is None or not splits:
        return _Member(session=session, chunk_tokens=None, streams=1, whole_up_to=math.inf)
    if profile.streams > 1:
        whole: float = 0
    else:
        whole = math.inf if profile.chunk_tokens is None else profile.chunk_tokens
    streams = max(1, profile.streams)
    return _Member(session=session, chunk_tokens=profile.chunk_tokens, streams=streams, whole_up_to=whole)


def has_free_batch(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bool:
    """Whether axis 0 of every input and output is one and the same free axis."""
    specs = (*inputs, *outputs)
    names = {spec.shape[0] if spec.shape else None for spec in specs}
    return bool(specs) and len(names) == 1 and isinstance(next(iter(names)), str)


def chunks(batch: int, tokens: int, chunk_tokens: int | None, streams: int = 1) -> list[slice]:
    """Cut a batch into even runs of rows of at most `chunk_tokens` each (but at least one row).

    With several streams the number of runs is a multiple of them where the rows allow it: a
    stream without work would leave its threads idle.
    """
    rows = batch if chunk_tokens is None else max(1, chunk_tokens * batch // max(1, tokens))
    count = -(-batch // max(1, rows))
    count = min(batch, -(-count // streams) * streams)
    if count <= 1:
        return [slice(0, batch)]
    edges = [batch * index // count for index in range(count + 1)]
    return [slice(start, end) for start, end in pairwise(edges)]


def _cut(feeds: Feeds, cuts: Sequence[slice]) -> list[Feeds]:
    return [{name: array[rows] for name, array in feeds.items()} for rows in cuts]


def _join(parts: Sequence[Outputs], cuts: Sequence[slice]) -> Outputs:
    if len(parts) == 1:
        return parts[0]
    for part, rows in zip(parts, cuts, strict=True):
        for name, array in part.items():
            if array.ndim == 0 or len(array) != rows.stop - rows.start:
                raise EngineError(
                    f"output {name!r} has no row for each row of the batch, so its parts can't be joined",
                    next_step="run this model without chunks and with one stream",
                )
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class TextRunner:
    """Texts in, arrays out: tokenise, sort into batches of similar length, run, restore the order.

    Args:
        session: whose inputs are those that `text.feeds` fills.
        tokenizer: truncates to its own limit.
        pad_id: None takes the tokenizer's.
        batch_tokens: batches hold at most so many tokens; None takes the session's chunk, else 512,
            above which a CPU gains nothing.
    """

    def __init__(
        self,
        session: Session,
        tokenizer: Tokenizer,
        *,
        pad_id: int | None = None,
        batch_tokens: int | None = None,
        side: Literal["left", "right"] = "right",
    ) -> None:
        self._session, self._tokenizer, self._side = session, tokenizer, side
        self._pad_id = tokenizer.pad_id if pad_id is None else pad_id
        self._batch_tokens = batch_tokens or getattr(session, "batch_tokens", None) or 512
        self._names = [spec.name for spec in session.inputs]
        widths = [spec.shape[1] for spec in session.inputs if len(spec.shape) > 1]
        self._fixed = next((width for width in widths if isinstance(width, int)), None)  # a model of one length

    def run_texts(self, texts: Sequence[Text], *, truncate: bool = True) -> dict[str, Array | list[Array]]:
        """Outputs by name, in the order of the texts.

        Returns:
            An array [texts, …] for outputs of one row a text; a list of arrays [own length, …] for
            outputs with a length axis, without the padding.
        """
        encodings = self._tokenizer.encode(texts, truncate)
        lengths = [max(1, encoding.length) for encoding in encodings]
        groups = batches(lengths, self._batch_tokens)
        widths = [self._width(max(lengths[i] for i in group)) for group in groups]
        calls = [
            feeds([encodings[i] for i in group], self._names, self._pad_id, length=width, side=self._side)
            for group, width in zip(groups, widths, strict=True)
        ]
        answers = self._session.run_many(calls) if calls else []
        for group, answer in zip(groups, answers, strict=True):
            require_rows(answer, len(group))
        return {spec.name: self._restore(spec, groups, answers, lengths) for spec in self._session.outputs}

    def _width(self, longest: int) -> int:
        return padded_length(longest, self._tokenizer.max_tokens) if self._fixed is None else self._fixed

    def _restore(
        self, spec: TensorSpec, groups: Sequence[Sequence[int]], answers: Sequence[Outputs], lengths: Sequence[int]
    ) -> Array | list[Array]:
        rows: list[Any] = [None] * len(lengths)
        long = len(spec.shape) > 1 and isinstance(spec.shape[1], str)
        for group, answer in zip(groups, answers, strict=True):
            for row, index in zip(answer[spec.name], group, strict=True):
                rows[index] = self._trim(row, lengths[index]) if long else row
        if long or not rows:
            return rows
        return np.stack(rows)

    def _trim(self, row: Array, length: int) -> Array:
        return row[-length:] if self._side == "left" else row[:length]
