"""One entry for every kind of data file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from vengine.digests import digest_file, digest_json, digest_tree
from vengine.errors import DataError, UsageError
from vengine.types import Objective, Sample, Workload
from vengine.workload.lengths import read_lengths
from vengine.workload.tables import Columns, read_jsonl, read_table, read_text
from vengine.workload.tensors import image_files, read_arrays, read_images

LARGEST_FILE = 1 << 30  # bytes
_TABLES = (".jsonl", ".csv", ".tsv")


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
        At least two samples. Images stay on disk: their tensor is a `Path` until `fit_tensors`
        reads it.

    Raises:
        DataError: the file can't be used; the message says which line and why.
    """
    path = Path(path)
    if concurrency < 1:
        raise UsageError(f"concurrency is {concurrency}", next_step="give 1 or more")
    columns = Columns(text=text_column, pair=pair_column, label=label_column)
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


def _read(path: Path, columns: Columns) -> list[Sample]:
    if not path.exists():
        raise DataError("there is no such data file", where=str(path), next_step="check the path")
    if path.is_dir():
        return read_images(path)
    if path.stat().st_size > LARGEST_FILE:
        raise DataError(
            f"the data file has {path.stat().st_size:,} bytes; {LARGEST_FILE:,} are the most",
            where=str(path),
            next_step="give a sample of it: some thousand lines are enough",
        )
    readers: dict[str, Callable[[], list[Sample]]] = {
        ".txt": lambda: read_text(path),
        ".jsonl": lambda: read_jsonl(path, columns),
        ".csv": lambda: read_table(path, columns, ","),
        ".tsv": lambda: read_table(path, columns, "\t"),
        ".npz": lambda: read_arrays(path),
        ".npy": lambda: read_arrays(path),
    }
    if path.suffix.lower() not in readers:
        raise DataError(
            f"data files of the kind {path.suffix or path.name!r} are not known",
            where=str(path),
            next_step=f"use one of {', '.join(readers)}, or a directory of images",
        )
    named = next((name for name in (columns.text, columns.pair, columns.label) if name is not None), None)
    if named is not None and path.suffix.lower() not in _TABLES:
        raise DataError(
            f"a column was named, {named!r}, and {path.suffix} files have none",
            where=str(path),
            next_step=f"leave it out, or give one of {', '.join(_TABLES)}",
        )
    try:
        return readers[path.suffix.lower()]()
    except OSError as error:
        raise DataError(f"the data file can't be read: {error.strerror}", where=str(path)) from error


def _digest(path: Path) -> str:
    return digest_tree(path, image_files(path)) if path.is_dir() else digest_file(path)


def _check_samples(samples: Sequence[Sample], path: Path) -> None:
    if len(samples) < 2:
        what = "the data file is empty" if not samples else "the data file holds a single sample"
        raise DataError(what, where=str(path), next_step="give at least two samples; a verdict needs some hundred")
    labels = [s.label for s in samples if s.label is not None]
    if len(set(labels)) == 1 and all(s.labels is None for s in samples):
        raise DataError(
            f"all labels are {labels[0]!r}: one class tells nothing",
            where=str(path),
            next_step="give samples of two classes or more, or take the labels away",
        )
