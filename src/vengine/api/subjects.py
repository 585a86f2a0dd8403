"""What is raced or soaked: a bundle as it answers here, or a source as its author meant it to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from vengine.api.calls import vocabulary_of
from vengine.bundle.place import is_bundle
from vengine.engines.base import Opening
from vengine.engines.process import WorkerSession
from vengine.text import padded_length
from vengine.types import Machine, Plan


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Something that can be opened in a process of its own, and what its calls look like."""

    name: str
    kind: str  # "bundle" or "source"
    digest: str
    plan: Plan | None  # of a bundle
    openings: Mapping[str, Opening]
    tokenizer: Path | None
    max_tokens: int | None
    vocabulary: int | None  # how many tokens its tokenizer knows

    def worker(self) -> WorkerSession:
        """Open it."""
        if self.plan is not None:
            return WorkerSession.planned(self.plan, self.openings)
        (one,) = self.openings.values()
        return WorkerSession(one.engine, one.path, one.precision, one.profile, task=one.task)

    @property
    def pads(self) -> bool:
        """Whether lengths are padded to the bundle's steps, as its text runner does."""
        return self.kind == "bundle" and self.tokenizer is not None

    def width(self, length: int) -> int:
        """What a text of so many tokens is padded to when it runs alone."""
        return padded_length(length, self.max_tokens) if self.pads else length


def subject_of(target: str | Path, machine: Machine, threads: int | None, cache: Path) -> Subject:
    """Read a bundle or a source; nothing is opened yet.

    Args:
        threads: for every variant; None takes the measured ones, or this machine's.
        cache: where sources are fetched to.

    Raises:
        VengineError: it can't be read.
    """
    path = Path(target)
    if str(target) and is_bundle(path):
        return _of_bundle(path, machine, threads)
    return _of_source(str(target), machine, threads, cache)


def _of_bundle(target: Path, machine: Machine, threads: int | None) -> Subject:
    from vengine.bundle.choose import plan_without
    from vengine.bundle.load import exclusions, opening_of, profile_of
    from vengine.bundle.read import open_bundle

    bundle = open_bundle(target)
    plan = plan_without(bundle.manifest.content, exclusions(bundle, machine))
    variants = [bundle.manifest.variant(digest) for digest in {entry.variant for entry in plan.entries}]
    return Subject(
        name=target.name,
        kind="bundle",
        digest=bundle.digest,
        plan=plan,
        openings={v.digest: opening_of(bundle, v, profile_of(bundle, v, threads, machine)) for v in variants},
        tokenizer=bundle.tokenizer,
        max_tokens=bundle.manifest.content.max_tokens,
        vocabulary=vocabulary_of(bundle.tokenizer),
    )


def _of_source(spec: str, machine: Machine, threads: int | None, cache: Path) -> Subject:
    from vengine.hardware import threads_for
    from vengine.sources import open_source
    from vengine.tune.original import original_variant
    from vengine.tune.trial import opening_of

    source = open_source(spec, cache=cache / "sources")
    variant = original_variant(source, threads_for(machine, threads))
    opening = opening_of(variant, source.task)
    return Subject(
        name=source.name,
        kind="source",
        digest=source.digest,
        plan=None,
        openings={variant.digest: opening},
        tokenizer=source.tokenizer,
        max_tokens=source.max_tokens,
        vocabulary=vocabulary_of(source.tokenizer),
    )
