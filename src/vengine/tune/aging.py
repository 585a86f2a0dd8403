"""Does the same text still get the same answer after many other requests? The plan is asked before and after its race.

What a session keeps from call to call (arenas, bound buffers, compiled shapes) must not reach into later answers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vengine.engines.process import WorkerSession
from vengine.errors import EngineError
from vengine.tune.prepare import Prepared
from vengine.types import Company
from vengine.verify.invariance import similarities

if TYPE_CHECKING:
    from vengine.engines.base import Outputs

_ASKED, _REQUESTS, _SECONDS = 8, 1000, 2.0
_WHAT = "after many other requests"


@dataclass(frozen=True, kw_only=True)
class Young:
    """A few texts (or tensors), and what a session answered when it was new."""

    calls: Sequence[Any]
    answers: Sequence[Outputs]

    def aged(self, worker: WorkerSession, prepared: Prepared, bound: float) -> Company:
        """The likeness after up to 1,000 more short requests, as many as two seconds allow.

        Raises:
            EngineError: it is less than `bound`.
        """
        once = min(self.calls, key=lambda call: sum(array.size for array in call.values()))
        started = time.monotonic()
        worker.time([once], repeats=2)
        pace = max((time.monotonic() - started) / 2, 1e-6)
        worker.time([once], repeats=max(1, min(_REQUESTS, int(_SECONDS / pace))))
        after = [worker.run(call) for call in self.calls]
        similar = similarities(list(self.answers), after, prepared.source.task)
        worst = int(np.argmin(similar))
        found = Company(what=_WHAT, similarity=float(similar[worst]), worst_sample=_named(prepared, worst))
        if found.similarity < bound:
            raise EngineError(
                f"the same text answers differently {_WHAT}: {found.similarity:.4f} (at least {bound:g} is promised)"
            )
        return found


def ask(worker: WorkerSession, prepared: Prepared) -> Young:
    """Ask a new session a few things, each alone, and all of them in one batch: a plan may send that elsewhere."""
    calls = prepared.calibration(_ASKED)
    if prepared.tokenizer is not None:
        calls = [*calls, prepared.call([prepared.encodings[i] for i in prepared.spread(_ASKED)])]
    return Young(calls=calls, answers=[worker.run(call) for call in calls])


def _named(prepared: Prepared, place: int) -> str:
    if prepared.tokenizer is None:
        return f"sample {place + 1}"
    places = prepared.spread(_ASKED)
    return str(prepared.texts[places[place]])[:80] if place < len(places) else f"a batch of {len(places)} texts"
