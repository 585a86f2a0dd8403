"""Proving a bundle on the machine at hand: every digest, the tokenizer, each variant's golden outputs, brief timings.

Each variant is opened in a process of its own: on a CPU that its builder never saw it may crash or hang,
and that must be a finding, not the end of the check.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vengine.bundle.choose import Exclusion, plan_without
from vengine.bundle.format import BundledVariant
from vengine.bundle.golden import Distance, tokenised
from vengine.bundle.load import exclusions, judge, profile_of, this_machine
from vengine.bundle.read import Bundle
from vengine.errors import BundleError, NoVariantForThisCpu, VengineError
from vengine.types import Machine, Plan

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray]

Status = Literal["ok", "skipped", "refused", "failed"]
_TIMED_CALLS = 15
_WARM_UP = 3
_TIMEOUT_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What one variant did on this machine."""

    variant: BundledVariant
    status: Status
    reason: str = ""
    apart: Distance | None = None  # from its golden outputs
    ms: float | None = None  # median of a call with the golden inputs
    precision_run: str = ""


@dataclass(frozen=True, kw_only=True)
class Verification:
    """What the bundle is worth on this machine. `plan` is None where nothing may run."""

    bundle: Bundle
    machine: Machine
    checked: tuple[Checked, ...]
    plan: Plan | None
    reason: str  # why nothing runs, or which part of the plan went to another variant; "" when all is as built

    @property
    def ok(self) -> bool:
        """True when some variant that was proved here serves every call."""
        return self.plan is not None

    @property
    def fallen_back(self) -> bool:
        """True when calls go to another variant than on the machine that built the bundle."""
        return self.plan is not None and self.plan != self.bundle.manifest.content.plan


def verify_bundle(bundle: Bundle, *, threads: int | None = None, machine: Machine | None = None) -> Verification:
    """Check everything that can be checked here.

    Raises:
        BundleError: the bundle itself is damaged: a digest, a file, the tokenizer.
    """
    bundle.check()
    here = machine or this_machine()
    inputs = bundle.golden(bundle.manifest.evidence.golden.inputs)
    check_tokenizer(bundle, inputs)
    skipped = exclusions(bundle, here)
    checked = tuple(
        Checked(variant=v, status="skipped", reason=skipped[v.digest].reason)
        if v.digest in skipped
        else _prove(bundle, v, inputs, threads, here)
        for v in bundle.manifest.content.variants
    )
    return _conclude(bundle, here, checked)


def check_tokenizer(bundle: Bundle, inputs: Arrays) -> None:
    """The golden texts must tokenise to the golden inputs.

    Raises:
        BundleError: another tokenizer, or a library that reads this one in another way.
    """
    import numpy as np

    content, golden = bundle.manifest.content, bundle.manifest.evidence.golden
    if bundle.tokenizer is None or not golden.texts:
        return
    found = tokenised(
        bundle.tokenizer,
        golden.texts,
        names=sorted(inputs),
        pad_id=content.pad_id,
        max_tokens=content.max_tokens,
        side=content.padding_side,
    )
    if wrong := [name for name in sorted(inputs) if not np.array_equal(found[name], inputs[name])]:
        raise BundleError(
            f"the tokenizer gives other {wrong[0]} for the golden texts than when the bundle was built",
            where=str(bundle.root),
            next_step="install the version of `tokenizers` that built it, or build the bundle anew",
        )


def _prove(bundle: Bundle, variant: BundledVariant, inputs: Arrays, threads: int | None, machine: Machine) -> Checked:
    from vengine.engines.process import WorkerSession

    recipe = variant.recipe
    profile = profile_of(bundle, variant, threads, machine)
    try:
        path, task = bundle.path_of(variant), bundle.manifest.content.task
        session = WorkerSession(recipe.engine, path, recipe.precision, profile, task=task, timeout_s=_TIMEOUT_S)
    except VengineError as error:
        return Checked(variant=variant, status="failed", reason=error.what)
    try:
        apart, reason = judge(bundle, variant, session.run(inputs), machine)
        if reason:
            return Checked(variant=variant, status="refused", reason=reason, apart=apart)
        session.time([inputs], repeats=_WARM_UP)
        ms = statistics.median(session.time([inputs], repeats=_TIMED_CALLS))
        return Checked(variant=variant, status="ok", apart=apart, ms=ms, precision_run=session.precision_run)
    except VengineError as error:
        return Checked(variant=variant, status="failed", reason=error.what)
    finally:
        session.close()


def _conclude(bundle: Bundle, machine: Machine, checked: tuple[Checked, ...]) -> Verification:
    excluded = {c.variant.digest: Exclusion(status=c.status, reason=c.reason) for c in checked if c.status != "ok"}
    try:
        plan = plan_without(bundle.manifest.content, excluded)
    except NoVariantForThisCpu as error:
        return Verification(bundle=bundle, machine=machine, checked=checked, plan=None, reason=error.what)
    planned = [e.variant for e in bundle.manifest.content.plan.entries]
    out = [c for c in checked if c.status != "ok" and c.variant.digest in planned]
    reason = "; ".join(f"{c.variant.recipe.label}: {c.reason}" for c in out)
    return Verification(bundle=bundle, machine=machine, checked=checked, plan=plan, reason=reason)
