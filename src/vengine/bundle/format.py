"""The bundle format, version 1: what a manifest says, and the one place that reads and writes it.

A manifest has two halves. `content` is what answers (files, recipes, plan, tokenizer): its digest is
the bundle's name. `evidence` is how that was found out (verdict, timings, machine, date, golden
outputs, report): it changes from run to run, so it has a digest of its own and no part in the name.
Specified in docs/bundle-format.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vengine.bundle.rules import check_manifest
from vengine.digests import digest_json, from_json, to_json
from vengine.errors import BundleError
from vengine.types import (
    Cell,
    Interval,
    Invariance,
    Machine,
    PassResult,
    Plan,
    Recipe,
    Task,
    TensorSpec,
    Verdict,
)

FORMAT = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of the bundle, relative to the bundle's root, with "/" between the parts."""

    path: str
    sha256: str  # 64 hex digits
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class BundledVariant:
    """A variant as it lies in the bundle. Variants with the same files share one directory."""

    recipe: Recipe
    digest: str
    directory: str  # "variants/<12 hex digits>", named by the content of its files
    entry: str  # the file the engine opens, relative to `directory`; "." for the directory itself
    files: tuple[FileEntry, ...]
    required_isa: tuple[str, ...] = ()
    passes: tuple[PassResult, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, kw_only=True)
class Content:
    """What answers. Two bundles with the same content have the same digest, wherever they were built."""

    task: Task
    source_digest: str
    licence: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    labels: tuple[str, ...]
    max_tokens: int | None
    pooling: str | None
    normalize: bool
    pad_id: int
    padding_side: Literal["left", "right"]
    tokenizer: FileEntry | None
    variants: tuple[BundledVariant, ...]
    plan: Plan
    fallback: str  # digest of the variant that needs no ISA flag


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far an output may lie from the golden one. Both must hold for each output."""

    min_cosine: float  # of each sample's values, outputs of more than one value a sample
    max_relative: float  # largest difference ÷ largest golden magnitude of that output


@dataclass(frozen=True, kw_only=True)
class GoldenOutputs:
    """What one variant answered on the building machine, and how closely it must be met."""

    variant: str
    file: FileEntry
    here: Tolerance  # the same CPU and engine versions as in `evidence.machine`
    elsewhere: Tolerance  # any other machine


@dataclass(frozen=True, kw_only=True)
class GoldenFacts:
    """Fixed inputs and each variant's outputs. `texts` (with pairs) must tokenise to the inputs."""

    texts: tuple[tuple[str, ...], ...]
    inputs: FileEntry
    outputs: tuple[GoldenOutputs, ...]


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The measured (batch, length) table of one variant, or of "original"."""

    variant: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Original time ÷ bundle time at one place: "workload", "8x256"."""

    where: str
    ratio: Interval


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """How it was found out, where and when. No part of the bundle's name."""

    created: str  # ISO 8601, UTC
    vengine: str
    source_name: str
    source_location: str
    architecture: str
    parameters: int
    machine: Machine
    met: bool
    verdict: Verdict | None
    invariance: Invariance | None
    timings: tuple[Timing, ...]
    gains: tuple[Gain, ...]
    original_rss_bytes: int | None
    optimized_rss_bytes: int | None
    golden: GoldenFacts
    report: FileEntry | None
    page: FileEntry | None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything that a bundle says about itself."""

    name: str  # what files are called; the digest is the identity
    digest: str  # of the canonical JSON of `content`, as it was written
    content: Content
    evidence: Evidence

    @classmethod
    def of(cls, name: str, content: Content, evidence: Evidence) -> Manifest:
        """A new manifest; its digest follows from its content."""
        return cls(name=name, digest=digest_json(content), content=content, evidence=evidence)

    @property
    def entries(self) -> tuple[FileEntry, ...]:
        """Every mention of a file; variants that share files mention them more than once."""
        content, evidence = self.content, self.evidence
        single = (content.tokenizer, evidence.golden.inputs, evidence.report, evidence.page)
        return (
            *(file for variant in content.variants for file in variant.files),
            *(golden.file for golden in evidence.golden.outputs),
            *(file for file in single if file is not None),
        )

    @property
    def files(self) -> dict[str, FileEntry]:
        """Every file that belongs to the bundle beside the manifest, by path."""
        return {file.path: file for file in self.entries}

    def variant(self, digest: str) -> BundledVariant:
        """The variant of that digest (which the manifest's rules say is there)."""
        return next(v for v in self.content.variants if v.digest == digest)

    def golden(self, digest: str) -> GoldenOutputs:
        """The golden outputs of that variant."""
        return next(g for g in self.evidence.golden.outputs if g.variant == digest)


def manifest_bytes(manifest: Manifest) -> bytes:
    """The manifest file. One line a value, keys sorted, so that two of them can be compared by eye.

    Raises:
        BundleError: the manifest breaks a rule of the format.
    """
    check_manifest(manifest, where=manifest.name)
    content, evidence = to_json(manifest.content), to_json(manifest.evidence)
    document = {
        "format": FORMAT,
        "name": manifest.name,
        "digest": manifest.digest,
        "evidence_digest": digest_json(evidence),
        "content": content,
        "evidence": evidence,
    }
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest file of at most 16 MiB and check it against the rules of the format.

    Raises:
        BundleError: missing, damaged, unsafe, or of a newer format.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        raise BundleError(
            f"no readable manifest: {error.strerror}",
            where=str(path),
            next_step="name a bundle: a folder with a manifest.json, or a file that `vengine pack` wrote",
        ) from error
    return parse_manifest(data, where=str(path))


def parse_manifest(data: bytes, *, where: str) -> Manifest:
    """Turn the bytes of a manifest file into a Manifest that keeps every rule of the format.

    Raises:
        BundleError: damaged, unsafe, or of a newer format.
    """
    document = _document(data, where)
    try:
        return _read(document, where)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise _damaged(str(error), where) from error


def _read(document: Mapping[str, Any], where: str) -> Manifest:
    keys = {"format", "name", "digest", "evidence_digest", "content", "evidence"}
    if set(document) != keys:
        raise _damaged(f"its keys are not {', '.join(sorted(keys))}", where)
    for half, key in (("content", "digest"), ("evidence", "evidence_digest")):
        if digest_json(document[half]) != document[key]:
            raise _damaged(f"{half} is not what {key} says", where)
    manifest = Manifest(
        name=document["name"],
        digest=document["digest"],
        content=from_json(Content, document["content"]),
        evidence=from_json(Evidence, document["evidence"]),
    )
    check_manifest(manifest, where=where)
    return manifest


def _document(data: bytes, where: str) -> Mapping[str, Any]:
    if len(data) > MAX_MANIFEST_BYTES:
        raise _damaged(f"longer than {MAX_MANIFEST_BYTES:,} bytes", where)
    try:
        document = json.loads(
            data.decode("utf-8"),
            parse_constant=_no_constant,
            parse_float=_finite,
            object_pairs_hook=_no_duplicates,
        )
    except (ValueError, RecursionError) as error:
        raise _damaged(f"not JSON: {error}", where) from error
    if not isinstance(document, dict) or "format" not in document:
        raise _damaged("not an object with a format number", where)
    version = document["format"]
    if type(version) is not int or version != FORMAT:
        raise BundleError(
            f"bundle format {version!r:.20} is unknown; this Vengine reads format {FORMAT}",
            where=where,
            next_step="install the Vengine that wrote the bundle, or a newer one",
        )
    return document


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that JSON has")


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"{text:.20} is out of range")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key appears twice")
    return result


def _damaged(what: str, where: str) -> BundleError:
    return BundleError(
        f"the manifest is damaged: {what}", where=where, next_step="fetch the bundle again, or build it anew"
    )
