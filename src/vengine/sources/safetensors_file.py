"""Reads safetensors without torch: checks the file, digests its tensors, looks for odd numbers.

The format is a little-endian u64 header length, a JSON header {name: {dtype, shape, data_offsets}}, and
the tensors' bytes. Everything in the header is checked before it is used: it comes from outside.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vengine.errors import SourceError

_HEADER_LIMIT = 100 << 20
_BLOCK = 1 << 24
_BYTES = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4,
    "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_FETCH_AGAIN = "fetch the file again and compare its size with the publisher's"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One tensor: where its bytes lie in which file."""

    name: str
    dtype: str  # the format's own name: "F32"
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All tensors of a checkpoint, by name, and a digest of their content (never of file layout)."""

    entries: Mapping[str, Entry]
    digest: str
    parameters: int
    weight_bytes: int
    notes: tuple[str, ...]


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The safetensors files of a Hugging Face directory: one file, or the shards that its index names.

    Raises:
        SourceError: none is there (naming pickles that are), or a shard is missing or outside the directory.
    """
    if (directory / _INDEX).is_file():
        return _shards(directory)
    if (directory / _SINGLE).is_file():
        return (directory / _SINGLE,)
    pickles = sorted(p.name for p in directory.glob("*.bin") if p.name.startswith("pytorch_model"))
    if pickles:
        raise SourceError(
            f"the weights are only there as a pickle, {pickles[0]}, and a pickle can run code when it is opened",
            where=str(directory),
            next_step="ask the publisher for model.safetensors, or convert the file yourself in a sandbox that you "
            "trust it in: model.save_pretrained(DIR) of transformers writes safetensors",
        )
    raise SourceError(
        "no weights: model.safetensors is missing", where=str(directory), next_step="fetch the complete directory"
    )


def _shards(directory: Path) -> tuple[Path, ...]:
    index = directory / _INDEX
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SourceError(f"the index of the weights can't be read: {error}", where=str(index)) from error
    for name in names:
        if not isinstance(name, str) or not re.fullmatch(r"[\w][\w.\-]*\.safetensors", name):
            raise SourceError(f"the index names an unsafe file: {name!r}", where=str(index))
        if not (directory / name).is_file():
            raise SourceError(f"a part of the weights is missing: {name}", where=str(index), next_step=_FETCH_AGAIN)
    return tuple(directory / name for name in names)


def read_weights(files: tuple[Path, ...]) -> Weights:
    """Check, digest and scan checkpoint files.

    The digest covers each tensor's name, dtype, shape and bytes; the same weights in other files, another
    order or with other metadata give the same digest.

    Raises:
        SourceError: a file is truncated, its header is wrong, or two files hold a tensor of one name.
    """
    entries: dict[str, Entry] = {}
    for file in files:
        for entry in read_header(file):
            if entry.name in entries:
                raise SourceError(f"tensor {entry.name} is there twice", where=str(file))
            entries[entry.name] = entry
    sha = hashlib.sha256()
    scan = NumberScan()
    for name in sorted(entries):
        entry = entries[name]
        sha.update(json.dumps([name, entry.dtype, list(entry.shape)]).encode())
        sha.update(_digest_and_scan(entry, scan))
    return Weights(
        entries=entries,
        digest="sha256:" + sha.hexdigest(),
        parameters=sum(e.elements for e in entries.values()),
        weight_bytes=sum(e.end - e.start for e in entries.values()),
        notes=scan.notes(),
    )


def read_header(file: Path) -> tuple[Entry, ...]:
    """The tensors that a file says it has, checked against the file's real size.

    Raises:
        SourceError: truncated, not safetensors, or an entry that doesn't fit.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        head = stream.read(8)
        length = int.from_bytes(head, "little") if len(head) == 8 else 0
        if not 2 <= length <= min(_HEADER_LIMIT, max(size - 8, 0)):
            raise SourceError("not a whole safetensors file", where=f"{file}, {size} bytes", next_step=_FETCH_AGAIN)
        raw = stream.read(length)
    try:
        header = json.loads(raw)
        items = [(name, item) for name, item in header.items() if name != "__metadata__"]
        return tuple(_entry(file, size, 8 + length, name, item) for name, item in items)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"the header of a safetensors file is wrong: {error}", where=str(file)) from error


def _entry(file: Path, size: int, base: int, name: str, item: Mapping[str, Any]) -> Entry:
    shape = tuple(int(d) for d in item["shape"])
    start, end = (int(o) for o in item["data_offsets"])
    dtype = str(item["dtype"])
    if dtype not in _BYTES:
        raise SourceError(f"tensor {name} has an unknown type, {dtype}", where=str(file))
    if base + end > size:
        raise SourceError(
            f"the file is truncated: it has {size} bytes and tensor {name} ends at byte {base + end}",
            where=str(file),
            next_step=_FETCH_AGAIN,
        )
    if not 0 <= start <= end or min(shape, default=0) < 0 or end - start != math.prod(shape) * _BYTES[dtype]:
        raise SourceError(f"tensor {name} has {end - start} bytes for shape {shape} of {dtype}", where=str(file))
    return Entry(name=name, dtype=dtype, shape=shape, file=file, start=base + start, end=base + end)


def read_tensor(entry: Entry) -> np.ndarray[Any, Any]:
    """One tensor as a numpy array of its shape; BF16 becomes float32.

    Raises:
        SourceError: a type that numpy can't hold (8-bit floats).
    """
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "BOOL": "?"}
    if entry.dtype not in kinds:
        raise SourceError(f"tensor {entry.name} has type {entry.dtype}, which isn't supported", where=str(entry.file))
    with entry.file.open("rb") as stream:
        stream.seek(entry.start)
        flat = np.frombuffer(stream.read(entry.end - entry.start), dtype=kinds[entry.dtype])
    return _as_float(flat, entry.dtype).reshape(entry.shape)


def _as_float(flat: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    if dtype == "BF16":  # the upper half of a float32
        return (flat.astype(np.uint32) << 16).view(np.float32)
    return flat


def _digest_and_scan(entry: Entry, scan: NumberScan) -> bytes:
    sha = hashlib.sha256()
    for block in _blocks(entry):
        sha.update(block)
        if entry.dtype in ("F32", "F64", "F16", "BF16"):
            kind = {"F32": "<f4", "F64": "<f8", "F16": "<f2", "BF16": "<u2"}[entry.dtype]
            scan.see(entry.name, _as_float(np.frombuffer(block, dtype=kind), entry.dtype))
    return sha.digest()


def _blocks(entry: Entry) -> Iterator[bytes]:
    if entry.start == entry.end:
        return
    with entry.file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        for at in range(entry.start, entry.end, _BLOCK):
            yield view[at : min(at + _BLOCK, entry.end)]


class NumberScan:
    """Counts NaN, infinite and denormal weights: the first make every answer wrong, the last make CPUs crawl."""

    def __init__(self) -> None:
        self._bad: dict[str, int] = {}
        self._tiny = 0
        self._seen = 0

    def see(self, name: str, values: np.ndarray[Any, Any]) -> None:
        """Look at a float array of any shape."""
        self._seen += values.size
        finite = np.isfinite(values)
        if not finite.all():
            self._bad[name] = self._bad.get(name, 0) + int(values.size - finite.sum())
        if values.dtype == np.float32:  # 16-bit floats are converted: their denormals are normal float32
            size = np.abs(values)
            self._tiny += int(((size > 0) & (size < np.finfo(np.float32).tiny)).sum())

    def notes(self) -> tuple[str, ...]:
        """What a user should know, in sentences."""
        notes = [f"{count} weights of {name} are NaN or infinite" for name, count in sorted(self._bad.items())[:3]]
        if self._tiny:
            notes.append(f"{self._tiny} of {self._seen} weights are denormal numbers, which slow a CPU down")
        return tuple(notes)
