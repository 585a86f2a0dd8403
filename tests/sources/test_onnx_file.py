"""ONNX and OpenVINO files: what is understood, what a digest names, what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sources.making import write_onnx, write_tokenizer

from vengine.errors import SourceError
from vengine.sources import open_source


@pytest.mark.parametrize(("opset", "external"), [(11, None), (17, None), (17, "w.bin"), (21, "w.bin")])
def test_a_graph_of_any_opset_from_11(tmp_path: Path, opset: int, external: str | None) -> None:
    source = open_source(write_onnx(tmp_path / "m.onnx", opset=opset, external=external), cache=tmp_path)
    assert (source.kind, source.task, source.name, source.parameters) == ("onnx", "tensor", "m", 15)
    assert [(s.name, s.dtype, s.shape) for s in source.inputs] == [("x", "float32", ("batch", 4))]
    assert [(s.name, s.dtype, s.shape) for s in source.outputs] == [("y", "float32", ("batch", 3))]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"external": "w.bin"}, True),
        ({}, True),
        ({"node": "Tanh"}, False),
        ({"opset": 18}, False),
    ],
)
def test_the_digest_names_content_and_not_where_it_lies(tmp_path: Path, other: dict[str, Any], same: bool) -> None:
    (tmp_path / "other").mkdir()
    before = open_source(write_onnx(tmp_path / "a.onnx"), cache=tmp_path)
    after = open_source(write_onnx(tmp_path / "other" / "b.onnx", **other), cache=tmp_path)
    assert (before.digest == after.digest) is same


@pytest.mark.parametrize(
    ("output", "shape", "task"),
    [
        ("logits", ["n", 3], "classification"),
        ("logits", ["n", 1], "scoring"),
        ("logits", ["n", "t", 3], "token-classification"),
        ("last_hidden_state", ["n", "t", 3], "features"),
        ("sentence_embedding", ["n", 3], "embedding"),
    ],
)
def test_texts_are_known_by_input_ids_and_a_tokenizer_beside(
    tmp_path: Path, output: str, shape: list[Any], task: str
) -> None:
    write_text_graph(tmp_path / "m.onnx", output, shape)
    assert open_source(tmp_path / "m.onnx", cache=tmp_path / "c").task == "tensor"
    write_tokenizer(tmp_path)
    source = open_source(tmp_path / "m.onnx", cache=tmp_path / "c")
    assert source.task == task
    assert source.inputs[0].shape == ("batch", "length")
    assert source.outputs[0].shape == tuple({"n": "batch", "t": "length"}.get(d, d) for d in shape)
    assert source.tokenizer == tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("truncated", "not a whole ONNX file|no ONNX graph|checker refuses"),
        ("empty", "holds no ONNX graph"),
        ("text", "not a whole ONNX file|no ONNX graph"),
        ("opset 10", "opset 10; the oldest that is supported is 11"),
        ("unknown operator", "unknown operator Frobnicate in opset 17"),
        ("unknown domain", "unknown operator my.own::Relu"),
        ("external data missing", "the file with the weights is missing: w.bin"),
        ("external data truncated", "w.bin is truncated"),
        ("external data outside", "unsafe external data: '../w.bin'"),
        ("external data absolute", "unsafe external data"),
        ("a negative place", "is no place in a file of weights"),
    ],
)
def test_what_is_refused(tmp_path: Path, damage: str, says: str) -> None:
    path = tmp_path / "inner" / "m.onnx"
    path.parent.mkdir()
    _DAMAGES[damage](path)
    with pytest.raises(SourceError, match=says):
        open_source(path, cache=tmp_path)


def test_a_task_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no tokenizer\.json beside"):
        open_source(write_onnx(tmp_path / "m.onnx"), cache=tmp_path, task="embedding")


@pytest.fixture(scope="module")
def ir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openvino = pytest.importorskip("openvino", reason="an OpenVINO IR is made and read by openvino")
    folder = tmp_path_factory.mktemp("ir")
    model = openvino.convert_model(str(write_onnx(folder / "m.onnx")))
    openvino.save_model(model, folder / "m.xml", compress_to_fp16=False)
    return folder / "m.xml"


def test_an_openvino_ir(ir: Path, tmp_path: Path) -> None:
    source = open_source(ir, cache=tmp_path)
    assert (source.kind, source.task, source.name) == ("openvino", "tensor", "m")
    assert [(s.name, s.dtype, s.shape) for s in source.inputs] == [("x", "float32", ("batch", 4))]
    assert [(s.name, s.dtype, s.shape) for s in source.outputs] == [("y", "float32", ("batch", 3))]
    assert source.parameters == 15


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [("m.bin", None, "the weights are missing: m.bin"), ("m.xml", 200, "can't read the model")],
)
def test_a_damaged_ir_is_refused(ir: Path, tmp_path: Path, name: str, size: int | None, says: str) -> None:
    folder = Path(shutil.copytree(ir.parent, tmp_path / "ir"))
    (folder / name).write_bytes((folder / name).read_bytes()[:size]) if size else (folder / name).unlink()
    with pytest.raises(SourceError, match=says):
        open_source(folder / "m.xml", cache=tmp_path)


def write_text_graph(path: Path, output: str, shape: list[Any]) -> None:
    """A table look-up of input_ids, reduced to the wanted shape."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    width = shape[-1]
    table = np.random.default_rng(0).standard_normal((20, width)).astype(np.float32)
    last = "rows" if len(shape) == 2 else output
    nodes = [helper.make_node("Gather", ["table", "input_ids"], [last])]
    if len(shape) == 2:
        nodes.append(helper.make_node("ReduceMean", ["rows", "axis"], [output], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "t"])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1]), "axis")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save_model(model, str(path))


def _moved(path: Path, **entry: str) -> None:
    """Point the first tensor's external data elsewhere."""
    import onnx

    write_onnx(path, external="w.bin")
    model = onnx.load(str(path), load_external_data=False)
    for item in model.graph.initializer[0].external_data:
        item.value = entry.get(item.key, item.value)
    path.write_bytes(model.SerializeToString())


def _own_domain(path: Path) -> None:
    import onnx

    model = onnx.load(str(write_onnx(path)))
    model.graph.node[2].domain = "my.own"
    model.opset_import.append(onnx.helper.make_opsetid("my.own", 1))
    path.write_bytes(model.SerializeToString())


def _shorter(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


_DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda p: _shorter(write_onnx(p), 150),
    "empty": lambda p: p.write_bytes(b""),
    "text": lambda p: p.write_text("version https://example.invalid/lfs"),
    "opset 10": lambda p: write_onnx(p, opset=10),
    "unknown operator": lambda p: write_onnx(p, node="Frobnicate"),
    "unknown domain": _own_domain,
    "external data missing": lambda p: (write_onnx(p, external="w.bin"), (p.parent / "w.bin").unlink()),
    "external data truncated": lambda p: (write_onnx(p, external="w.bin"), _shorter(p.parent / "w.bin", 20)),
    "external data outside": lambda p: _moved(p, location="../w.bin"),
    "external data absolute": lambda p: _moved(p, location="/etc/hostname"),
    "a negative place": lambda p: _moved(p, offset="-40"),
}
