"""The one-file form: equal bundles give equal bytes, and a hostile archive gets nowhere."""

from __future__ import annotations

import io
import os
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bundle.making import Toy, bundle
from tests.bundle.test_write import tree

from vengine.bundle import pack
from vengine.bundle.read import open_bundle
from vengine.errors import BundleError, LimitError

Member = tuple[zipfile.ZipInfo, bytes]
Attack = Callable[[list[Member]], list[Member]]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle(tmp_path_factory.mktemp("packed"), (Toy(precision="bf16"), Toy())).pack()


def members_of(path: Path) -> list[Member]:
    with zipfile.ZipFile(path) as archive:
        return [(info, archive.read(info)) for info in archive.infolist()]


def archive_of(members: list[Member]) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # duplicate names are what some rows are about
        for info, data in members:
            archive.writestr(info, data)
    return buffer.getvalue()


def plain(name: str, data: bytes = b"x", kind: int = stat.S_IFREG) -> Member:
    info = zipfile.ZipInfo(name)
    info.external_attr = (kind | 0o644) << 16
    return info, data


def _squeezed(members: list[Member]) -> list[Member]:
    for info, _ in members[1:]:
        info.compress_type = zipfile.ZIP_DEFLATED
    return members


def _bomb(members: list[Member]) -> list[Member]:
    info, _ = members[1]
    info.compress_type = zipfile.ZIP_DEFLATED
    return [members[0], (info, b"\0" * 50_000_000), *members[2:]]


def _link(members: list[Member]) -> list[Member]:
    info, _ = members[1]
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return members


def test_it_opens_to_the_same_bundle(tmp_path: Path, packed: Path) -> None:
    folder = packed.with_suffix("")
    opened = open_bundle(packed, cache=tmp_path)
    opened.check()
    assert opened.digest == open_bundle(folder).digest
    assert tree(opened.root) == tree(folder)


def test_equal_bundles_give_equal_files(tmp_path: Path) -> None:
    one, other = (bundle(tmp_path / name).pack().read_bytes() for name in ("one", "other"))
    assert one == other


def test_any_zip_tool_opens_it(packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == "manifest.json"
        assert {i.compress_type for i in archive.infolist()} == {zipfile.ZIP_STORED}


def test_it_is_unpacked_where_the_user_keeps_such_things(
    tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VENGINE_CACHE", str(tmp_path / "kept"))
    assert open_bundle(packed).root.parent == tmp_path / "kept" / "bundles"


def test_it_is_unpacked_once(tmp_path: Path, packed: Path) -> None:
    first = open_bundle(packed, cache=tmp_path).root
    before = (first / "manifest.json").stat().st_ino
    assert open_bundle(packed, cache=tmp_path).root == first
    assert (first / "manifest.json").stat().st_ino == before


def test_a_broken_cache_is_made_anew(tmp_path: Path, packed: Path) -> None:
    first = open_bundle(packed, cache=tmp_path).root
    (first / "report.html").unlink()
    open_bundle(packed, cache=tmp_path).check()


def test_a_damaged_bundle_is_not_packed(tmp_path: Path) -> None:
    made = bundle(tmp_path)
    (made.root / "report.html").write_text("<p>REPORT</p>")
    with pytest.raises(BundleError, match=r"report\.html is damaged"):
        made.pack()
    assert not (tmp_path / "toy.vengine.pack").exists()


def test_a_stranger_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(BundleError, match="no bundle"):
        bundle(tmp_path).pack(tmp_path / "thesis.txt")
    assert (tmp_path / "thesis.txt").read_text() == "precious"


ATTACKS: list[tuple[str, Attack, str]] = [
    ("nothing", lambda m: m, ""),
    ("other order", lambda m: [m[0], *m[:0:-1]], ""),
    ("an extra file", lambda m: [*m, plain("extra.so")], "not in both"),
    ("a missing file", lambda m: m[:-1], "not in both"),
    ("a path that climbs", lambda m: [*m, plain("../../outside")], "not in both"),
    ("an absolute path", lambda m: [*m, plain("/outside")], "not in both"),
    ("a folder", lambda m: [*m, plain("variants/", b"", stat.S_IFDIR)], "not in both"),
    ("a name twice", lambda m: [*m, m[1]], "twice"),
    ("the manifest twice", lambda m: [*m, m[0]], "no plain manifest"),
    ("a link", _link, "not a plain stored file"),
    ("compressed files", _squeezed, "not a plain stored file"),
    ("a bomb", _bomb, "not a plain stored file"),
    ("other bytes", lambda m: [*m[:-1], (m[-1][0], b"x" * len(m[-1][1]))], "not what its digest says"),
    ("a longer file", lambda m: [*m[:-1], (m[-1][0], m[-1][1] + b"x")], "bytes, not what the manifest says"),
    ("a damaged manifest", lambda m: [(m[0][0], m[0][1].replace(b"Apache", b"Apathy")), *m[1:]], "content is not what"),
    ("a manifest that is no JSON", lambda m: [(m[0][0], b"{"), *m[1:]], "not JSON"),
    ("a manifest of another format", lambda m: [(m[0][0], b'{"format": 9}'), *m[1:]], "format 9 is unknown"),
]


@pytest.mark.parametrize(("attack", "says"), [row[1:] for row in ATTACKS], ids=[row[0] for row in ATTACKS])
def test_attacks(tmp_path: Path, packed: Path, attack: Attack, says: str) -> None:
    file = tmp_path / "in" / "toy.pack"
    file.parent.mkdir()
    file.write_bytes(archive_of(attack(members_of(packed))))
    if not says:
        open_bundle(file, cache=tmp_path / "cache").check()
        return
    with pytest.raises(BundleError, match=says):
        open_bundle(file, cache=tmp_path / "cache")
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [file]


def test_entries_that_overlap(tmp_path: Path, packed: Path) -> None:
    """Two names for the same bytes: how a small archive unpacks to a huge one."""
    data = bytearray(packed.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    start = int.from_bytes(data[end + 16 : end + 20], "little")
    second = data.find(b"PK\x01\x02", start + 4)
    data[second + 42 : second + 46] = data[start + 42 : start + 46]  # the second entry's offset is the first's
    file = tmp_path / "toy.pack"
    file.write_bytes(data)
    with pytest.raises(BundleError):
        open_bundle(file, cache=tmp_path / "cache")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path: Path, packed: Path, share: float) -> None:
    data = packed.read_bytes()
    file = tmp_path / "toy.pack"
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BundleError):
        open_bundle(file, cache=tmp_path / "cache")


@pytest.mark.parametrize("step", range(0, 100, 7))
def test_a_flipped_byte(tmp_path: Path, packed: Path, step: int) -> None:
    """Either it is refused, or it lay in a field that says nothing (a date) and all files are right."""
    data = bytearray(packed.read_bytes())
    data[len(data) * step // 100] ^= 0x10
    file = tmp_path / "toy.pack"
    file.write_bytes(data)
    try:
        opened = open_bundle(file, cache=tmp_path / "cache")
    except BundleError:
        return
    opened.check()
    assert opened.digest == open_bundle(packed, cache=tmp_path / "other").digest


@pytest.mark.parametrize("data", [b"", b"PK", b"hello" * 100, b"\x7fELF" + b"\0" * 100])
def test_a_file_that_is_no_bundle(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.pack"
    file.write_bytes(data)
    with pytest.raises(BundleError, match="no bundle"):
        open_bundle(file)


def test_a_full_disk_while_unpacking(tmp_path: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, needed: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pack.place, "require_space", full)
    with pytest.raises(LimitError, match="no space left"):
        open_bundle(packed, cache=tmp_path)
    assert os.listdir(tmp_path) == []
