"""The toy is honest unless told otherwise, and each fault is seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.making import ONE, fake, text_feeds

from vengine.engines.base import Session, get_engine
from vengine.errors import EngineError


def toy(folder: Path, precision: str = "fp32", **behaviour: Any) -> Session:
    return get_engine("fake").open(fake(folder, **behaviour), precision, ONE)


def padded(feeds: dict[str, Any], length: int) -> dict[str, Any]:
    extra = ((0, 0), (0, length - feeds["input_ids"].shape[1]))
    return {name: np.pad(array, extra) for name, array in feeds.items()}


def alone(feeds: dict[str, Any]) -> dict[str, Any]:
    return {name: array[:1] for name, array in feeds.items()}


@pytest.mark.parametrize(
    ("behaviour", "same_padded", "same_alone"),
    [({}, True, True), ({"noise": 0.1}, False, True), ({"neighbours": 0.1}, True, False), ({"scale": 2}, True, True)],
)
def test_padding_and_neighbours(tmp_path: Path, behaviour: dict[str, Any], same_padded: bool, same_alone: bool) -> None:
    session, feeds = toy(tmp_path, **behaviour), text_feeds(3, 6)
    answer = session.run(feeds)["sentence_embedding"]
    assert np.allclose(session.run(padded(feeds, 12))["sentence_embedding"], answer, atol=1e-6) is same_padded
    assert np.allclose(session.run(alone(feeds))["sentence_embedding"], answer[:1], atol=1e-6) is same_alone


def test_company_faults(tmp_path: Path) -> None:
    feeds = text_feeds(3, 6)
    honest = toy(tmp_path).run(feeds)["sentence_embedding"]
    placed = toy(tmp_path, places=0.1).run(feeds)["sentence_embedding"]
    np.testing.assert_allclose(placed - honest, 0.1 * np.arange(3)[:, None] * np.ones(8), atol=1e-6)
    session = toy(tmp_path, drift_after=2)
    moved = [np.abs(session.run(feeds)["sentence_embedding"] - honest).max() for _ in range(4)]
    assert moved == pytest.approx([0, 0, 1, 1], abs=1e-6)
    masked = {name: array.copy() for name, array in feeds.items()}
    masked["attention_mask"][1] = 0
    assert np.isnan(toy(tmp_path, poisoned=True).run(masked)["sentence_embedding"]).all()
    masked["attention_mask"][1] = feeds["attention_mask"][1]
    masked["attention_mask"][:, 0] = 0
    assert not np.allclose(
        toy(tmp_path, left=1).run(masked)["sentence_embedding"], toy(tmp_path).run(masked)["sentence_embedding"]
    )


def test_wrong_answers_on_request(tmp_path: Path) -> None:
    honest = toy(tmp_path).run(text_feeds())["sentence_embedding"]
    np.testing.assert_allclose(toy(tmp_path, scale=2).run(text_feeds())["sentence_embedding"], 2 * honest, rtol=1e-6)
    session = toy(tmp_path, nan_on=2)
    assert np.isfinite(session.run(text_feeds())["sentence_embedding"]).all()
    assert np.isnan(session.run(text_feeds())["sentence_embedding"][0]).all()
    assert np.isfinite(session.run(text_feeds())["sentence_embedding"]).all()


def test_one_file_serves_several_precisions(tmp_path: Path) -> None:
    behaviour = {"precisions": {"int8-static": {"scale": 5, "precision_run": "fp32"}}}
    plain, lossy = toy(tmp_path, **behaviour), toy(tmp_path, "int8-static", **behaviour)
    assert (plain.precision_run, lossy.precision_run) == ("fp32", "fp32")
    first, second = (session.run(text_feeds())["sentence_embedding"] for session in (plain, lossy))
    np.testing.assert_allclose(second, 5 * first, rtol=1e-6)


def test_tensors_and_token_outputs(tmp_path: Path) -> None:
    session = toy(
        tmp_path,
        inputs=[{"name": "image", "dtype": "float32", "shape": ["batch", 3, 4, 4]}],
        outputs=[{"name": "logits", "dtype": "float32", "shape": ["batch", 5]}],
    )
    assert session.run({"image": np.ones((2, 3, 4, 4), dtype=np.float32)})["logits"].shape == (2, 5)
    tokens = toy(tmp_path, outputs=[{"name": "logits", "dtype": "float32", "shape": ["batch", "length", 5]}])
    assert tokens.run(text_feeds(2, 7))["logits"].shape == (2, 7, 5)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="at open"):
        toy(tmp_path, raise_on="open")
    session = toy(tmp_path, raise_on=2)
    session.run(text_feeds())
    with pytest.raises(EngineError, match="at 2"):
        session.run(text_feeds())
