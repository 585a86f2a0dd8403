"""Reads a wheel as what it is, a zip of files: data files out, nothing imported, every size checked first."""

from __future__ import annotations

import email
import os
import shutil
import stat
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from vengine.errors import LimitError, SourceError

_ENTRIES = 20_000
_TOTAL_BYTES = 32 << 30
_RATIO = 1000  # unpacked ÷ packed of one file; weights compress by less than 20
_SMALL = 1 << 20  # below this a high ratio is harmless
_CODE = (".py", ".pyc", ".pyd", ".so", ".dll", ".dylib", ".exe", ".sh", ".bat", ".pth")


@dataclass(frozen=True, kw_only=True)
class WheelFacts:
    """What a wheel's METADATA states."""

    name: str
    version: str
    licence: str


def read_facts(wheel: Path) -> WheelFacts:
    """Name, version and licence from METADATA.

    Raises:
        SourceError: no zip, or no METADATA.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA")]
            if len(names) != 1 or archive.getinfo(names[0]).file_size > _SMALL * 4:
                raise SourceError("the wheel has no METADATA", where=str(wheel))
            text = archive.read(names[0]).decode("utf-8", errors="replace")
    except (zipfile.BadZipFile, OSError) as error:
        raise _damaged(wheel, error) from error
    headers = email.message_from_string(text)
    classifiers = [c.rsplit("::", 1)[-1].strip() for c in headers.get_all("Classifier", []) if c.startswith("License")]
    stated = headers.get("License-Expression") or headers.get("License") or (classifiers or ["unknown"])[0]
    first = next((line.strip() for line in stated.splitlines() if line.strip()), "unknown")
    return WheelFacts(
        name=headers.get("Name", wheel.name.split("-")[0]), version=headers.get("Version", ""), licence=first[:100]
    )


def unpack_data(wheel: Path, target: Path) -> None:
    """Unpack a wheel's files, program code left out, into `target`, which appears whole or not at all.

    Raises:
        SourceError: damaged, or an entry that is unsafe (absolute, outside, twice, a link).
        LimitError: too many entries, too large, packed too tightly, or no room on the disk.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = checked_entries(archive.infolist(), wheel)
            _must_fit(sum(e.file_size for e in entries), target.parent, wheel)
            for entry in entries:
                _unpack_one(archive, entry, draft / entry.filename)
        _move_into_place(draft, target)
    except (zipfile.BadZipFile, EOFError) as error:
        raise _damaged(wheel, error) from error
    except OSError as error:
        raise LimitError(f"the wheel can't be unpacked: {error}", where=str(target)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def checked_entries(infos: list[zipfile.ZipInfo], wheel: Path) -> list[zipfile.ZipInfo]:
    """The entries to unpack, all of the archive's names and sizes checked.

    Raises:
        SourceError: an unsafe name.
        LimitError: a limit is exceeded.
    """
    if len(infos) > _ENTRIES:
        raise LimitError(f"the wheel has {len(infos)} files, more than {_ENTRIES}", where=str(wheel))
    if sum(i.file_size for i in infos) > _TOTAL_BYTES:
        raise LimitError(f"the wheel unpacks to more than {_TOTAL_BYTES >> 30} GiB", where=str(wheel))
    seen: set[str] = set()
    for info in infos:
        path = PurePosixPath(info.filename)
        odd = "\\" in info.filename or "\0" in info.filename or ":" in path.parts[0] if path.parts else True
        if path.is_absolute() or ".." in path.parts or odd:
            raise SourceError(f"the wheel has an unsafe file name: {info.filename!r}", where=str(wheel))
        if stat.S_ISLNK(info.external_attr >> 16):
            raise SourceError(f"the wheel has a link: {info.filename!r}", where=str(wheel))
        if str(path) in seen:
            raise SourceError(f"the wheel has {info.filename!r} twice", where=str(wheel))
        if info.file_size > _SMALL and info.file_size > _RATIO * max(info.compress_size, 1):
            raise LimitError(f"{info.filename!r} is packed more than {_RATIO} times: a zip bomb?", where=str(wheel))
        seen.add(str(path))
    return [i for i in infos if not i.is_dir() and PurePosixPath(i.filename).suffix.lower() not in _CODE]


def _unpack_one(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    left = entry.file_size
    with archive.open(entry) as source, target.open("xb") as file:
        while block := source.read(1 << 20):
            left -= len(block)
            if left < 0:
                raise LimitError(f"{entry.filename!r} is larger than the archive says", where=str(archive.filename))
            file.write(block)


def _must_fit(size: int, directory: Path, wheel: Path) -> None:
    free = shutil.disk_usage(directory).free
    if size > free:
        raise LimitError(
            f"unpacking needs {size >> 20} MB and the disk has {free >> 20} MB left",
            where=f"{wheel.name} → {directory}",
            next_step="make room, or name another cache directory",
        )


def _move_into_place(draft: Path, target: Path) -> None:
    try:
        os.replace(draft, target)
    except OSError:
        if not target.is_dir():  # another run was faster: its copy is as good
            raise


def _damaged(wheel: Path, error: BaseException) -> SourceError:
    return SourceError(
        f"the wheel is damaged: {error}", where=str(wheel), next_step=f"delete {wheel.name} and run the command again"
    )
