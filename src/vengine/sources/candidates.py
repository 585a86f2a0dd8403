"""Finds the model inside a folder that came from elsewhere: a distribution or a hub snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vengine.errors import SourceError

Kind = Literal["huggingface", "onnx", "openvino", "gguf"]
_MOST_FILES = 20_000  # a folder with more is somebody's disk, not a model


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One model in a folder."""

    kind: Kind
    path: Path  # a directory or the main file
    inside: str  # relative to the folder, as the user names it after "#"


def find_candidates(root: Path) -> tuple[Candidate, ...]:
    """Every model in the folder, sorted by place. Files inside a model directory belong to that directory.

    Raises:
        SourceError: the folder holds too many files to search.
    """
    files = _files(root)
    directories = _model_directories(files)
    found = [("huggingface", directory) for directory in directories]  # type: list[tuple[Kind, Path]]
    for path in files:
        if not any(path.is_relative_to(d) for d in directories):
            kind = _kind_of(path)
            if kind:
                found.append((kind, path))
    return tuple(Candidate(kind=kind, path=path, inside=path.relative_to(root).as_posix()) for kind, path in found)


def _files(root: Path) -> list[Path]:
    """The files below the folder, sorted. Links to folders aren't followed; what may not be read is left out."""
    found: list[Path] = []
    for folder, _, names in os.walk(root):
        found += [path for name in names if (path := Path(folder, name)).is_file()]
        if len(found) > _MOST_FILES:
            raise SourceError(
                f"the folder holds more than {_MOST_FILES:,} files, too many to search for a model",
                where=str(root),
                next_step="name the model's own directory or file",
            )
    return sorted(found)


def _model_directories(files: Iterable[Path]) -> list[Path]:
    places = {p.parent for p in files if p.name in ("modules.json", "config.json") and _looks_whole(p.parent)}
    # A directory inside another one is a part of it (1_Pooling, 0_Transformer, onnx).
    return sorted(p for p in places if not any(p != other and p.is_relative_to(other) for other in places))


def _looks_whole(directory: Path) -> bool:
    if (directory / "modules.json").is_file():
        return True
    weights = (*directory.glob("*.safetensors"), *directory.glob("*.safetensors.index.json"))
    return bool(weights) or any(directory.glob("pytorch_model*.bin"))


def _kind_of(path: Path) -> Kind | None:
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return "onnx"
    if suffix == ".gguf":
        return "gguf"
    if suffix == ".xml" and path.with_suffix(".bin").is_file():
        return "openvino"
    return None


def choose(root: Path, inside: str | None, *, spec: str) -> Candidate:
    """The one model in the folder, or the one that the user named.

    Args:
        root: the folder.
        inside: a path in it, or None.
        spec: how the user named the source, without "#…", for the messages.

    Raises:
        SourceError: none, several, the named one isn't there, or a kind that isn't supported yet.
    """
    found = find_candidates(root)
    if inside is not None:
        found = tuple(c for c in found if c.inside == inside.strip("/")) or _named(root, inside, found, spec)
    if len(found) > 1 and any(c.kind != "gguf" for c in found):
        found = tuple(c for c in found if c.kind != "gguf")
    if not found:
        raise SourceError(
            "there is no model inside",
            where=spec,
            next_step="a model is a folder with config.json and safetensors, an .onnx file, or an .xml with its .bin",
        )
    if len(found) > 1:
        listed = "".join(f"\n    {spec}#{c.inside}" for c in found)
        raise SourceError(f"there are {len(found)} models inside", where=spec, next_step=f"name one of them:{listed}")
    if found[0].kind == "gguf":
        raise SourceError(
            f"{found[0].inside} is a GGUF language model, which is not supported yet",
            where=spec,
            next_step="encoders, classifiers and vision models are: a Hugging Face directory, ONNX or OpenVINO IR",
        )
    return found[0]


def _named(root: Path, inside: str, found: tuple[Candidate, ...], spec: str) -> tuple[Candidate, ...]:
    path = (root / inside).resolve()
    if path.is_relative_to(root.resolve()) and path.is_file():
        kind = _kind_of(path)
        if kind:
            return (Candidate(kind=kind, path=root / inside, inside=inside),)
    have = ", ".join(c.inside for c in found) or "no model"
    raise SourceError(f"there is no model at {inside!r} inside", where=spec, next_step=f"what is there: {have}")
