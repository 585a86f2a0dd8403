"""Getting a bundle ready to answer on this machine: what can't run here, or answers wrongly here, is replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vengine.bundle.choose import Exclusion, find_variant, missing_isa, plan_without, profile_here, same_machine
from vengine.bundle.format import BundledVariant, Tolerance
from vengine.bundle.golden import Distance, distance
from vengine.bundle.read import Bundle
from vengine.errors import BundleError, NoVariantForThisCpu, VengineError
from vengine.types import Machine, Plan, PlanEntry, RuntimeProfile

if TYPE_CHECKING:
    from vengine.engines.base import Opening, Outputs, Session
    from vengine.engines.planned import PlannedSession, TextRunner

CHECKS = ("digests", "golden")
"""What a variant must pass before it answers: its files' digests, and its golden outputs on this machine."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A bundle that is ready to answer, and how it does that here."""

    session: PlannedSession
    plan: Plan  # as it holds here
    excluded: Mapping[str, Exclusion]  # variants that don't run here, by digest


def load(
    bundle: Bundle,
    *,
    threads: int | None = None,
    variant: str | None = None,
    checks: tuple[str, ...] = CHECKS,
    machine: Machine | None = None,
) -> Loaded:
    """Open the variants that the plan needs here, replacing those that this machine can't run or gets wrong.

    Args:
        bundle: what `open_bundle` gave.
        threads: for every variant; None takes the measured ones, or this machine's where it differs.
        variant: run only this one (start of its digest, or "ENGINE PRECISION"); no fallback.
        checks: what a variant must pass first, of `CHECKS`; () trusts the files and the CPU.
        machine: the machine to choose for; None looks at this one.

    Raises:
        NoVariantForThisCpu: no variant may run here, or not the one that was asked for.
        BundleError: a file is damaged.
    """
    from vengine.engines.planned import PlannedSession

    loading = _Loading(bundle=bundle, machine=machine or this_machine(), threads=threads, checks=checks)
    try:
        plan = loading.settle() if variant is None else loading.settle_on(variant)
    except BaseException:
        loading.close()
        raise
    used = {entry.variant for entry in plan.entries}
    profiles = {digest: loading.profile(digest) for digest in used}
    content = bundle.manifest.content
    sessions = {digest: loading.sessions[digest] for digest in used}
    session = PlannedSession(plan, sessions, profiles, inputs=content.inputs, outputs=content.outputs)
    return Loaded(session=session, plan=plan, excluded=loading.excluded)


@dataclass(kw_only=True)
class _Loading:
    """Sessions that are open so far, and variants that turned out not to run here."""

    bundle: Bundle
    machine: Machine
    threads: int | None
    checks: tuple[str, ...]
    sessions: dict[str, Session] = field(default_factory=dict)
    bare: dict[Opening, Session] = field(default_factory=dict)  # the engines' own, by what they were opened from
    excluded: dict[str, Exclusion] = field(default_factory=dict)

    def settle(self) -> Plan:
        """Open what the plan needs; each variant that fails changes the plan, until all of it is open."""
        self.excluded.update(exclusions(self.bundle, self.machine))
        while True:
            plan = plan_without(self.bundle.manifest.content, self.excluded)
            waiting = [e.variant for e in plan.entries if e.variant not in self.sessions]
            if not waiting:
                return plan
            self.open(waiting[0])

    def settle_on(self, wanted: str) -> Plan:
        """Open the one variant that was asked for."""
        variant = find_variant(self.bundle.manifest.content, wanted)
        self.excluded.update(exclusions(self.bundle, self.machine))
        if variant.digest not in self.excluded:
            self.open(variant.digest)
        if variant.digest in self.excluded:
            raise NoVariantForThisCpu(
                f"{variant.recipe.label} can't answer here: {self.excluded[variant.digest].reason}",
                where=str(self.bundle.root),
                next_step="leave the variant out, and the bundle takes one that can",
            )
        return Plan(entries=(PlanEntry(variant=variant.digest, tokens_min=1),))

    def open(self, digest: str) -> None:
        """Open one variant, or note why it is out."""
        from vengine.engines.packed import shown

        variant = self.bundle.manifest.variant(digest)
        if "digests" in self.checks:
            self.bundle.check_files(variant.files)
        profile = self.profile(digest)
        key = opening_of(self.bundle, variant, profile).session_key
        shared = key in self.bare  # by a variant that differs from this one in its chunks or rows alone
        try:
            bare = self.bare[key] if shared else key.open()
            session = shown(bare, profile)
        except VengineError as error:
            self.excluded[digest] = Exclusion(status="failed", reason=error.what)
            return
        if reason := self._disagreement(variant, session) if "golden" in self.checks else "":
            self.excluded[digest] = Exclusion(status="refused", reason=reason)
            if not shared:
                bare.close()
            return
        self.sessions[digest], self.bare[key] = session, bare

    def profile(self, digest: str) -> RuntimeProfile:
        return profile_of(self.bundle, self.bundle.manifest.variant(digest), self.threads, self.machine)

    def close(self) -> None:
        for session in self.bare.values():
            session.close()

    def _disagreement(self, variant: BundledVariant, session: Session) -> str:
        inputs = self.bundle.golden(self.bundle.manifest.evidence.golden.inputs)
        try:
            outputs = session.run(inputs)
        except VengineError as error:
            return f"it fails on the golden inputs: {error.what}"
        return judge(self.bundle, variant, outputs, self.machine)[1]


def this_machine() -> Machine:
    """The machine that this process runs on."""
    from vengine.hardware import machine

    return machine()


def exclusions(bundle: Bundle, machine: Machine) -> dict[str, Exclusion]:
    """Variants that can't run here, known without opening them: a CPU flag or an engine is missing."""
    reasons = {v.digest: _cannot_run(v, machine) for v in bundle.manifest.content.variants}
    return {digest: Exclusion(status="skipped", reason=reason) for digest, reason in reasons.items() if reason}


def _cannot_run(variant: BundledVariant, machine: Machine) -> str:
    from vengine.engines.base import get_engine

    if missing := missing_isa(variant, machine):
        return f"needs {', '.join(missing)}, which this CPU doesn't have"
    try:
        availability = get_engine(variant.recipe.engine).availability()
    except VengineError as error:
        return error.what
    return "" if availability.ok else f"{availability.reason} ({availability.install})"


def profile_of(bundle: Bundle, variant: BundledVariant, threads: int | None, machine: Machine) -> RuntimeProfile:
    """The variant's measured profile; with this machine's threads where it has other cores than the builder's."""
    from vengine.hardware import threads_for

    measured = variant.recipe.profile
    if threads is None and machine.cores_allowed == bundle.manifest.evidence.machine.cores_allowed:
        return measured
    return profile_here(measured, threads_for(machine, threads))


def opening_of(bundle: Bundle, variant: BundledVariant, profile: RuntimeProfile) -> Opening:
    """What its engine is asked to open, driven by `profile`."""
    from vengine.engines.base import Opening

    return Opening(
        engine=variant.recipe.engine,
        path=bundle.path_of(variant),
        precision=variant.recipe.precision,
        profile=profile,
        task=bundle.manifest.content.task,
    )


def tolerance_of(bundle: Bundle, variant: BundledVariant, machine: Machine) -> Tolerance:
    """How closely the variant must meet its golden outputs on this machine."""
    golden = bundle.manifest.golden(variant.digest)
    built_on = bundle.manifest.evidence.machine
    return golden.here if same_machine(built_on, machine, variant.recipe.engine) else golden.elsewhere


def judge(bundle: Bundle, variant: BundledVariant, outputs: Outputs, machine: Machine) -> tuple[Distance, str]:
    """Compare a variant's answers to the golden inputs with the golden ones.

    Returns:
        The distance, and why it is too far ("" when it is not).
    """
    apart = distance(bundle.golden(bundle.manifest.golden(variant.digest).file), outputs)
    tolerance = tolerance_of(bundle, variant, machine)
    if apart.within(tolerance):
        return apart, ""
    measured = apart.problem or (
        f"cosine {apart.cosine:.6f} (at least {tolerance.min_cosine}), "
        f"largest difference {apart.relative:.2%} (at most {tolerance.max_relative:.2%})"
    )
    return apart, f"its golden outputs disagree on this machine: {measured}"


def runner_of(bundle: Bundle, session: Session) -> TextRunner:
    """A runner for texts around a loaded session.

    Raises:
        BundleError: the model has no tokenizer.
    """
    from vengine.engines.planned import TextRunner
    from vengine.text import Tokenizer

    content = bundle.manifest.content
    if bundle.tokenizer is None or content.tokenizer is None:
        raise BundleError(
            "the model takes tensors, not texts: the bundle has no tokenizer",
            where=str(bundle.root),
            next_step=f"give the inputs {', '.join(spec.name for spec in content.inputs)}",
        )
    bundle.check_files((content.tokenizer,))
    tokenizer = Tokenizer.from_file(bundle.tokenizer, content.max_tokens)
    return TextRunner(session, tokenizer, pad_id=content.pad_id, side=content.padding_side)
