"""The user's data → `types.Workload`: texts, pairs, labels, scores, tensors, images, lengths.

| file | what it holds |
|---|---|
| `.txt` | a text a line; empty lines are left out |
| `.jsonl` | a JSON string or object a line |
| `.csv`, `.tsv` | columns named in a header; without one: text · text, label · text, text, score |
| `.npz`, `.npy` | arrays with the samples along axis 0, named like the model's inputs; `labels`, `scores` |
| a directory | images; when they all lie in subdirectories, these name the classes |

Column and key names that are understood stand in `TEXT`, `PAIR`, `LABEL` and `SCORE` below; others
are named by the caller. Nothing is dropped in silence: a line that can't be used is an error that
names it.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vengine.digests import digest_file, digest_json, digest_tree
from vengine.errors import DataError, UsageError
from vengine.types import Objective, Sample, TensorSpec, Workload

TEXT = ("text", "sentence", "sentence1", "text1", "question", "query", "utterance", "content", "premise", "anchor")
PAIR = ("pair", "text_pair", "sentence2", "text2", "passage", "document", "answer", "hypothesis", "positive")
LABEL = ("label", "category", "intent", "class", "target")
SCORE = ("score", "similarity", "similarity_score", "relevance")
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")

ONLY_INPUT = "input"  # the tensor of a sample whose file names none: stands for the model's only input
LONGEST_TEXT = 100_000  # characters; far beyond any encoder's window, so it is a wrong file or column
LARGEST_FILE = 1 << 30  # bytes
MOST_LENGTHS = 100_000  # a longer histogram is scaled down
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One record before it is checked, and where it stands."""

    where: str
    text: Any
    pair: Any = None
    label: Any = None
    score: Any = None


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Which columns the caller named; None: by the known names."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None

    def find(self, known: Sequence[str], where: str) -> dict[str, str]:
        """text, pair, label, score → the column that holds it."""
        lower = {name.strip().lower(): name for name in known}
        found: dict[str, str] = {}
        for role, named, names in (
            ("text", self.text, TEXT),
            ("pair", self.pair, PAIR),
            ("label", self.label, LABEL),
            ("score", None, SCORE),
        ):
            if named is not None and named not in known:
                raise _no_column(named, known, where)
            column = named if named is not None else next((lower[n] for n in names if n in lower), None)
            if column is not None and column not in found.values():
                found[role] = column
        if "text" not in found:
            raise _no_column("text", known, where)
        return found


def _no_column(name: str, known: Sequence[str], where: str) -> DataError:
    return DataError(
        f"there is no column {name!r}",
        where=f"{where} has {', '.join(map(repr, known)) or 'none'}",
        next_step="name the column of the texts with --text-column, and --pair-column and --label-column alike",
    )


def read_workload(
    path: str | Path,
    *,
    lengths: str | Path | Sequence[int] | None = None,
    concurrency: int = 1,
    objective: Objective = "latency",
    text_column: str | None = None,
    pair_column: str | None = None,
    label_column: str | None = None,
) -> Workload:
    """Read the user's samples.

    Args:
        path: a file or a directory of images, as the table above says.
        lengths: tokens a text, or a file of them (`read_lengths`). Without it the workload's
            `lengths` stay empty: how long a text is depends on the model's tokenizer.
        concurrency: requests in flight at once, ≥ 1.

    Returns:
        At least two samples. Images stay on disk: their tensor is a `Path` until `tensors_for`
        reads it.

    Raises:
        DataError: the file can't be used; the message says which line and why.
    """
    path = Path(path)
    if concurrency < 1:
        raise UsageError(f"concurrency is {concurrency}", next_step="give 1 or more")
    columns = _Columns(text=text_column, pair=pair_column, label=label_column)
    samples = tuple(_read(path, columns))
    _check_samples(samples, path)
    sizes = read_lengths(lengths) if isinstance(lengths, (str, Path)) else tuple(lengths or ())
    identity = {
        "data": _digest(path),
        "columns": [text_column, pair_column, label_column],
        "lengths": sizes,
        "concurrency": concurrency,
        "objective": objective,
    }
    return Workload(
        samples=samples,
        lengths=sizes,
        concurrency=concurrency,
        objective=objective,
        origin=str(path),
        digest=digest_json(identity),
    )


def _read(path: Path, columns: _Columns) -> Iterable[Sample]:
    if not path.exists():
        raise DataError("there is no such data file", where=str(path), next_step="check the path")
    if path.is_dir():
        return _read_images(path)
    if path.stat().st_size > LARGEST_FILE:
        raise DataError(
            f"the data file has {path.stat().st_size:,} bytes; {LARGEST_FILE:,} are the most",
            where=str(path),
            next_step="give a sample of it: some thousand lines are enough",
        )
    readers: dict[str, Callable[[], Iterable[Sample]]] = {
        ".txt": lambda: map(_checked, _read_text(path)),
        ".jsonl": lambda: map(_checked, _read_jsonl(path, columns)),
        ".csv": lambda: map(_checked, _read_table(path, columns, ",")),
        ".tsv": lambda: map(_checked, _read_table(path, columns, "\t")),
        ".npz": lambda: _read_arrays(path),
        ".npy": lambda: _read_arrays(path),
    }
    if path.suffix.lower() not in readers:
        raise DataError(
            f"data files of the kind {path.suffix or path.name!r} are not known",
            where=str(path),
            next_step=f"use one of {', '.join(readers)}, or a directory of images",
        )
    try:
        return readers[path.suffix.lower()]()
    except OSError as error:
        raise DataError(f"the data file can't be read: {error.strerror}", where=str(path)) from error


def _digest(path: Path) -> str:
    return digest_tree(path, _image_files(path)) if path.is_dir() else digest_file(path)


# --- texts -----------------------------------------------------------------------------------


def _lines(path: Path) -> list[str]:
    """The file's lines, decoded strictly."""
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError("the file is UTF-16", where=str(path), next_step="save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # `utf-8-sig` counts from behind the mark; the mark holds no line end, so lines stay right.
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8",
            where=f"{path}, line {line}",
            next_step="save the file as UTF-8",
        ) from error
    return [line.removesuffix("\r") for line in text.split("\n")]


def _read_text(path: Path) -> Iterator[_Row]:
    for number, line in enumerate(_lines(path), 1):
        if line.strip():
            yield _Row(where=f"{path}, line {number}", text=line.strip())


def _read_jsonl(path: Path, columns: _Columns) -> Iterator[_Row]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"the line is not JSON: {error}", where=where, next_step="give one JSON value a line") from (
                error
            )
        if isinstance(record, str):
            yield _Row(where=where, text=record)
        elif isinstance(record, dict):
            found = columns.find(list(record), where)
            yield _Row(where=where, **{role: record[column] for role, column in found.items()})
        else:
            raise DataError(f"the line is a JSON {type(record).__name__}", where=where, next_step="give objects")


def _read_table(path: Path, columns: _Columns, delimiter: str) -> Iterator[_Row]:
    rows = list(_cells(path, delimiter))
    if not rows:
        return
    first = [cell.strip() for cell in rows[0][1]]
    named = (columns.text, columns.pair, columns.label) != (None, None, None)
    if named or {cell.lower() for cell in first} & {*TEXT, *LABEL, *PAIR, *SCORE} or _looks_like_header(rows):
        found, rows = columns.find(first, str(path)), rows[1:]
        place = {role: first.index(column) for role, column in found.items()}
    else:
        place = _places_without_header(rows, path)
    for number, cells in rows:
        where = f"{path}, line {number}"
        if len(cells) != len(first):
            raise DataError(
                f"the line has {len(cells)} columns, the first has {len(first)}",
                where=where,
                next_step='put texts that hold the delimiter in "double quotes", or use .txt: one text a line',
            )
        yield _Row(where=where, **{role: cells[i] for role, i in place.items()})


def _cells(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of every record that isn't empty."""
    reader = csv.reader(io.StringIO("\n".join(_lines(path)), newline=""), delimiter=delimiter, strict=True)
    start = 1
    try:
        for cells in reader:
            if cells:
                yield start, cells
            start = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"the table is broken: {error}",
            where=f"{path}, line {start}",
            next_step=f'check the "quotes"; a text may have {LONGEST_TEXT:,} characters at most',
        ) from error


def _looks_like_header(rows: Sequence[tuple[int, Sequence[str]]]) -> bool:
    """Names in every cell of the first line, none of which occurs again in its column."""
    first = rows[0][1]
    if len(first) < 2 or len(rows) < 2 or not all(_IDENTIFIER.match(cell.strip()) for cell in first):
        return False
    return not any(cell in {row[i] for _, row in rows[1:] if i < len(row)} for i, cell in enumerate(first))


def _places_without_header(rows: Sequence[tuple[int, Sequence[str]]], path: Path) -> dict[str, int]:
    first = rows[0][1]
    if len(first) == 1:
        return {"text": 0}
    if len(first) == 2:
        kinds = {row[1] for _, row in rows if len(row) == 2}
        if len(rows) < 10 or 2 * len(kinds) <= len(rows):
            return {"text": 0, "label": 1}
        what = f"the second column has {len(kinds)} different values in {len(rows)} lines: texts, or labels?"
    elif len(first) == 3 and _number(first[2]) is not None:
        return {"text": 0, "pair": 1, "score": 2}
    else:
        what = f"{len(first)} columns without names"
    raise DataError(what, where=str(path), next_step="put a line with column names first, such as text,pair,score")


def _checked(row: _Row) -> Sample:
    return Sample(
        text=_text(row.text, row.where),
        pair=None if row.pair is None else _text(row.pair, row.where),
        label=_label(row.label, row.where),
        score=_score(row.score, row.where),
    )


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"the text is a {type(value).__name__}", where=where, next_step="give a string")
    if not value.strip():
        raise DataError("the text is empty", where=where, next_step="leave the line out")
    if len(value) > LONGEST_TEXT:
        raise DataError(
            f"the text has {len(value):,} characters; {LONGEST_TEXT:,} are the most",
            where=where,
            next_step="cut it as your service does; if it is a whole document, check the file and the column",
        )
    if "\0" in value:
        raise DataError("the text holds a NUL byte", where=where, next_step="check that this is a text file")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise DataError("the text holds half a character (a lone surrogate)", where=where, next_step="mend the escape")
    return value


def _label(value: Any, where: str) -> str | None:
    if value is None or value == "":
        return None
    if not isinstance(value, (str, int, float)):
        raise DataError(f"the label is a {type(value).__name__}", where=where, next_step="give one class a sample")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _score(value: Any, where: str) -> float | None:
    if value is None or value == "":
        return None
    number = _number(value)
    if number is None:
        raise DataError(f"the score {value!r} is not a number", where=where, next_step="give a finite number")
    return number


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _check_samples(samples: Sequence[Sample], path: Path) -> None:
    if len(samples) < 2:
        what = "the data file is empty" if not samples else "the data file holds a single sample"
        raise DataError(what, where=str(path), next_step="give at least two; a verdict needs some hundred")
    labels = [s.label for s in samples if s.label is not None]
    if labels and len(set(labels)) == 1:
        raise DataError(
            f"all labels are {labels[0]!r}: one class tells nothing",
            where=str(path),
            next_step="give samples of two classes or more, or take the labels away",
        )
