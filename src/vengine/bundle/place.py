"""Putting a finished bundle in its place so that a kill at any moment loses nothing.

The new bundle is built beside the target as `.NAME.new`. Then: target → `.NAME.old`, `.NAME.new` →
target, remove `.NAME.old`. A kill between the renames leaves no target but an `.old`: whoever looks
next, reader or writer, puts it back. A lock on the parent folder keeps two writers apart, and keeps a
reader from "restoring" in the middle of another process's swap; the kernel drops it with the process.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vengine.bundle.format import MANIFEST
from vengine.errors import BundleError, LimitError, VengineError

_ZIP = b"PK\x03\x04"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}


def staging_of(target: Path) -> Path:
    """Where the new version is built."""
    return target.with_name(f".{target.name}.new")


def backup_of(target: Path) -> Path:
    """Where the old version waits while the new one takes its place."""
    return target.with_name(f".{target.name}.old")


def is_bundle(path: Path) -> bool:
    """Whether there is a bundle: a folder with a manifest, or one packed into a file."""
    return (path / "manifest.json").is_file() or is_pack(path)


def is_pack(path: Path) -> bool:
    """True for a file that begins as a zip with a manifest."""
    name = MANIFEST.encode()
    try:
        with path.open("rb") as file:
            start = file.read(30 + len(name))  # a zip's first local header is 30 bytes, then the first name
    except OSError:
        return False
    return start[:4] == _ZIP and start[30:] == name


def replaceable(target: Path) -> Path:
    """The real path to write, once it is clear that nothing but a bundle would be replaced there.

    Raises:
        BundleError: something else lies there, or the parent folder is missing.
    """
    target = target.resolve()
    if not target.parent.is_dir():
        raise BundleError(
            "the folder for the bundle doesn't exist", where=str(target.parent), next_step="make it, or choose another"
        )
    if target.is_dir():
        known = (target / MANIFEST).is_file() or not any(target.iterdir())
    else:
        known = not target.exists() or is_pack(target)
    if not known:
        raise BundleError(
            "something that is no bundle lies where the bundle should go; it was not touched",
            where=str(target),
            next_step="choose another name with --out, or move it away",
        )
    return target


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. File systems without locks (some network ones) are used without."""
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
                raise
        yield
    finally:
        os.close(handle)


def recover(target: Path) -> Path:
    """Undo an interrupted swap and return the path to open: the target, or its backup where that can't be moved."""
    backup = backup_of(target)
    if target.exists() or not backup.exists():
        return target
    with locked(target.parent):
        return recover_locked(target)


def recover_locked(target: Path) -> Path:
    """As `recover`, for a caller that holds the parent's lock."""
    backup = backup_of(target)
    if target.exists() or not backup.exists():
        return target
    try:
        os.replace(backup, target)
    except OSError:  # a read-only folder: the old version is whole where it lies
        return backup
    return target


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path to build a new file or folder at; on success it takes the target's place, else nothing changes.

    Raises:
        LimitError: the disk, a quota or the process's file size limit is exhausted.
        BundleError: no permission, or the parent folder is missing.
    """
    try:
        with locked(target.parent), building(target) as new:
            yield new
    except OSError as error:
        raise explain(error, target) from error


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """As `replacing`, for a caller that holds the parent's lock and explains the system's refusals."""
    recover_locked(target)
    new = staging_of(target)
    remove(new)
    remove_backup(target)
    try:
        yield new
        sync_tree(new)
        swap(new, target)
    finally:
        remove(new)


def copy_bundle(root: Path, target: Path) -> Path:
    """Copy a bundle's folder to `target`, as atomically as `replacing`; returns the real target."""
    target = replaceable(target)
    if target == root.resolve():
        return target
    with replacing(target) as new:
        files = [path for path in sorted(root.rglob("*")) if path.is_file()]
        require_space(target.parent, sum(path.stat().st_size for path in files))
        for path in files:
            copy = new / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return target


def swap(new: Path, target: Path) -> None:
    """Put `new` at `target`; what was there is removed last."""
    backup = backup_of(target)
    if target.exists():
        os.replace(target, backup)
    try:
        os.replace(new, target)
    except BaseException:
        if backup.exists() and not target.exists():
            os.replace(backup, target)
        raise
    _sync(target.parent)
    remove(backup)


def remove_backup(target: Path) -> None:
    """Remove what a kill after the swap left over. Only ever beside a whole target."""
    if target.exists():
        remove(backup_of(target))


def remove(path: Path) -> None:
    """Remove a file or a folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_tree(path: Path) -> None:
    """Bring a file, or a folder and all below it, to the disk before it gets its name."""
    if path.is_dir():
        for item in path.iterdir():
            sync_tree(item)
    _sync(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def require_space(folder: Path, needed_bytes: int) -> None:
    """Refuse early where the disk can't hold what is about to be written.

    Raises:
        LimitError: with both numbers.
    """
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise LimitError(
            f"the bundle needs {needed_bytes / 1e6:,.1f} MB and the disk has {free / 1e6:,.1f} MB left",
            where=str(folder),
            next_step="free some space, or name another folder with --out",
        )


def explain(error: OSError, target: Path) -> VengineError:
    """The system's refusal in the user's words."""
    kept = "what was there before is unchanged"
    if error.errno in _FULL:
        return LimitError(
            f"no space left while the bundle was written ({error.strerror}); {kept}",
            where=str(target),
            next_step="free some space, or name another folder with --out",
        )
    if error.errno in _FORBIDDEN:
        return BundleError(
            f"no permission to write the bundle ({error.strerror}); {kept}",
            where=str(error.filename or target),
            next_step="name a folder that you may write with --out",
        )
    return BundleError(
        f"the bundle can't be written ({error.strerror or error}); {kept}",
        where=str(error.filename or target),
        next_step="check the folder and the disk, then try again",
    )
