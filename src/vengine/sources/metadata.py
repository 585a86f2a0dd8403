"""Small facts that a model's files state about themselves: JSON settings, licence, class names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vengine.errors import SourceError

_LIMIT = 256 << 20
# Who saved the file and with what says nothing about what the model computes.
FETCH_AGAIN = "fetch the file again, and compare its size with the publisher's"
_VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache", "_commit_hash")


def read_json(path: Path) -> Any:
    """A JSON file of a model.

    Raises:
        SourceError: missing, too large or not JSON.
    """
    try:
        if path.stat().st_size > _LIMIT:
            raise SourceError(f"{path.name} is larger than {_LIMIT >> 20} MB", where=str(path))
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SourceError(
            f"{path.name} can't be read: {error.strerror}", where=str(path), next_step="check the path and its rights"
        ) from error
    except (ValueError, RecursionError) as error:
        raise SourceError(
            f"{path.name} can't be read as JSON: {error}", where=str(path), next_step=FETCH_AGAIN
        ) from error


def read_settings(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object; {} when the file is missing.

    Raises:
        SourceError: there, but not a JSON object.
    """
    if not path.is_file():
        return {}
    data = read_json(path)
    if not isinstance(data, dict):
        raise SourceError(f"{path.name} is not a JSON object", where=str(path), next_step=FETCH_AGAIN)
    return data


def meaning(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a configuration that decides what the model computes: what a digest covers."""
    return {key: value for key, value in config.items() if key not in _VOLATILE}


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Class names in the order of the logits; () when the configuration has none that fit."""
    table = config.get("id2label")
    if not isinstance(table, Mapping):
        return ()
    try:
        numbered = {int(key): str(value) for key, value in table.items()}
    except (TypeError, ValueError):
        return ()
    if sorted(numbered) != list(range(len(numbered))):
        return ()
    return tuple(numbered[i] for i in range(len(numbered)))


def several_labels(config: Mapping[str, Any]) -> bool:
    """Whether a text may have several of the classes, each logit standing for itself."""
    return config.get("problem_type") == "multi_label_classification"


def licence(directory: Path) -> str:
    """The licence that a model card (README.md front matter) or a LICENSE file states; "unknown" otherwise."""
    card = directory / "README.md"
    if card.is_file():
        with card.open(encoding="utf-8", errors="replace") as file:
            text = file.read(65536)
        front = re.match(r"\A---\s*\n(.*?)\n---", text, re.DOTALL)
        found = re.search(r"^licen[sc]e:\s*([^\n#]+)", front.group(1), re.MULTILINE) if front else None
        if found and found.group(1).strip(" '\""):
            return found.group(1).strip(" '\"")
    for name in ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE"):
        text_file = directory / name
        if text_file.is_file():
            lines = text_file.read_text("utf-8", errors="replace")[:4096].splitlines()
            return next((line.strip() for line in lines if line.strip()), "unknown")[:100]
    return "unknown"


def short_name(text: str) -> str:
    """A name fit for a file: letters, digits, dot, dash and underscore."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "model"
