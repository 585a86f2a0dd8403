"""`profile`: where the time of one call goes, node by node, and how near that is to what this machine can do.

A bundle is profiled as it would answer that call: the variant that its plan picks, with its threads and chunks. A
source is profiled as its author meant it: torch in fp32, or ONNX Runtime with all optimisation off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vengine.api.calls import call, token_ids, vocabulary_of
from vengine.api.node_table import middle, table
from vengine.api.places import events_place, page_place, trace_place, write_whole
from vengine.bundle.place import is_bundle
from vengine.cache import default_cache
from vengine.digests import to_json
from vengine.engines.base import Opening, size_of
from vengine.engines.process import WorkerSession
from vengine.errors import UsageError
from vengine.hardware import machine as this_machine
from vengine.hardware import threads_for
from vengine.types import Interval, Machine, TensorSpec

if TYPE_CHECKING:
    from vengine.bundle.format import BundledVariant
    from vengine.bundle.read import Bundle
    from vengine.engines.base import Feeds
    from vengine.engines.recording import Recording

DEFAULT_SHAPE = (8, 128)
_PLAIN_MS, _WATCHED_MS = 1500.0, 1000.0  # about so long is run without watching, and with
_PLAIN_CALLS, _WATCHED_CALLS = (5, 50), (3, 20)
_WARM_CALLS = 3


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is profiled, ready to be opened."""

    name: str
    kind: str  # "bundle" or "source"
    digest: str
    variant: str | None  # of a bundle
    opening: Opening
    feeds: Feeds


def profile(
    target: str | Path,
    shape: tuple[int, int] = DEFAULT_SHAPE,
    *,
    variant: str | None = None,
    threads: int | None = None,
    trace: str | Path | None = None,
    page: str | Path | None = None,
    tensorboard: str | Path | None = None,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Profile one kind of call.

    Args:
        target: a bundle, or a source as `optimize` takes it.
        shape: batch and length of the call; a model without a length takes the batch alone.
        variant: of a bundle, instead of the one that its plan picks: start of its digest, or "ENGINE PRECISION".
        threads: None takes the variant's measured ones, or this machine's.
        trace: a file for the median call in the Trace Event format.
        page: a file for all of it as one HTML page.
        tensorboard: a folder that gets one more event file; needs the package of that name.
        cache: where sources are fetched to; None takes the usual place.

    Returns:
        What ran (`name`, `kind`, `digest`, `variant`, `engine`, `precision`, `precision_run`, `threads`, `streams`,
        `chunk_tokens`, `inputs`), `plain_ms` of a call that nobody watches with its interval, everything of
        `node_table.table`, and the measured `ceilings`. Times in milliseconds, rates in operations or bytes a second.

    Raises:
        UsageError: the shape can't be, or a file's place.
        EngineMissing: event files were asked for, and tensorboard isn't installed.
        VengineError: the target can't be opened.
    """
    places = (None if trace is None else trace_place(trace), None if page is None else page_place(page))
    events = None if tensorboard is None else events_place(tensorboard)
    machine = this_machine()
    subject = _subject(target, shape, variant, threads, machine, cache or default_cache())
    chosen = subject.opening
    cores = max(1, chosen.profile.threads // chosen.profile.streams)
    with _worker(chosen) as worker:
        plain = _plain(worker, subject.feeds)
        recordings = worker.record([subject.feeds], repeats=_count(_WATCHED_MS, plain.value, _WATCHED_CALLS))
        ceilings = worker.ceilings(cores)
        precision_run = worker.precision_run
    result = {
        **_what(subject, precision_run),
        "plain_ms": to_json(plain),
        **table(recordings, ceilings),
        "timeline": all(r.timeline for r in recordings),
        "ceilings": to_json(ceilings),
        "trace": None if places[0] is None else str(places[0]),
        "page": None if places[1] is None else str(places[1]),
        "tensorboard": None if events is None else str(events),
        "machine": to_json(machine),
    }
    _write(result, recordings, *places)
    if events is not None:
        from vengine.report.event_files import write_events

        write_events(events, result, recordings)
    return result


def _write(result: dict[str, Any], recordings: Sequence[Recording], trace: Path | None, page: Path | None) -> None:
    if trace is not None:
        from vengine.report.trace import trace as written

        kept = middle(recordings)
        name = f"{result['name']} {result['engine']} {result['precision']}"
        write_whole(trace, written(kept[len(kept) // 2], name), "the trace", "--trace")
    if page is not None:
        from vengine.report.node_page import profile_page

        write_whole(page, profile_page(result, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"), "the page", "--html")


def _what(subject: _Subject, precision_run: str) -> dict[str, Any]:
    chosen = subject.opening
    inputs = [
        {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)} for name, array in subject.feeds.items()
    ]
    return {
        "name": subject.name,
        "kind": subject.kind,
        "digest": subject.digest,
        "variant": subject.variant,
        "engine": chosen.engine,
        "precision": chosen.precision,
        "precision_run": precision_run,
        "threads": chosen.profile.threads,
        "streams": chosen.profile.streams,
        "chunk_tokens": chosen.profile.chunk_tokens,
        "inputs": inputs,
    }


def _worker(opening: Opening) -> WorkerSession:
    return WorkerSession(opening.engine, opening.path, opening.precision, opening.profile, task=opening.task)


def _plain(worker: WorkerSession, feeds: Feeds) -> Interval:
    """The median of calls that nobody watches, warm, with its interval."""
    from vengine.tune.race import median

    first = min(worker.time([feeds], repeats=_WARM_CALLS))
    return median(worker.time([feeds], repeats=_count(_PLAIN_MS, first, _PLAIN_CALLS)))


def _count(budget_ms: float, one_ms: float, bounds: tuple[int, int]) -> int:
    return max(bounds[0], min(bounds[1], int(budget_ms / max(one_ms, 1e-3))))


def _subject(
    target: str | Path, shape: tuple[int, int], variant: str | None, threads: int | None, machine: Machine, cache: Path
) -> _Subject:
    path = Path(target)
    if str(target) and is_bundle(path):
        return _of_bundle(path, shape, variant, threads, machine)
    if variant is not None:
        raise UsageError(
            f"{str(target)!r:.80} is no bundle, and only a bundle has variants",
            next_step="leave --variant out, or give a bundle",
        )
    return _of_source(str(target), shape, threads_for(machine, threads), cache)


def _of_bundle(
    target: Path, shape: tuple[int, int], wanted: str | None, threads: int | None, machine: Machine
) -> _Subject:
    from vengine.bundle.load import opening_of, profile_of
    from vengine.bundle.read import open_bundle

    bundle = open_bundle(target)
    content = bundle.manifest.content
    feeds = _feeds(bundle.manifest.name, content.inputs, shape, content.max_tokens, bundle.tokenizer)
    chosen = _variant(bundle, wanted, machine, size_of(content.inputs, feeds))
    bundle.check_files(chosen.files)
    return _Subject(
        name=target.name,
        kind="bundle",
        digest=bundle.digest,
        variant=chosen.digest,
        opening=opening_of(bundle, chosen, profile_of(bundle, chosen, threads, machine)),
        feeds=feeds,
    )


def _variant(bundle: Bundle, wanted: str | None, machine: Machine, size: tuple[int, int]) -> BundledVariant:
    """The variant that was asked for, else the one that the plan picks for a call of this size here."""
    from vengine.bundle.choose import find_variant, plan_without
    from vengine.bundle.load import exclusions
    from vengine.engines.planned import entry_for
    from vengine.errors import NoVariantForThisCpu

    out = exclusions(bundle, machine)
    if wanted is None:
        plan = plan_without(bundle.manifest.content, out)
        return bundle.manifest.variant(entry_for(plan, *size).variant)
    found = find_variant(bundle.manifest.content, wanted)
    if found.digest in out:
        raise NoVariantForThisCpu(
            f"{found.recipe.label} can't run here: {out[found.digest].reason}",
            where=str(bundle.root),
            next_step="leave --variant out, and the bundle takes one that can",
        )
    return found


def _of_source(spec: str, shape: tuple[int, int], threads: int, cache: Path) -> _Subject:
    from vengine.sources import open_source
    from vengine.tune.original import original_variant
    from vengine.tune.trial import opening_of

    source = open_source(spec, cache=cache / "sources")
    feeds = _feeds(source.name, source.inputs, shape, source.max_tokens, source.tokenizer)
    variant = original_variant(source, threads)
    opening = opening_of(variant, source.task)
    return _Subject(name=source.name, kind="source", digest=source.digest, variant=None, opening=opening, feeds=feeds)


def _feeds(
    name: str, inputs: Sequence[TensorSpec], shape: tuple[int, int], longest: int | None, tokenizer: Path | None
) -> Feeds:
    batch, length = shape
    if longest is not None and length > longest:
        raise UsageError(
            f"a call has {length} tokens, and the longest text of {name} has {longest}",
            next_step=f"give a shorter shape: --shape {batch}x{longest}",
        )
    return call(inputs, batch, length, length, token_ids([vocabulary_of(tokenizer)]))
