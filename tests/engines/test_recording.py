"""Each engine tells of a call in the same form: nodes with kinds, shapes and times that fit into the call."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.engines.making import ONE, WIDTH, fake, layer, layer_feeds, quantized_layer, text_feeds

from vengine.engines import openvino_trace
from vengine.engines.base import get_engine
from vengine.engines.onnxruntime_trace import read_trace
from vengine.engines.planned import PlannedSession
from vengine.engines.process import WorkerSession
from vengine.engines.recording import Node, Recording, end_to_end, joined, own_times
from vengine.errors import EngineError
from vengine.types import Plan, PlanEntry, RuntimeProfile

BATCH, LENGTH = 4, 32
FLOPS = 2 * BATCH * LENGTH * WIDTH * WIDTH
FP32_BYTES = 4 * (2 * BATCH * LENGTH * WIDTH + WIDTH * WIDTH)


def node(start: float, span: float, name: str = "n") -> Node:
    return Node(name=name, kind="Add", share="rest", start_ms=start, span_ms=span, ms=0.0)


def record(engine: str, path: Path, precision: str = "fp32", calls: int = 3) -> list[Recording]:
    session = get_engine(engine).open(path, precision, ONE)
    feeds = layer_feeds(BATCH, LENGTH)
    before = session.run(feeds)["z"]
    recordings = session.record([feeds] * calls)
    np.testing.assert_array_equal(session.run(feeds)["z"], before)  # watching changes nothing
    session.close()
    return recordings


def test_a_node_that_holds_others_keeps_its_own_time() -> None:
    nodes = own_times([node(6, 2, "c"), node(0, 10, "a"), node(1, 4, "b"), node(2, 1, "b1"), node(12, 3, "d")])
    assert [(n.name, n.ms) for n in nodes] == [("a", 4), ("b", 3), ("b1", 1), ("c", 2), ("d", 3)]
    assert sum(n.ms for n in nodes) == 13


def test_durations_are_laid_end_to_end() -> None:
    given = [Node(name=str(ms), kind="k", share="rest", start_ms=0, span_ms=0, ms=ms) for ms in (1.0, 2.5, 0.5)]
    laid = end_to_end(given)
    assert [(n.start_ms, n.span_ms) for n in laid] == [(0, 1), (1, 2.5), (3.5, 0.5)]


def test_chunks_are_joined_one_after_the_other() -> None:
    one = Recording(wall_ms=5, nodes=(node(1, 2),), timeline=True)
    both = joined([one, Recording(wall_ms=7, nodes=(node(2, 3),), timeline=False)])
    assert (both.wall_ms, both.timeline) == (12, False)
    assert [n.start_ms for n in both.nodes] == [1, 7]


ENGINES = [
    ("onnxruntime", "plain", "fp32", "MatMul", "fp32"),
    ("onnxruntime", "plain", "reference", "MatMul", "fp32"),
    ("onnxruntime", "int8", "int8-static", "QLinearMatMul", "int8"),
    ("onnxruntime", "dynamic", "int8-dynamic", "DynamicQuantizeMatMul", "int8"),
    ("openvino", "plain", "fp32", "FullyConnected", "fp32"),
    ("openvino", "int8", "int8-static", "FullyConnected", "int8"),
]


@pytest.mark.parametrize(("engine", "file", "precision", "kind", "ran"), ENGINES)
def test_the_product_of_a_layer_is_found_with_its_sizes(
    tmp_path: Path, engine: str, file: str, precision: str, kind: str, ran: str
) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    path = layer(tmp_path / "plain.onnx")
    if file == "int8":
        path = quantized_layer(tmp_path / "int8.onnx", path)
    if file == "dynamic":
        path = _dynamic(path, tmp_path / "dynamic.onnx")
    recordings = record(engine, path, precision)
    assert len(recordings) == 3
    for told in recordings:
        (product,) = [n for n in told.nodes if n.share == "products"]
        assert (product.kind, product.precision) == (kind, ran)
        assert product.flops == FLOPS
        assert product.output == (BATCH, LENGTH, WIDTH)
        assert product.moved_bytes is not None
        assert product.moved_bytes == FP32_BYTES if ran == "fp32" else product.moved_bytes < FP32_BYTES
        assert all(n.flops is None for n in told.nodes if n is not product)


def _dynamic(plain: Path, path: Path) -> Path:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(str(plain), str(path))
    return path


def test_openvino_means_become_the_mean_of_the_watched_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its counters start when the model is compiled: what warming up took has to be taken off."""

    def item(name: str, mean_us: int, status: str = "Status.EXECUTED") -> Any:
        took = timedelta(microseconds=mean_us)
        return SimpleNamespace(node_name=name, node_type="Add", exec_type="jit_f32", status=status, real_time=took)

    monkeypatch.setattr(openvino_trace, "facts_of", lambda _: {})
    monkeypatch.setattr(openvino_trace, "origins_of", lambda *_: {})
    before = openvino_trace.Counters(calls=4, items=[item("a", 100), item("b", 50)])
    after = openvino_trace.Counters(
        calls=8, items=[item("a", 60), item("b", 50), item("c", 9, "Status.OPTIMIZED_OUT"), item("d", 5)]
    )
    told = openvino_trace.read_counters(None, None, (before, after), [1.0, 2.0, 3.0, 2.0], [((2, 3),)] * 4)
    assert [r.wall_ms for r in told] == [2.0] * 4
    assert [(n.name, pytest.approx(n.ms)) for n in told[0].nodes] == [("a", 0.02), ("b", 0.05), ("d", 0.01)]


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_nodes_fit_into_the_call(tmp_path: Path, engine: str) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    for told in record(engine, layer(tmp_path / "m.onnx"), calls=5):
        assert told.timeline == (engine == "onnxruntime")
        assert all(n.ms >= 0 and n.start_ms >= 0 and n.ms <= n.span_ms for n in told.nodes)
        assert max(n.start_ms + n.span_ms for n in told.nodes) <= told.wall_ms
        assert sum(n.ms for n in told.nodes) <= told.wall_ms


def test_a_graph_inside_a_graph_is_not_counted_twice(tmp_path: Path) -> None:
    """If takes the time of its branch in the runtime's profile; what it did itself is little."""
    recordings = record("onnxruntime", _branch(tmp_path / "m.onnx"), "reference")
    for told in recordings:
        kinds = {n.kind: n for n in told.nodes}
        assert kinds["If"].span_ms >= kinds["MatMul"].span_ms
        assert kinds["If"].ms <= kinds["If"].span_ms - kinds["MatMul"].span_ms
        assert sum(n.ms for n in told.nodes) <= told.wall_ms


def _branch(path: Path) -> Path:
    """The layer's product inside an If that is always taken."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper
    from tests.engines.making import weights

    def info(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "length", WIDTH])

    then = helper.make_graph([helper.make_node("MatMul", ["x", "W"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([helper.make_node("Identity", ["x"], ["e"])], "else", [], [info("e")])
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "low"], ["yes"]),
        helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    constants = [numpy_helper.from_array(weights(), "W"), numpy_helper.from_array(np.float32(-1e9), "low")]
    graph = helper.make_graph(nodes, "branch", [info("x")], [info("z")], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_torch_names_the_module_of_each_operator(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from tests.sources.making import write_bert

    session = get_engine("torch").open(write_bert(tmp_path / "bert"), "fp32", ONE)
    names = {spec.name for spec in session.inputs}
    feeds = {name: np.ones((2, 6), dtype=np.int64) for name in names}
    before = session.run(feeds)
    told = session.record([feeds] * 2)[-1]
    queries = [n for n in told.nodes if n.kind == "aten::addmm" and "layer.0.attention.self.query: addmm" in n.name]
    (query,) = queries
    assert query.output is not None
    assert query.output[0] == 12
    assert query.flops == 2 * 12 * query.output[1] ** 2
    assert sum(n.ms for n in told.nodes) <= told.wall_ms
    assert all(n.start_ms >= 0 and n.ms >= 0 for n in told.nodes)
    assert max(n.start_ms + n.span_ms for n in told.nodes) <= told.wall_ms
    for name, after in session.run(feeds).items():
        np.testing.assert_array_equal(after, before[name])
    parts = list(session._module.modules())
    assert len(parts) > 10
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in parts)


def test_a_plan_tells_of_the_variant_that_answers_and_of_all_its_chunks(tmp_path: Path) -> None:
    opened = {name: get_engine("fake").open(fake(tmp_path, nodes=_nodes(name)), "fp32", ONE) for name in ("a", "b")}
    plan = Plan(entries=(PlanEntry(variant="a", tokens_min=1, tokens_max=16), PlanEntry(variant="b", tokens_min=17)))
    session = PlannedSession(plan, opened, {"b": RuntimeProfile(threads=1, chunk_tokens=16)})
    small, large = session.record([text_feeds(2, 8), text_feeds(6, 8)])
    assert [n.name for n in small.nodes] == ["a"]
    assert [n.name for n in large.nodes] == ["b"] * 3
    assert [n.start_ms for n in large.nodes] == sorted(n.start_ms for n in large.nodes)


def _nodes(name: str) -> list[dict[str, Any]]:
    return [{"name": name, "kind": "MatMul", "share": "products", "ms": 0.001}]


def test_a_worker_tells_the_same(tmp_path: Path) -> None:
    nodes = [{"name": "a", "kind": "Add", "share": "rest", "ms": 0.25, "output": [2, 3], "flops": 12}]
    with WorkerSession("fake", fake(tmp_path, nodes=nodes, delay_ms=1), "fp32", ONE) as worker:
        recordings = worker.record([text_feeds()], repeats=3)
    assert len(recordings) == 3
    wanted = Node(name="a", kind="Add", share="rest", start_ms=0, span_ms=0.25, ms=0.25, output=(2, 3), flops=12)
    assert all(told.nodes == (wanted,) and told.wall_ms >= 1 for told in recordings)


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"cat": "Session", "name": "model_run"}]'])
def test_a_profile_that_cannot_be_read_is_an_engines_fault(tmp_path: Path, text: str) -> None:
    (tmp_path / "ort.json").write_text(text)
    with pytest.raises(EngineError, match="profile can't be read"):
        read_trace(tmp_path / "ort.json", [1.0])


def test_warming_up_is_left_out_of_a_profile(tmp_path: Path) -> None:
    def event(category: str, name: str, start: int, took: int) -> dict[str, Any]:
        args = {"op_name": "Relu"} if category == "Node" else {}
        return {"cat": category, "name": name, "ts": start, "dur": took, "args": args}

    events = [
        event("Session", "model_run", 0, 90),
        event("Node", "warm_kernel_time", 10, 50),
        event("Session", "model_run", 100, 40),
        event("Node", "counted_kernel_time", 110, 20),
    ]
    (tmp_path / "ort.json").write_text(json.dumps(events))
    (told,) = read_trace(tmp_path / "ort.json", [0.05])
    assert [(n.name, n.start_ms, n.ms) for n in told.nodes] == [("counted", 0.01, 0.02)]
