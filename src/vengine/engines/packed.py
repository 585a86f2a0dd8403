"""A session over a packed graph that takes and gives what the original's callers know: padded calls.

What a text gets must not depend on its neighbours. Attention gives a neighbour's token the weight 0, and 0 × NaN is
NaN: a row in which anything is not finite is therefore run again, each of its texts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from vengine import packing
from vengine.engines.base import Array, Feeds, Outputs, Session, arrange
from vengine.engines.planned import chunks
from vengine.errors import EngineError
from vengine.packing import Row, fill, pieces_of, rows_of, take
from vengine.types import RuntimeProfile

if TYPE_CHECKING:
    from vengine.engines.recording import Recording


def shown(session: Session, profile: RuntimeProfile) -> Session:
    """The session as its callers know it: a packed graph's behind a view that packs, any other as it is.

    Raises:
        EngineError: rows are wanted, and the graph can't read them, or the other way round.
    """
    names = {spec.name for spec in session.inputs}
    if (profile.row_tokens is None) is not ("segment_ids" in names and "slots" in names):
        return session if profile.row_tokens is None else PackedSession(session, profile)
    session.close()
    what = "reads packed rows, and none were asked for" if profile.row_tokens is None else "can't read packed rows"
    raise EngineError(
        f"the graph {what}", next_step="set row_tokens of the profile for packed graphs, and only for them"
    )


class PackedSession:
    """Padded calls in, padded answers out; in between, rows without padding.

    Args:
        inner: a session of a packed graph; see `packing`.
        profile: `row_tokens`; calls of the graph hold at most `chunk_tokens`, and keep `streams` busy.
    """

    def __init__(self, inner: Session, profile: RuntimeProfile) -> None:
        assert profile.row_tokens is not None
        inputs, outputs = packing.outward(inner.inputs, inner.outputs)
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.inner, self._profile, self._row_tokens = inner, profile, profile.row_tokens
        self._names = [spec.name for spec in inner.inputs]

    @property
    def precision_run(self) -> str:
        return self.inner.precision_run

    def run(self, feeds: Feeds) -> Outputs:
        return self.run_many([feeds])[0]

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        calls = [self._arranged(feeds) for feeds in many]
        answers: list[Outputs] = [{} for _ in calls]
        self._answer(calls, rows_of(pieces_of(calls), self._row_tokens), answers)
        return [{spec.name: answer[spec.name] for spec in self.outputs} for answer in answers]

    def record(self, many: Sequence[Feeds]) -> list[Recording]:
        from vengine.engines.recording import joined

        recordings = []
        for feeds in many:
            call = self._arranged(feeds)
            groups = self._groups(rows_of(pieces_of([call]), self._row_tokens))
            recordings.append(joined(self.inner.record([fill(rows, [call], self._names) for rows in groups])))
        return recordings

    def close(self) -> None:
        self.inner.close()

    def _arranged(self, feeds: Feeds) -> dict[str, Array]:
        arrays = arrange(self.inputs, feeds)
        return {spec.name: array for spec, array in zip(self.inputs, arrays, strict=True)}

    def _answer(self, calls: Sequence[Feeds], rows: Sequence[Row], answers: list[Outputs]) -> None:
        groups = self._groups(rows)
        outputs = self.inner.run_many([fill(group, calls, self._names) for group in groups])
        again: list[Row] = []
        for group, output in zip(groups, outputs, strict=True):
            take(calls, group, output, answers)
            again += [row for r, row in enumerate(group) if len(row.pieces) > 1 and not _finite(output, r)]
        if again:
            alone = [row for many in again for piece in many.pieces for row in rows_of([piece], self._row_tokens)]
            self._answer(calls, alone, answers)

    def _groups(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Rows of one width that share a call."""
        groups: list[list[Row]] = []
        for width, some in groupby(sorted(rows, key=lambda row: -row.width), key=lambda row: row.width):
            same = list(some)
            parts = chunks(len(same), len(same) * width, self._profile.chunk_tokens, self._profile.streams)
            groups += [same[part] for part in parts]
        return groups


def _finite(outputs: Outputs, row: int) -> bool:
    return all(bool(np.isfinite(array[row]).all()) for array in outputs.values() if array.dtype.kind == "f")
