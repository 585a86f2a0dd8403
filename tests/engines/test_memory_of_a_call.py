"""After warm-up a call allocates its answer and nothing else that grows with it, and nothing is kept between calls."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.graphs import model, node, random

from vengine.engines.base import Session, get_engine
from vengine.types import RuntimeProfile

pytestmark = pytest.mark.timed

WIDTH = 64
SMALL = 4096  # bytes for names, lists and views, whatever the size of the call
SIZES = ((1, 16), (8, 256), (3, 40))


@pytest.fixture(params=["onnxruntime", "openvino"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    nodes = [node("MatMul", ["x", "w"], "a"), node("Relu", ["a"], "y")]
    made = model(nodes, {"x": ("float32", ["batch", "length", WIDTH])}, ["y"], w=random([WIDTH, WIDTH]))
    onnx.save(made, tmp_path / "model.onnx")
    opened = get_engine(request.param).open(tmp_path / "model.onnx", "fp32", RuntimeProfile(threads=1))
    yield opened
    opened.close()


def calls() -> list[dict[str, Any]]:
    return [{"x": random([batch, length, WIDTH], seed)} for seed, (batch, length) in enumerate(SIZES)]


def beyond_the_answer(session: Session, feeds: dict[str, Any]) -> int:
    """The most bytes that were held during a call, less what its answer holds where that is counted at all."""
    tracemalloc.start()
    try:
        answer = session.run(feeds)
        held, most = tracemalloc.get_traced_memory()
        del answer
        return most - (held - tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def test_a_call_allocates_its_answer_alone(session: Session) -> None:
    for feeds in calls() * 2:
        session.run(feeds)
    assert [size for feeds in calls() if (size := beyond_the_answer(session, feeds)) > SMALL] == []


def test_the_counter_sees_a_copy(session: Session) -> None:
    """Feeds of another memory order have to be copied."""
    feeds = {"x": np.asfortranarray(random([8, 256, WIDTH]))}
    session.run(feeds)
    assert beyond_the_answer(session, feeds) > feeds["x"].nbytes / 2


def test_nothing_is_kept_between_calls(session: Session) -> None:
    for feeds in calls() * 2:
        session.run(feeds)
    many = calls() * 20
    tracemalloc.start()
    try:
        kept = []
        for _ in range(2):
            for feeds in many:
                session.run(feeds)
            kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    smallest = min(feeds["x"].nbytes for feeds in many)  # feeds and answers have one size here
    assert kept[1] - kept[0] < len(many) / 4 * smallest


def test_an_answer_is_the_callers_own(session: Session) -> None:
    """Sizes vary, and no later call writes into an earlier answer."""
    many = calls() * 4
    answers = [session.run(feeds)["y"] for feeds in many]
    wanted = [answer.copy() for answer in answers]
    for feeds in reversed(many):
        session.run(feeds)
    assert all(np.array_equal(one, two) for one, two in zip(answers, wanted, strict=True))
    for feeds, answer in zip(many, answers, strict=True):
        assert answer.shape == feeds["x"].shape
