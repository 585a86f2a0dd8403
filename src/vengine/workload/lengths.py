"""Lengths of the user's traffic, where the texts themselves may not be shown."""

from __future__ import annotations

from pathlib import Path

from vengine.errors import DataError
from vengine.workload.tables import decoded_lines

LONGEST = 1_000_000  # tokens
MOST = 100_000  # lengths kept; a larger histogram is scaled down


def read_lengths(path: str | Path) -> tuple[int, ...]:
    """Read tokens a text: a number a line, or a histogram of "length,count" lines.

    Returns:
        One number a text, in the file's order. More than MOST are scaled down in proportion; every
        length that occurs stays.

    Raises:
        DataError: a line is no length; the message names it.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError("there is no such file of lengths", where=str(path), next_step="check the path")
    counts: list[tuple[int, int]] = []
    for number, line in enumerate(decoded_lines(path), 1):
        cells = [cell.strip() for cell in line.replace("\t", ",").split(",")]
        if not any(cells) or (number == 1 and not any(c.isdigit() for c in line)):
            continue  # an empty line, or a header
        counts.append(_entry(cells, f"{path}, line {number}"))
    total = sum(count for _, count in counts)
    if not total:
        raise DataError("the file holds no length", where=str(path), next_step="give a number a line")
    scale = min(1.0, MOST / total)
    return tuple(length for length, count in counts for _ in range(_scaled(count, scale)))


def _scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale)) if count else 0


def _entry(cells: list[str], where: str) -> tuple[int, int]:
    if len(cells) > 2 or not all(c.isascii() and c.isdecimal() and len(c) < 16 for c in cells):
        raise DataError(
            f"{','.join(cells)!r} is no length",
            where=where,
            next_step="give a whole number of tokens a line, or length,count",
        )
    length, count = int(cells[0]), int(cells[1]) if len(cells) == 2 else 1
    if not 1 <= length <= LONGEST:
        raise DataError(f"a length of {length:,} tokens", where=where, next_step=f"give 1 to {LONGEST:,}")
    return length, count
