"""Opening a bundle: folder or file, every name and size checked before anything is used."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vengine.bundle import place
from vengine.bundle.format import MANIFEST, BundledVariant, FileEntry, Manifest, read_manifest
from vengine.bundle.golden import MAX_GOLDEN_BYTES, arrays_from_bytes
from vengine.bundle.pack import default_pack_path, unpack, write_pack
from vengine.cache import default_cache
from vengine.digests import digest_file
from vengine.errors import BundleError

if TYPE_CHECKING:
    import numpy as np

    from vengine.engines.planned import PlannedSession, TextRunner

    Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """An opened bundle: its manifest is read and sound, and its files are all there."""

    manifest: Manifest
    root: Path

    @property
    def digest(self) -> str:
        """The bundle's name."""
        return self.manifest.digest

    @property
    def tokenizer(self) -> Path | None:
        """The tokenizer file; None for a model without one."""
        entry = self.manifest.content.tokenizer
        return None if entry is None else self.root / entry.path

    def path_of(self, variant: BundledVariant) -> Path:
        """The file, or the folder, that the variant's engine opens."""
        folder = self.root / variant.directory
        return folder if variant.entry == "." else folder / variant.entry

    def check(self) -> None:
        """Read every byte of the bundle and compare it with the manifest.

        Raises:
            BundleError: the first file that is damaged.
        """
        check_tree(self.root, self.manifest)
        self.check_files(self.manifest.files.values())

    def session(self, *, threads: int | None = None, variant: str | None = None) -> PlannedSession:
        """Open the variants that the plan needs on this machine; see `load.load`, which also says what it left out.

        Args:
            threads: for every variant; None takes the measured ones, or this machine's where it differs.
            variant: run only this one (start of its digest, or "ENGINE PRECISION"); no fallback.
        """
        from vengine.bundle.load import load

        return load(self, threads=threads, variant=variant).session

    def runner(self, *, threads: int | None = None, variant: str | None = None) -> TextRunner:
        """A runner for texts: tokenises, batches by length, runs, restores the order.

        Raises:
            BundleError: the model has no tokenizer.
        """
        from vengine.bundle.load import load, runner_of

        return runner_of(self, load(self, threads=threads, variant=variant).session)

    def pack(self, target: Path | None = None) -> Path:
        """Write the bundle as one file (`NAME.vengine.pack` beside the folder by default) and return its path."""
        check_tree(self.root, self.manifest)
        return write_pack(self.root, self.manifest, target or default_pack_path(self.root))

    def golden(self, entry: FileEntry) -> Arrays:
        """Read one of the golden files, checked.

        Raises:
            BundleError: too large or damaged.
        """
        if entry.size_bytes > MAX_GOLDEN_BYTES:
            raise BundleError(f"golden file of {entry.size_bytes:,} bytes", where=entry.path)
        self.check_files((entry,))
        return arrays_from_bytes((self.root / entry.path).read_bytes(), where=str(self.root / entry.path))

    def check_files(self, entries: Iterable[FileEntry]) -> None:
        """Compare some files' bytes with their digests; as `check` otherwise."""
        for entry in entries:
            path = self.root / entry.path
            try:
                found = digest_file(path).removeprefix("sha256:")
            except OSError as error:
                raise _damaged(f"{entry.path} can't be read: {error.strerror}", self.root) from error
            if found != entry.sha256:
                raise _damaged(f"the bytes of {entry.path} are not what its digest says", self.root)


def open_bundle(path: str | Path, *, cache: Path | None = None) -> Bundle:
    """Open a bundle folder, or the one-file form (which is unpacked once, below `cache`).

    Args:
        path: the folder or file.
        cache: where a file is unpacked to; None: `bundles` in the cache, see `vengine.cache`.

    Raises:
        BundleError: missing, damaged, unsafe or of a newer format. Sizes and names of all files are
            checked here, their bytes when they are used or with `Bundle.check`.
    """
    root = place.recover(Path(path).resolve())
    if not root.exists():
        raise BundleError("no such bundle", where=str(path), next_step="check the path")
    if root.is_file():
        if not place.is_pack(root):
            raise BundleError(
                "the file is no bundle", where=str(path), next_step="give a .vengine folder, or a file made with --pack"
            )
        root = unpack(root, cache or default_cache() / "bundles")
    manifest = read_manifest(root / MANIFEST)
    check_tree(root, manifest)
    return Bundle(manifest=manifest, root=root)


def check_tree(root: Path, manifest: Manifest) -> None:
    """The folder must hold exactly the manifest's files: plain files of the right size, no links, nothing else.

    A stranger's file in a model folder could change what an engine loads.

    Raises:
        BundleError: the first file that is missing, strange, a link or of another size.
    """
    expected = {path: entry.size_bytes for path, entry in manifest.files.items()}
    found = set()
    for path in root.rglob("*"):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            raise _damaged(f"{name} is a link", root)
        if path.is_dir() or name == MANIFEST:
            continue
        if name not in expected:
            raise _damaged(f"{name} does not belong to it", root)
        size = path.stat().st_size
        if size != expected[name]:
            raise _damaged(f"{name} has {size:,} bytes instead of {expected[name]:,}", root)
        found.add(name)
    if missing := sorted(set(expected) - found):
        raise _damaged(f"{missing[0]} is missing", root)


def _damaged(what: str, root: Path) -> BundleError:
    return BundleError(f"the bundle is damaged: {what}", where=str(root), next_step="fetch it again, or build it anew")
