"""TensorBoard's own reader finds every watched call, and the tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.engines.making import layer
from tests.report.test_node_view import OTHERS, PRODUCT, result

from vengine.api.profile import profile
from vengine.engines.recording import Node, Recording, end_to_end
from vengine.errors import EngineMissing, UsageError
from vengine.report.event_files import scalars, texts, write_events


def recordings(*ms: float) -> list[Recording]:
    name = result(PRODUCT, *OTHERS)["nodes"][0]["name"]
    return [
        Recording(
            wall_ms=2 * one,
            nodes=end_to_end([Node(name=name, kind="MatMul", share="products", ms=one, start_ms=0.0, span_ms=0.0)]),
            timeline=False,
        )
        for one in ms
    ]


def test_each_call_is_a_point() -> None:
    found = scalars(result(PRODUCT, *OTHERS), recordings(3.0, 5.0))
    assert [row["call/ms"] for row in found] == [6.0, 10.0]
    assert [row["share/matrix products ms"] for row in found] == [3.0, 5.0]
    assert all(tag.count("/") == 1 for tag in found[0])


def test_hostile_names_bring_no_markup() -> None:
    hostile = result(replace(PRODUCT, name="<img src=x>|[a](b)\x1b[31m"), *OTHERS)
    words = texts(hostile)["nodes"]
    assert "\\<img" in words
    assert "\x1b" not in words


def test_tensorboards_reader_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for _ in range(2):  # a second run adds a file
        file = write_events(tmp_path / "runs", result(PRODUCT, *OTHERS), recordings(3.0, 5.0))
    assert len(list((tmp_path / "runs").iterdir())) == 2
    read = EventAccumulator(str(file)).Reload()
    assert [(e.step, e.value) for e in read.Scalars("call/ms")] == [(0, 6.0), (1, 10.0)]
    assert read.SummaryMetadata("nodes").plugin_data.plugin_name == "text"
    assert b"| node |" in read.Tensors("nodes")[0].tensor_proto.string_val[0]


def test_a_profile_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from vengine.engines.ceilings import Ceilings
    from vengine.engines.process import WorkerSession

    monkeypatch.setattr(WorkerSession, "ceilings", lambda _, threads: Ceilings(threads=threads))
    found: dict[str, Any] = profile(
        layer(tmp_path / "m.onnx"), (4, 32), threads=1, tensorboard=tmp_path / "runs", cache=tmp_path / "cache"
    )
    assert found["tensorboard"] == str(tmp_path / "runs")
    assert len(EventAccumulator(found["tensorboard"]).Reload().Scalars("call/ms")) >= 3


def test_places_and_packages_that_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vengine.api.places import events_place

    monkeypatch.setattr("vengine.report.event_files.util.find_spec", lambda _: None)
    with pytest.raises(EngineMissing, match="tensorboard is not installed") as caught:
        events_place(tmp_path)
    assert caught.value.next_step == "pip install 'vengine[tensorboard]'"
    monkeypatch.setattr("vengine.report.event_files.util.find_spec", lambda name: name)
    assert events_place(tmp_path / "new") == tmp_path / "new"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="a file"):
        events_place(tmp_path / "file")
    with pytest.raises(UsageError, match="doesn't exist"):
        events_place(tmp_path / "a" / "b")
