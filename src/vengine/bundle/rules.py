"""What a manifest must keep beyond its types. A bundle is data from strangers: everything is checked.

A manifest that passes here can be acted on: its paths stay inside the bundle, its plan covers every
call, and every digest that it mentions is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from vengine.digests import digest_json
from vengine.errors import BundleError
from vengine.types import Plan

if TYPE_CHECKING:  # the nouns live in format.py, which calls these rules
    from vengine.bundle.format import BundledVariant, Content, Evidence, GoldenFacts, Manifest

MAX_FILES = 4096
MAX_BYTES = 1 << 40
MAX_VARIANTS = 16
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_PART = re.compile(r"[^\x00-\x1f\x7f/\\:*?\"<>|]{1,200}")


class _Broken(Exception):
    """A rule that doesn't hold; becomes a BundleError with its place."""


def check_manifest(manifest: Manifest, *, where: str) -> None:
    """Check every rule of the format.

    Raises:
        BundleError: the first rule that is broken, in words.
    """
    try:
        _require(bool(_NAME.fullmatch(manifest.name)), f"name {manifest.name!r:.60} is not fit for a file name")
        _check_content(manifest.content)
        _check_golden(manifest.evidence.golden, manifest.content)
        _check_evidence(manifest.evidence)
        _check_files(manifest)
    except _Broken as broken:
        raise BundleError(
            f"the manifest breaks the format: {broken}", where=where, next_step="build the bundle anew with `vengine`"
        ) from broken


def is_safe_path(path: str) -> bool:
    """True for a relative path that stays inside on every system: no "..", no drive, no control characters."""
    parts = path.split("/")
    return len(path) <= 400 and all(
        _PART.fullmatch(part) and part not in (".", "..") and part == part.strip() and not part.endswith(".")
        for part in parts
    )


def files_digest(files: Iterable[tuple[str, str]]) -> str:
    """Digest of a set of files: the canonical JSON of {relative path: sha256}."""
    return digest_json(dict(files))


def _check_content(content: Content) -> None:
    digests = [variant.digest for variant in content.variants]
    _require(0 < len(digests) <= MAX_VARIANTS, f"{len(digests)} variants; 1 to {MAX_VARIANTS} may be there")
    _require(len(set(digests)) == len(digests), "two variants have the same digest")
    _require(bool(_DIGEST.fullmatch(content.source_digest)), "the source's digest is not a digest")
    _require(content.pad_id >= 0, "the padding id is negative")
    _require(content.max_tokens is None or content.max_tokens > 0, "max_tokens is not positive")
    for variant in content.variants:
        _check_variant(variant)
    _check_plan(content.plan, set(digests))
    portable = [v.digest for v in content.variants if not v.required_isa]
    _require(content.fallback in portable, "the fallback is not a variant that runs on every CPU")


def _check_variant(variant: BundledVariant) -> None:
    _require(bool(_DIGEST.fullmatch(variant.digest)), f"variant {variant.digest!r:.80} is not named by a digest")
    _require(bool(variant.files), f"variant {variant.digest} has no files")
    prefix = variant.directory + "/"
    inside = [(file.path.removeprefix(prefix), file.sha256) for file in variant.files]
    _require(all(f.path.startswith(prefix) for f in variant.files), f"a file of {prefix} lies elsewhere")
    named = "variants/" + files_digest(inside).removeprefix("sha256:")[:12]
    _require(variant.directory == named, f"{variant.directory!r:.80} is not named by the content of its files")
    names = {name for name, _ in inside}
    _require(variant.entry == "." or variant.entry in names, f"entry {variant.entry!r:.80} is not one of the files")
    profile = variant.recipe.profile
    counts = (profile.threads, profile.streams, profile.chunk_tokens or 1, profile.row_tokens or 1)
    _require(all(0 < n <= 1 << 30 for n in counts), f"the runtime profile of {variant.digest} is out of range")


def _check_plan(plan: Plan, digests: set[str]) -> None:
    """Whatever the size of a call, an entry that takes any batch must fit it."""
    for entry in plan.entries:
        _require(entry.variant in digests, f"the plan names {entry.variant!r:.80}, which is not there")
        _require(entry.tokens_min >= 1 and entry.batch_min >= 1, "a bound of the plan is not positive")
        _require(0 <= entry.fill_min <= 1, "a share of the plan is not between 0 and 1")
        _require(entry.tokens_max is None or entry.tokens_max >= entry.tokens_min, "a range of the plan is empty")
    covered = 0
    for entry in sorted((e for e in plan.entries if e.batch_min == 1 and not e.fill_min), key=lambda e: e.tokens_min):
        _require(entry.tokens_min <= covered + 1, f"the plan has a gap at {covered + 1} tokens")
        if entry.tokens_max is None:
            return
        covered = max(covered, entry.tokens_max)
    raise _Broken("the plan ends before the largest call")


def _check_golden(golden: GoldenFacts, content: Content) -> None:
    named = sorted(g.variant for g in golden.outputs)
    _require(named == sorted(v.digest for v in content.variants), "golden outputs and variants don't match one to one")
    _require(not golden.texts or content.tokenizer is not None, "golden texts without a tokenizer")
    _require(all(len(text) in (1, 2) for text in golden.texts), "a golden text is neither a text nor a pair")
    for outputs in golden.outputs:
        for tolerance in (outputs.here, outputs.elsewhere):
            tight = -1 <= tolerance.min_cosine <= 1 and 0 <= tolerance.max_relative <= 1
            _require(tight, "a golden tolerance is out of range")


def _check_evidence(evidence: Evidence) -> None:
    versions: object = evidence.machine.versions
    plain = isinstance(versions, dict) and all(isinstance(v, str) for v in versions.values())
    _require(plain, "the machine's versions are not texts")


def _check_files(manifest: Manifest) -> None:
    files = manifest.files
    _require(len(files) <= MAX_FILES, f"more than {MAX_FILES} files")
    for file in files.values():
        _require(is_safe_path(file.path), f"path {file.path!r:.120} may not be in a bundle")
        _require(bool(_HEX.fullmatch(file.sha256)), f"{file.path} has no sha256")
        _require(0 <= file.size_bytes <= MAX_BYTES, f"the size of {file.path} is out of range")
    folded = {path.casefold() for path in files} | {"manifest.json"}
    _require(len(folded) == len(files) + 1, "two files differ only in case, or one is named manifest.json")
    _require(not _nested(files), "a file lies inside another file")
    _require(sum(f.size_bytes for f in files.values()) <= MAX_BYTES, "the bundle is too large")
    same = all(files[entry.path] == entry for entry in manifest.entries)
    _require(same, "a file is listed twice with other content")


def _nested(paths: Iterable[str]) -> bool:
    folded = {path.casefold() for path in paths}
    parents = {"/".join(p.split("/")[:n]) for p in folded for n in range(1, p.count("/") + 1)}
    return bool(parents & folded)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _Broken(otherwise)
