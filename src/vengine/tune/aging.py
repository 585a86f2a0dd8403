"""Does the same text still get the same answer after many other requests, and with other threads?

The plan is asked before and after its race: what a session keeps from call to call (arenas, bound buffers, compiled
shapes) must not reach into later answers. And it is asked in another session with another number of threads, which is
what another machine will give it: the order of its sums changes with them, and nothing else may.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vengine.engines.process import WorkerSession
from vengine.errors import EngineError
from vengine.tune.prepare import Prepared
from vengine.tune.trial import open_plan
from vengine.types import Company, Plan, Variant
from vengine.verify.invariance import similarities

if TYPE_CHECKING:
    from vengine.engines.base import Outputs

_ASKED, _REQUESTS, _SECONDS = 8, 1000, 2.0
_LATER, _THREADED = "after many other requests", "in another session, with {}"


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
        return self._still(worker, prepared, bound, _LATER)

    def threaded(self, plan: Plan, variants: Sequence[Variant], prepared: Prepared, bound: float) -> Company:
        """The likeness in another session of the same plan, with one thread, or with two where it had one.

        Raises:
            EngineError: it is less than `bound`.
        """
        count = 1 if max(v.recipe.profile.threads for v in variants) > 1 else 2
        what = _THREADED.format("one thread" if count == 1 else "two threads")
        with open_plan(plan, [_with_threads(v, count) for v in variants], prepared.source.task) as other:
            return self._still(other, prepared, bound, what)

    def _still(self, worker: WorkerSession, prepared: Prepared, bound: float, what: str) -> Company:
        after = [worker.run(call) for call in self.calls]
        similar = similarities(list(self.answers), after, prepared.source.task)
        worst = int(np.argmin(similar))
        found = Company(what=what, similarity=float(similar[worst]), worst_sample=_named(prepared, worst))
        if found.similarity < bound:
            raise EngineError(
                f"the same text answers differently {what}: {found.similarity:.4f} (at least {bound:g} is promised)"
            )
        return found


def _with_threads(variant: Variant, count: int) -> Variant:
    profile = replace(variant.recipe.profile, threads=count, streams=1)
    return replace(variant, recipe=replace(variant.recipe, profile=profile))


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
