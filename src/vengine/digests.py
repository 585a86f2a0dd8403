"""Canonical JSON and content digests: the one way in which Vengine names content.

Canonical: keys sorted, no spaces, UTF-8, no NaN. A digest is "sha256:" and 64 hex digits.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_BLOCK = 1 << 20


def to_json(value: Any) -> Any:
    """Turn nouns of `types` (nested dataclasses, tuples, paths) into what `json` can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    return value


def from_json(kind: type[T], data: Any) -> T:
    """Inverse of `to_json` for a noun: unknown keys are refused, missing ones take their default.

    Raises:
        ValueError: the data doesn't fit the noun.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__} wants an object, got {type(data).__name__}")
    hints = _hints(typing.cast("Any", kind))
    unknown = set(data) - set(hints)
    if unknown:
        raise ValueError(f"{kind.__name__} has no field {sorted(unknown)[0]!r}")
    try:
        return kind(**{name: _read(hints[name], value) for name, value in data.items()})
    except TypeError as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


@functools.cache  # evaluating annotations takes longer than reading the values, and a recording holds thousands
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(hint: Any, value: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _read_union(args, value)
    if origin is tuple:
        inner = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_read(h, v) for h, v in zip(inner, value, strict=True))
    if dataclasses.is_dataclass(hint):
        return from_json(typing.cast("type[Any]", hint), value)
    if hint is Path:
        return Path(value)
    if origin is typing.Literal and value not in args:
        raise ValueError(f"{value!r} is none of {args}")
    if hint is float and isinstance(value, int):
        return float(value)
    if hint in (int, str, bool, float) and type(value) is not hint:
        raise ValueError(f"expected {hint.__name__}, got {value!r}")
    return value


def _read_union(args: tuple[Any, ...], value: Any) -> Any:
    if value is None:
        if type(None) in args:
            return None
        raise ValueError("a value is missing")
    fitting = [a for a in args if a is not type(None)]
    for hint in fitting[:-1]:
        if hint in (int, str) and type(value) is hint:
            return value
    return _read(fitting[-1], value)


def canonical_json(value: Any) -> bytes:
    """The one byte form of a value."""
    return json.dumps(
        to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest_bytes(data: bytes) -> str:
    """Digest of bytes in memory."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Digest of a value's canonical JSON."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """Digest of one file's bytes, read in blocks."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            sha.update(block)
    return "sha256:" + sha.hexdigest()


def digest_tree(root: Path, files: Iterable[Path]) -> str:
    """Digest of several files below `root`: their relative names and contents, in any order."""
    return digest_json({p.relative_to(root).as_posix(): digest_file(p) for p in files})
