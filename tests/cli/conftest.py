"""Fixtures of the command line's tests: a folder of everything, a bundle, and the command line itself."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.cli.making import Done, Run, write_everything

from vengine.cli.main import main


@pytest.fixture
def vengine(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: Path) -> Run:
    """Run the command line here, in the folder of the models."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("VENGINE_CACHE", str(place.parent / "cache"))

    def run(*words: str) -> Done:
        before = signal.getsignal(signal.SIGTERM)
        try:
            with pytest.raises(SystemExit) as ended:
                main(words)
        finally:
            signal.signal(signal.SIGTERM, before)
        said = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Done(code=ended.value.code, out=said.out, err=said.err)

    return run


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of model, whole and damaged, and every kind of data."""
    root = tmp_path_factory.mktemp("models")
    write_everything(root)
    return root


@pytest.fixture
def place(models: Path, tmp_path: Path) -> Path:
    """A folder of one's own that shows the models."""
    here = tmp_path / "here"
    here.mkdir()
    for item in models.iterdir():
        (here / item.name).symlink_to(item)
    return here


@pytest.fixture(scope="session")
def built(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of the tensor model, which kept the original: there was hardly any time."""
    from vengine.api.optimize import optimize
    from vengine.types import Settings

    folder = tmp_path_factory.mktemp("built")
    settings = Settings(time_seconds=0.001, engines=("onnxruntime",))
    optimize(models / "relu.onnx", settings=settings, out=folder / "r.vengine", cache=folder / "cache")
    return folder / "r.vengine"
