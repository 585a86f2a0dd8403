"""Which variants may run here, and the plan that is left when some may not. Pure: no files, no engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from vengine.bundle.format import BundledVariant, Content
from vengine.errors import BundleError, NoVariantForThisCpu
from vengine.types import Machine, Plan, RuntimeProfile

Status = Literal["skipped", "refused", "failed"]


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """A variant that doesn't run here: skipped (can't), refused (answers wrongly) or failed (broke)."""

    status: Status
    reason: str


def missing_isa(variant: BundledVariant, machine: Machine) -> tuple[str, ...]:
    """The flags that the variant needs and this CPU lacks."""
    return tuple(flag for flag in variant.required_isa if flag not in machine.isa)


def plan_without(content: Content, excluded: Mapping[str, Exclusion]) -> Plan:
    """The bundle's plan with every excluded variant's calls given to another.

    They go to the fallback; where that is excluded too, to the first variant that is not. An entry that
    only takes large batches is dropped instead, because the entries after it cover its calls.

    Raises:
        NoVariantForThisCpu: nothing is left.
    """
    usable = [v.digest for v in content.variants if v.digest not in excluded]
    if not usable:
        reasons = "; ".join(f"{v.recipe.label}: {excluded[v.digest].reason}" for v in content.variants)
        raise NoVariantForThisCpu(
            f"no variant of the bundle may run on this machine: {reasons}",
            next_step="install the engine that is missing, or build the bundle anew on this machine",
        )
    heir = content.fallback if content.fallback in usable else usable[0]
    kept = [e for e in content.plan.entries if e.variant in usable or e.batch_min == 1]
    return Plan(entries=tuple(e if e.variant in usable else replace(e, variant=heir) for e in kept))


def find_variant(content: Content, wanted: str) -> BundledVariant:
    """The one variant that `wanted` names: the start of a digest (with or without "sha256:") or "ENGINE PRECISION".

    Raises:
        BundleError: none or several are meant.
    """
    start = wanted.removeprefix("sha256:")
    found = [
        v
        for v in content.variants
        if v.recipe.label == wanted or (len(start) >= 4 and v.digest.removeprefix("sha256:").startswith(start))
    ]
    if len(found) != 1:
        known = ", ".join(f"{v.recipe.label} ({v.digest[7:19]})" for v in content.variants)
        what = "is none of the bundle's variants" if not found else "means several of the bundle's variants"
        raise BundleError(f"{wanted!r:.80} {what}", next_step=f"choose one of {known}")
    return found[0]


def profile_here(profile: RuntimeProfile, threads: int) -> RuntimeProfile:
    """The measured profile with this machine's threads; never more streams than threads."""
    return replace(profile, threads=threads, streams=max(1, min(profile.streams, threads)))


def same_machine(a: Machine, b: Machine, engine: str) -> bool:
    """Whether the engine's golden outputs must be met as closely as on the machine that made them."""
    return (a.cpu, a.isa, a.versions.get(engine)) == (b.cpu, b.isa, b.versions.get(engine))
