"""A bundle as one file: a plain zip, nothing compressed, that any zip tool opens.

Weights don't compress, and stored bytes can be checked while they are read. The archive has one fixed
form (order, dates, attributes), so equal bundles give equal files. Reading trusts nothing: the manifest
inside is checked first, and then only what it lists is unpacked, each file to its stated size and digest.
"""

from __future__ import annotations

import hashlib
import stat
import zipfile
from pathlib import Path

from vengine.bundle import place
from vengine.bundle.format import MANIFEST, MAX_MANIFEST_BYTES, FileEntry, Manifest, parse_manifest
from vengine.errors import BundleError

_BLOCK = 1 << 20
_DATE = (1980, 1, 1, 0, 0, 0)
_MODE = (stat.S_IFREG | 0o644) << 16


def write_pack(folder: Path, manifest: Manifest, target: Path) -> Path:
    """Write the bundle folder as one file, atomically.

    Raises:
        BundleError: a file doesn't match the manifest, or `target` may not be written.
        LimitError: the disk is full.
    """
    target = place.replaceable(target)
    names = [MANIFEST, *sorted(manifest.files)]
    with place.replacing(target) as new:
        place.require_space(target.parent, sum((folder / name).stat().st_size for name in names))
        with zipfile.ZipFile(new, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name in names:
                _store(archive, folder / name, name, manifest.files.get(name))
    return target


def _store(archive: zipfile.ZipFile, path: Path, name: str, entry: FileEntry | None) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.external_attr = _MODE
    info.create_system = 3
    info.file_size = path.stat().st_size
    sha = hashlib.sha256()
    with path.open("rb") as read, archive.open(info, "w") as write:
        while block := read.read(_BLOCK):
            sha.update(block)
            write.write(block)
    if entry is not None and sha.hexdigest() != entry.sha256:
        raise BundleError(
            f"{name} is damaged", where=str(path), next_step="check the bundle with `vengine verify`, or fetch it again"
        )


def unpack(path: Path, cache: Path) -> Path:
    """Unpack a bundle file below `cache`, into a folder named by its manifest, and return that folder.

    A folder that is there already with every size right is used as it is.

    Raises:
        BundleError: damaged, unsafe or of a newer format; nothing is unpacked outside its folder.
        LimitError: the disk is full.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            data = _manifest_of(archive, path)
            manifest = parse_manifest(data, where=f"{path}, {MANIFEST}")
            members = _members(archive, manifest, path)
            folder = _cached(cache, data, path)
            with place.locked(cache):  # the second of two processes finds the work done
                if not _whole(folder, manifest, data):
                    _extract(archive, members, manifest, folder, data)
            return folder
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, UnicodeError, ValueError) as error:
        raise _damaged(str(error) or type(error).__name__, path) from error
    except OSError as error:
        if isinstance(error, FileNotFoundError) or not path.is_file():
            raise BundleError("no such bundle", where=str(path), next_step="check the path") from error
        raise place.explain(error, cache) from error


def _manifest_of(archive: zipfile.ZipFile, path: Path) -> bytes:
    infos = [info for info in archive.infolist() if info.filename == MANIFEST]
    if len(infos) != 1 or infos[0].compress_type != zipfile.ZIP_STORED or infos[0].file_size > MAX_MANIFEST_BYTES:
        raise _damaged("it holds no plain manifest.json", path)
    return archive.read(infos[0])


def _members(archive: zipfile.ZipFile, manifest: Manifest, path: Path) -> dict[str, zipfile.ZipInfo]:
    """The archive's entries, once they are known to be exactly the manifest's files, plain and stored."""
    infos = archive.infolist()
    members = {info.filename: info for info in infos}
    if len(members) != len(infos):
        raise _damaged("a name appears twice", path)
    if set(members) != {*manifest.files, MANIFEST}:
        strange = sorted(set(members) ^ {*manifest.files, MANIFEST})[0]
        raise _damaged(f"{strange!r:.120} is in the archive or in the manifest, but not in both", path)
    for name, info in members.items():
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise _damaged(f"{name} is not a plain stored file", path)
        if name != MANIFEST and info.file_size != manifest.files[name].size_bytes:
            raise _damaged(f"{name} has {info.file_size:,} bytes, not what the manifest says", path)
    if sum(info.file_size for info in infos) > path.stat().st_size:
        raise _damaged("its entries overlap", path)
    return members


def _cached(cache: Path, data: bytes, path: Path) -> Path:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BundleError(
            f"the folder to unpack into can't be made: {error.strerror}",
            where=str(cache),
            next_step="make it writable, or unpack the file with any zip tool and open the folder",
        ) from error
    return cache / hashlib.sha256(data).hexdigest()


def _whole(folder: Path, manifest: Manifest, data: bytes) -> bool:
    try:
        same = (folder / MANIFEST).read_bytes() == data
        return same and all((folder / n).stat().st_size == f.size_bytes for n, f in manifest.files.items())
    except OSError:
        return False


def _extract(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], manifest: Manifest, folder: Path, data: bytes
) -> None:
    with place.building(folder) as new:
        place.require_space(folder.parent, sum(f.size_bytes for f in manifest.files.values()))
        for name, entry in manifest.files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            sha = hashlib.sha256()
            with archive.open(members[name]) as read, (new / name).open("xb") as write:
                while block := read.read(_BLOCK):
                    sha.update(block)
                    write.write(block)
            if sha.hexdigest() != entry.sha256:
                raise _damaged(f"{name} is not what its digest says", Path(str(archive.filename)))
        (new / MANIFEST).write_bytes(data)


def _damaged(what: str, path: Path) -> BundleError:
    return BundleError(
        f"the packed bundle is damaged: {what}", where=str(path), next_step="fetch the bundle again, or pack it anew"
    )


def default_pack_path(folder: Path) -> Path:
    """Where a bundle's one-file form goes by default: beside it, `NAME.vengine.pack`."""
    return folder.with_name(folder.name + ".pack")
