"""Text files → samples: a text a line, JSON lines, tables with and without a header."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vengine.errors import DataError
from vengine.types import Sample

TEXT = ("text", "sentence", "sentence1", "text1", "question", "query", "utterance", "content", "premise", "anchor")
PAIR = ("pair", "text_pair", "sentence2", "text2", "passage", "document", "answer", "hypothesis", "positive")
LABEL = ("label", "labels", "category", "intent", "class", "target")
PASSAGES = ("passages", "documents", "candidates")  # a list: a query's passages, with a list of relevances
SCORE = ("score", "similarity", "similarity_score", "relevance")

LONGEST_TEXT = 100_000  # characters; far beyond any encoder's window, so it is a wrong file or column
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*$")


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One record before it is checked, and where it stands."""

    where: str
    text: Any
    pair: Any = None
    label: Any = None
    score: Any = None
    group: str | None = None


@dataclass(frozen=True, kw_only=True)
class Columns:
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


def read_text(path: Path) -> list[Sample]:
    """A text a line; empty lines are left out."""
    return [_checked(row) for row in _text_rows(path)]


def read_jsonl(path: Path, columns: Columns) -> list[Sample]:
    """A JSON string or object a line."""
    return [_checked(row) for row in _json_rows(path, columns)]


def read_table(path: Path, columns: Columns, delimiter: str) -> list[Sample]:
    """CSV or TSV, with a header or in one of the three known forms without."""
    return [_checked(row) for row in _table_rows(path, columns, delimiter)]


def decoded_lines(path: Path) -> list[str]:
    """The file's lines, decoded strictly."""
    data = path.read_bytes()
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError("the file is UTF-16", where=str(path), next_step="save it as UTF-8")
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"byte 0x{error.object[error.start]:02x} is not UTF-8",
            where=f"{path}, line {line}",
            next_step="save the file as UTF-8",
        ) from error
    return [line.removesuffix("\r") for line in text.split("\n")]


def _text_rows(path: Path) -> Iterator[_Row]:
    for number, line in enumerate(decoded_lines(path), 1):
        if line.strip():
            yield _Row(where=f"{path}, line {number}", text=line.strip())


def _json_rows(path: Path, columns: Columns) -> Iterator[_Row]:
    for number, line in enumerate(decoded_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"the line is not JSON: {error}", where=where, next_step="give one JSON value a line"
            ) from (error)
        if isinstance(record, str):
            yield _Row(where=where, text=record)
        elif isinstance(record, dict):
            found = columns.find(list(record), where)
            if passages := _passages(record):
                yield from _ranked_rows(record, found, passages, where)
            else:
                yield _Row(where=where, **{role: record[column] for role, column in found.items()})
        else:
            raise DataError(f"the line is a JSON {type(record).__name__}", where=where, next_step="give objects")


def _passages(record: dict[str, Any]) -> str | None:
    """The key of a list of passages."""
    return next((key for key in record if key.strip().lower() in PASSAGES and isinstance(record[key], list)), None)


def _ranked_rows(record: dict[str, Any], found: dict[str, str], passages: str, where: str) -> Iterator[_Row]:
    """A query with its passages: a row for each of them, all of one group."""
    texts = record[passages]
    key = found.get("score", found.get("label"))
    scores = None if key is None else record[key]
    if not isinstance(scores, list) or len(scores) != len(texts):
        told = f"{len(scores)}" if isinstance(scores, list) else "no list of"
        raise DataError(
            f"{len(texts)} passages and {told} relevances",
            where=where,
            next_step='give one number for each: {"query": …, "passages": ["…", "…"], "relevance": [1, 0]}',
        )
    for text, score in zip(texts, scores, strict=True):
        yield _Row(where=where, text=record[found["text"]], pair=text, score=score, group=where)


def _table_rows(path: Path, columns: Columns, delimiter: str) -> Iterator[_Row]:
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
    reader = csv.reader(io.StringIO("\n".join(decoded_lines(path)), newline=""), delimiter=delimiter, strict=True)
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
        label=None if isinstance(row.label, list) else _label(row.label, row.where),
        labels=_labels(row.label, row.where) if isinstance(row.label, list) else None,
        score=_score(row.score, row.where),
        group=row.group,
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
        raise DataError(f"the label is a {type(value).__name__}", where=where, next_step="give a class, or a list")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def _labels(values: list[Any], where: str) -> tuple[str, ...]:
    """Several classes of one text, each once; an empty list says that none fits."""
    named = [_label(value, where) for value in values]
    if None in named:
        raise DataError("a label in the list is empty", where=where, next_step="leave it out of the list")
    return tuple(dict.fromkeys(name for name in named if name is not None))


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
