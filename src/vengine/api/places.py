"""Where an optimisation writes, checked before any work: what is found after minutes of search is found too late."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vengine.bundle.pack import default_pack_path
from vengine.bundle.place import replaceable
from vengine.errors import LimitError, UsageError
from vengine.report.trace import START

_PAGE = b"<!doctype html"


@dataclass(frozen=True, kw_only=True)
class Places:
    """The bundle's folder and, where they were asked for, its one-file form and its page."""

    bundle: Path
    pack: Path | None
    page: Path | None


def places(bundle: str | Path, page: str | Path | None, *, pack: bool) -> Places:
    """Resolve and check every place; nothing is written.

    Raises:
        BundleError: something that is no bundle lies where the bundle or its one-file form should go.
        UsageError: a folder is missing or can't be written to, or the page would replace something else.
    """
    target = replaceable(Path(bundle))
    _require_writable(target.parent, "--out")
    packed = replaceable(default_pack_path(target)) if pack else None
    return Places(bundle=target, pack=packed, page=None if page is None else _page(Path(page), target))


def _page(path: Path, bundle: Path) -> Path:
    path = path.resolve()
    if path == bundle or bundle in path.parents:
        raise UsageError(
            "the page would lie inside the bundle, which has its own report.html",
            where=str(path),
            next_step="choose another place with --html",
        )
    return page_place(path)


def page_place(path: str | Path) -> Path:
    """Resolve and check where a page is written that belongs to no bundle; nothing is written.

    Raises:
        UsageError: the folder is missing or can't be written to, or the page would replace something else.
    """
    path = Path(path).resolve()
    _require_writable(path.parent, "--html")
    _refuse_stranger(path)
    return path


def trace_place(path: str | Path) -> Path:
    """Resolve and check where a trace is written; nothing is written.

    Raises:
        UsageError: the folder is missing or can't be written to, or the trace would replace something else.
    """
    path = Path(path).resolve()
    _require_writable(path.parent, "--trace")
    if path.exists() and not _begins(path, START.encode()):
        raise UsageError(
            "something that is no trace lies where it should go; it was not touched",
            where=str(path),
            next_step="choose another name with --trace, or move it away",
        )
    return path


def events_place(path: str | Path) -> Path:
    """Resolve and check the folder of event files; nothing is written.

    Raises:
        EngineMissing: tensorboard isn't installed.
        UsageError: it is a file, or can't be made or written to.
    """
    from vengine.report.event_files import require_tensorboard

    require_tensorboard()
    path = Path(path).resolve()
    if path.exists() and not path.is_dir():
        raise UsageError("this is a file, not a folder", where=str(path), next_step="change --tensorboard")
    _require_writable(path if path.exists() else path.parent, "--tensorboard")
    return path


def _refuse_stranger(path: Path) -> None:
    if path.exists() and not _begins(path, _PAGE):
        raise UsageError(
            "something that is no HTML page lies where the report should go; it was not touched",
            where=str(path),
            next_step="choose another name with --html, or move it away",
        )


def _begins(path: Path, wanted: bytes) -> bool:
    """Whether it is a file that is empty, or begins so."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(len(wanted))
    return not start or start.lower() == wanted.lower()


def _require_writable(folder: Path, option: str) -> None:
    if not folder.is_dir():
        raise UsageError("the folder doesn't exist", where=str(folder), next_step=f"make it, or change {option}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError("the folder can't be written to", where=str(folder), next_step=f"change {option}")


def write_page(path: Path, text: str) -> None:
    """Write the report's page whole or not at all.

    Raises:
        LimitError: the system refuses: no space, for instance.
    """
    write_whole(path, text, "the page", "--html", "; the bundle is complete and holds the same report.html")


def write_whole(path: Path, text: str, what: str, option: str, comfort: str = "") -> None:
    """Write a text file whole or not at all; `what` it is and the `option` that names its place are for the message.

    Raises:
        LimitError: the system refuses: no space, for instance.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise LimitError(
            f"{what} can't be written ({error.strerror}){comfort}",
            where=str(path),
            next_step=f"free some space, or choose another place with {option}",
        ) from error
    finally:
        part.unlink(missing_ok=True)
