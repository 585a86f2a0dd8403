"""Writing a bundle: all of it or nothing, and the same parts always give the same name.

`prepare(parts)` reads and names every file; its digest is the bundle's name, so a report may quote it.
`write_bundle(target, draft, report=…)` copies, checks and swaps into place.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

from vengine.bundle import place
from vengine.bundle.format import (
    MANIFEST,
    BundledVariant,
    Content,
    Evidence,
    FileEntry,
    Gain,
    GoldenFacts,
    GoldenOutputs,
    Manifest,
    Timing,
    manifest_bytes,
)
from vengine.bundle.golden import Golden, arrays_to_bytes, tolerances_for
from vengine.bundle.rules import MAX_FILES, files_digest
from vengine.digests import digest_file, to_json
from vengine.engines.base import model_files
from vengine.errors import BundleError
from vengine.types import Invariance, Machine, Plan, Source, Variant, Verdict

_BLOCK = 1 << 20
# Of a model folder (a variant whose entry is "."), what a loader reads. By name, since people keep their data and notes
# beside a model, and what lies in a bundle is handed on.
_FOLDER_NAMES = (
    "*.model",
    "*.safetensors",
    "*.safetensors.index.json",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "merges.txt",
    "modules.json",
    "preprocessor_config.json",
    "sentence_*_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a bundle is made of. Golden outputs must be there for each variant."""

    source: Source
    variants: tuple[Variant, ...]
    plan: Plan
    fallback: str  # digest of a variant that needs no ISA flag
    golden: Golden
    machine: Machine
    created: str  # ISO 8601, UTC
    vengine: str  # version of this package
    met: bool
    pad_id: int = 0
    padding_side: Literal["left", "right"] = "right"
    verdict: Verdict | None = None
    invariance: Invariance | None = None
    timings: tuple[Timing, ...] = ()
    gains: tuple[Gain, ...] = ()
    original_rss_bytes: int | None = None
    optimized_rss_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A bundle that is complete but for its report: what it will say, and where its bytes come from."""

    manifest: Manifest
    sources: Mapping[str, Path | bytes]  # path in the bundle → the file to copy, or the bytes to write

    @property
    def digest(self) -> str:
        """The name that the bundle will have. The report doesn't change it, so it may quote it."""
        return self.manifest.digest


def prepare(parts: Parts) -> Draft:
    """Name every file of the parts by its content, and check the whole against the format.

    Raises:
        BundleError: a file is missing, or the parts don't make a sound bundle.
    """
    sources: dict[str, Path | bytes] = {}
    variants = tuple(_bundled(variant, sources) for variant in parts.variants)
    golden = _golden(parts, sources)
    tokenizer = _tokenizer(parts.source, sources)
    content = _content(parts, variants, tokenizer)
    manifest = Manifest.of(parts.source.name, content, _evidence(parts, golden))
    manifest_bytes(manifest)
    return Draft(manifest=manifest, sources=sources)


def write_bundle(
    target: Path, draft: Draft, *, report: Mapping[str, Any] | None = None, page: str | None = None
) -> Manifest:
    """Write the bundle folder at `target`; a bundle that is there is kept until the new one is complete.

    Args:
        target: the folder to write; its parent must exist.
        draft: what `prepare` made.
        report: becomes `report.json`.
        page: becomes `report.html`.

    Returns:
        The manifest as written.

    Raises:
        BundleError: a file has changed since `prepare`, `target` is something else than a bundle, or
            may not be written.
        LimitError: the disk or a quota is full. In each case what was at `target` is unchanged.
    """
    target = place.replaceable(target)
    draft = _with_reports(draft, report, page)
    manifest = draft.manifest
    with place.replacing(target) as folder:
        place.require_space(target.parent, sum(f.size_bytes for f in manifest.files.values()))
        folder.mkdir()
        written: dict[str, Path] = {}
        for path, entry in manifest.files.items():
            _write(draft.sources[path], folder / path, entry, written)
        (folder / MANIFEST).write_bytes(manifest_bytes(manifest))
    return manifest


def _bundled(variant: Variant, sources: dict[str, Path | bytes]) -> BundledVariant:
    files = {path.relative_to(variant.directory).as_posix(): path for path in _files_of(variant)}
    if not files:
        raise BundleError(f"variant {variant.recipe.label} has no files", where=str(variant.directory))
    hashes = {name: digest_file(path).removeprefix("sha256:") for name, path in files.items()}
    directory = "variants/" + files_digest(hashes.items()).removeprefix("sha256:")[:12]
    sources.update({f"{directory}/{name}": path for name, path in files.items()})
    return BundledVariant(
        recipe=variant.recipe,
        digest=variant.digest,
        directory=directory,
        entry=variant.entry,
        files=tuple(
            FileEntry(path=f"{directory}/{name}", sha256=hashes[name], size_bytes=files[name].stat().st_size)
            for name in sorted(files)
        ),
        required_isa=tuple(sorted(variant.required_isa)),
        passes=variant.passes,
    )


def _files_of(variant: Variant) -> Iterable[Path]:
    """The variant's own files: of one model its file and its weights, of a model folder what a loader reads."""
    if variant.entry != ".":
        return model_files(variant.directory / variant.entry)
    found = []
    for path in sorted(variant.directory.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(variant.directory).parts)
        if not hidden and any(fnmatchcase(path.name, name) for name in _FOLDER_NAMES) and path.is_file():
            found.append(path)
        if len(found) > MAX_FILES:
            raise BundleError(f"more than {MAX_FILES} files in a variant", where=str(variant.directory))
    return found


def _tokenizer(source: Source, sources: dict[str, Path | bytes]) -> FileEntry | None:
    if source.tokenizer is None:
        return None
    try:
        data = source.tokenizer.read_bytes()
    except OSError as error:
        raise BundleError(f"the tokenizer can't be read: {error.strerror}", where=str(source.tokenizer)) from error
    return _entry("tokenizer.json", data, sources)


def _golden(parts: Parts, sources: dict[str, Path | bytes]) -> GoldenFacts:
    golden = parts.golden
    outputs = []
    for variant in parts.variants:
        if variant.digest not in golden.outputs:
            raise BundleError(f"no golden outputs for variant {variant.recipe.label}", where=parts.source.name)
        chosen = (golden.tolerances or {}).get(variant.digest)
        here, elsewhere = chosen or tolerances_for(variant.recipe.precision)
        path = f"golden/{variant.digest.removeprefix('sha256:')[:12]}.npz"
        file = _entry(path, arrays_to_bytes(golden.outputs[variant.digest]), sources)
        outputs.append(GoldenOutputs(variant=variant.digest, file=file, here=here, elsewhere=elsewhere))
    inputs = _entry("golden/inputs.npz", arrays_to_bytes(golden.inputs), sources)
    return GoldenFacts(texts=golden.texts, inputs=inputs, outputs=tuple(outputs))


def _content(parts: Parts, variants: tuple[BundledVariant, ...], tokenizer: FileEntry | None) -> Content:
    source = parts.source
    return Content(
        task=source.task,
        source_digest=source.digest,
        licence=source.licence,
        inputs=source.inputs,
        outputs=source.outputs,
        labels=source.labels,
        max_tokens=source.max_tokens,
        pooling=source.pooling,
        normalize=source.normalize,
        pad_id=parts.pad_id,
        padding_side=parts.padding_side,
        tokenizer=tokenizer,
        variants=variants,
        plan=parts.plan,
        fallback=parts.fallback,
    )


def _evidence(parts: Parts, golden: GoldenFacts) -> Evidence:
    return Evidence(
        created=parts.created,
        vengine=parts.vengine,
        source_name=parts.source.name,
        source_location=parts.source.location,
        architecture=parts.source.architecture,
        parameters=parts.source.parameters,
        machine=parts.machine,
        met=parts.met,
        verdict=parts.verdict,
        invariance=parts.invariance,
        timings=parts.timings,
        gains=parts.gains,
        original_rss_bytes=parts.original_rss_bytes,
        optimized_rss_bytes=parts.optimized_rss_bytes,
        golden=golden,
        report=None,
        page=None,
    )


def _with_reports(draft: Draft, report: Mapping[str, Any] | None, page: str | None) -> Draft:
    sources = dict(draft.sources)
    evidence = draft.manifest.evidence
    if report is not None:
        text = json.dumps(to_json(report), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        evidence = replace(evidence, report=_entry("report.json", text.encode(), sources))
    if page is not None:
        evidence = replace(evidence, page=_entry("report.html", page.encode(), sources))
    return Draft(manifest=replace(draft.manifest, evidence=evidence), sources=sources)


def _entry(path: str, data: bytes, sources: dict[str, Path | bytes]) -> FileEntry:
    sources[path] = data
    return FileEntry(path=path, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))


def _linked(twin: Path, path: Path) -> bool:
    """Whether the file system has hard links; without, the bytes are written again."""
    try:
        os.link(twin, path)
    except OSError:
        return False
    return True


def _write(source: Path | bytes, path: Path, entry: FileEntry, written: dict[str, Path]) -> None:
    """Write one file. A file whose bytes are there already, under another name, is stored once (a hard link)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    twin = written.setdefault(entry.sha256, path)
    if twin is not path and _linked(twin, path):
        return
    if isinstance(source, bytes):
        path.write_bytes(source)
    elif _copy(source, path) != entry.sha256:
        raise BundleError(
            "a file of the variant changed while the bundle was written",
            where=str(source),
            next_step="let only one command work in this folder, then try again",
        )


def _copy(source: Path, path: Path) -> str:
    sha = hashlib.sha256()
    with source.open("rb") as read, path.open("wb") as write:
        while block := read.read(_BLOCK):
            sha.update(block)
            write.write(block)
    return sha.hexdigest()
