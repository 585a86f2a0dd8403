"""Which reader a name goes to, which are refused, and the hub's cache without a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.sources.making import write_bert, write_onnx

from vengine.errors import SourceError, UsageError
from vengine.sources import hub, open_source

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.pt", "can run code when it is opened"),
        ("pytorch_model.bin", "can run code when it is opened"),
        ("model.pkl", "can run code when it is opened"),
        ("model.ckpt", "can run code when it is opened"),
        ("program.pt2", "PyTorch may unpickle"),
        ("model.safetensors", "weights alone are no model"),
        ("model.gguf", "GGUF language model, which is not supported yet"),
        ("model.docx", "no kind of model that is known"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(SourceError, match=says):
        open_source(tmp_path / name, cache=tmp_path / "c")


@pytest.mark.parametrize("where", ["nothing.onnx", "no/such/folder", ""])
def test_what_is_not_there(tmp_path: Path, where: str) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SourceError, match="there is no"):
        open_source(empty / where, cache=tmp_path / "c")


def test_a_folder_with_one_graph_is_that_graph(tmp_path: Path) -> None:
    write_onnx(tmp_path / "m.onnx")
    assert open_source(tmp_path, cache=tmp_path / "c").path == tmp_path / "m.onnx"


@pytest.fixture
def hub_cache(tmp_path: Path) -> Path:
    """A hub cache as huggingface_hub lays it out, with one model."""
    home = tmp_path / "hub" / "models--some--model"
    write_bert(home / "snapshots" / COMMIT)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT)
    return tmp_path / "hub"


@pytest.mark.parametrize("spec", ["some/model", "some/model@main", f"some/model@{COMMIT}"])
def test_a_hub_model_from_the_cache(hub_cache: Path, spec: str) -> None:
    found = hub.fetch(spec, offline=True, cache_dir=hub_cache)
    assert found.candidate.kind == "huggingface"
    assert found.location == f"hf:{spec}"
    assert found.notes == (f"hub revision {COMMIT}",)


def test_a_hub_model_that_is_not_there(hub_cache: Path) -> None:
    with pytest.raises(SourceError, match="not in the hub's cache"):
        hub.fetch("some/other", offline=True, cache_dir=hub_cache)


def test_a_hub_model_with_a_pickle_only(hub_cache: Path, tmp_path: Path) -> None:
    place = hub_cache / "models--some--model" / "snapshots" / COMMIT
    (place / "model.safetensors").rename(place / "pytorch_model.bin")
    found = hub.fetch("some/model", offline=True, cache_dir=hub_cache)
    with pytest.raises(SourceError, match="a pickle can run code"):
        open_source(found.candidate.path, cache=tmp_path / "c")


@pytest.mark.parametrize("spec", ["hf:", "hf:../x", "hf:a/b/c", "hf:a b", "hf:a/b@../../x"])
def test_malformed_hub_ids(tmp_path: Path, spec: str) -> None:
    with pytest.raises(UsageError, match="not a hub id"):
        open_source(spec, cache=tmp_path)


def test_a_broken_module_list_names_its_file(tmp_path: Path) -> None:
    model = write_bert(tmp_path / "m")
    (model / "modules.json").write_text("[1]")
    with pytest.raises(SourceError, match=r"modules\.json is not a list of modules"):
        open_source(model, cache=tmp_path / "c")
    shutil.rmtree(model)
