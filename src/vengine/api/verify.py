"""`vengine verify BUNDLE`: digests, golden answers and brief timings on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vengine.bundle.check import Checked, Verification, verify_bundle
from vengine.bundle.read import Bundle, open_bundle
from vengine.digests import to_json


def verify(bundle: str | Path | Bundle, *, threads: int | None = None) -> dict[str, Any]:
    """Prove a bundle on this machine, whatever machine built it.

    Returns:
        `ok` (a proved variant serves every call), `fallen_back` (calls go to another variant than where
        it was built), `reason`, `bundle`, `digest`, `name`, `machine`, `variants` (each with `status`:
        ok, skipped, refused or failed; its `reason`, `cosine` and `relative` distance from the golden
        outputs, `ms` of a call with the golden inputs, the `required_isa`), and `plan`: which digest
        answers which range of tokens here ([] where nothing runs).

    Raises:
        BundleError: the bundle itself is damaged.
    """
    opened = bundle if isinstance(bundle, Bundle) else open_bundle(bundle)
    result = verify_bundle(opened, threads=threads)
    return {
        "ok": result.ok,
        "fallen_back": result.fallen_back,
        "reason": result.reason,
        "bundle": str(bundle if isinstance(bundle, (str, Path)) else opened.root),
        "name": opened.manifest.name,
        "digest": opened.digest,
        "machine": to_json(result.machine),
        "variants": [_row(checked, opened) for checked in result.checked],
        "plan": _plan(result),
    }


def _row(checked: Checked, bundle: Bundle) -> dict[str, Any]:
    variant, apart = checked.variant, checked.apart
    return {
        "label": variant.recipe.label,
        "engine": variant.recipe.engine,
        "precision": variant.recipe.precision,
        "digest": variant.digest,
        "fallback": variant.digest == bundle.manifest.content.fallback,
        "required_isa": list(variant.required_isa),
        "size_bytes": variant.size_bytes,
        "status": checked.status,
        "reason": checked.reason,
        "precision_run": checked.precision_run,
        "cosine": None if apart is None or apart.problem else apart.cosine,
        "relative": None if apart is None or apart.problem else apart.relative,
        "ms": checked.ms,
    }


def _plan(result: Verification) -> list[dict[str, Any]]:
    return [] if result.plan is None else [dict(to_json(entry)) for entry in result.plan.entries]
