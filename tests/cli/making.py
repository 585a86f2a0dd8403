"""Models and data of every kind, whole and damaged, and what a command on them must have said."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tests.sources.making import SPECIAL, WORDS, write_bert, write_onnx, write_tokenizer

LINES = [
    f"the {a} {b} {c} quickly" for a in ("red", "blue", "fast") for b in ("car", "ship") for c in ("turns", "stops")
]


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


def clear(done: Done, message: str, code: int = 2) -> None:
    """One message with what is wrong and the next step; no traceback."""
    assert done.code == code, done.err
    assert message in done.err
    assert done.err.count("vengine: ") == 1
    assert done.err.count("  next step: ") == 1
    assert "Traceback" not in done.err + done.out


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def write_everything(root: Path) -> None:
    """Every kind of model, whole and damaged, and every kind of data."""
    write_bert(root / "bert")
    write_bert(root / "topics", "AutoModelForSequenceClassification", num_labels=3)
    write_onnx(root / "good.onnx")
    (root / "outside").mkdir()
    write_onnx(root / "outside" / "m.onnx", external="m.onnx.data")
    _damaged_folders(root)
    _damaged_files(root)
    _graphs(root)
    _text_graph(root / "text")
    _data(root)


def _damaged_folders(root: Path) -> None:
    changes: dict[str, Callable[[Path], object]] = {
        "cut-weights": lambda d: os.truncate(d / "model.safetensors", 5000),
        "empty-weights": lambda d: (d / "model.safetensors").write_bytes(b""),
        "no-weights": lambda d: (d / "model.safetensors").unlink(),
        "pickled": lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
        "no-tokenizer": lambda d: (d / "tokenizer.json").unlink(),
        "cut-tokenizer": lambda d: os.truncate(d / "tokenizer.json", 300),
        "other-tokenizer": lambda d: (d / "tokenizer.json").write_text('{"a": 1}'),
        "no-config": lambda d: (d / "config.json").unlink(),
        "cut-config": lambda d: os.truncate(d / "config.json", 100),
        "list-config": lambda d: (d / "config.json").write_text("[1]"),
        "latin-config": lambda d: (d / "config.json").write_bytes(b'{"a": "\xe9"}'),
        "writer": lambda d: _configure(d, architectures=["BertLMHeadModel"]),
        "own-code": lambda d: _configure(d, model_type="theirs", auto_map={"AutoModel": "x.Y"}),
    }
    for name, change in changes.items():
        shutil.copytree(root / "bert", root / name)
        change(root / name)
    (root / "nothing").mkdir()
    (root / "mine").mkdir()
    (root / "mine" / "letter.txt").write_text("precious")
    shutil.copytree(root / "outside", root / "no-data")
    (root / "no-data" / "m.onnx.data").unlink()
    shutil.copytree(root / "outside", root / "cut-data")
    os.truncate(root / "cut-data" / "m.onnx.data", 10)


def _configure(folder: Path, **more: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **more}))


def _damaged_files(root: Path) -> None:
    whole = (root / "good.onnx").read_bytes()
    for name, data in {
        "cut.onnx": whole[: len(whole) // 2],
        "empty.onnx": b"",
        "words.onnx": b"version https://git-lfs.github.com/spec/v1\n",
        "alone.xml": b"<net/>",
        "traced.pt2": b"PK\x03\x04",
        "model.gguf": b"GGUF",
        **{f"m.{suffix}": pickle.dumps({}) for suffix in ("bin", "pt", "pkl", "ckpt", "joblib")},
    }.items():
        (root / name).write_bytes(data)


def _text_graph(folder: Path) -> None:
    """A model of texts that looks up a row a token, of as few as its tokenizer knows."""
    from onnx import TensorProto, helper, numpy_helper

    folder.mkdir()
    write_tokenizer(folder)
    rows = numpy_helper.from_array(np.ones((len(SPECIAL) + len(WORDS), 4), np.float32), "rows")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["rows", "input_ids"], ["last_hidden_state"])],
        "g",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", 4])],
        [rows],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "lookup.onnx").write_bytes(model.SerializeToString())


def _graphs(root: Path) -> None:
    from onnx import TensorProto, helper

    def write(name: str, op: str = "Relu", kind: int = TensorProto.FLOAT, opset: int = 17, domain: str = "") -> None:
        x, y = (helper.make_tensor_value_info(n, kind, ["N", 4]) for n in "xy")
        node = helper.make_node(op, ["x"], ["y"], domain=domain)
        sets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
        model = helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=sets, ir_version=8)
        (root / name).write_bytes(model.SerializeToString())

    write("relu.onnx")
    write("unknown.onnx", op="Frobnicate")
    write("foreign.onnx", op="Frobnicate", domain="com.acme")
    write("old.onnx", opset=9)
    write("texts.onnx", op="Identity", kind=TensorProto.STRING)
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph(
        [helper.make_node("Constant", [], ["y"], value=value)],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (root / "constant.onnx").write_bytes(model.SerializeToString())


def _data(root: Path) -> None:
    texts: dict[str, str | bytes] = {
        "ok.txt": "\n".join(LINES),
        "empty.txt": "",
        "one.txt": "the car stops\n",
        "long.txt": "the car\n" + "a " * 50_000 + "b\n",
        "latin.txt": b"the car\ncaf\xe9\n",
        "utf16.txt": "the car\nthe ship\n".encode("utf-16"),
        "nul.txt": b"the car\n\x00\x00\n",
        "cut.jsonl": '{"text": "a"}\n{"text":\n',
        "other.jsonl": '{"words": "a"}\n{"words": "b"}\n',
        "foreign.csv": "text,label\n" + "".join(f"{t},{('red', 'blue')[i % 2]}\n" for i, t in enumerate(LINES)),
        "topics.csv": "text,label\n" + "".join(f"{t},LABEL_{i % 3}\n" for i, t in enumerate(LINES)),
        "same.csv": "text,label\n" + "".join(f"{t},LABEL_0\n" for t in LINES),
        "words.lengths": "long\n",
        "huge.lengths": "1000000000\n",
        "below.lengths": "-4\n",
        "wide.lengths": "5000\n",
    }
    for name, text in texts.items():
        (root / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    rows = np.ones((8, 4), np.float32)
    np.savez(root / "rows.npz", x=rows)
    np.savez(root / "wide.npz", x=np.ones((8, 5), np.float32))
    np.savez(root / "other.npz", q=rows)
    np.savez(root / "nan.npz", x=rows * np.nan)
    np.savez(root / "words.npz", x=np.array([["a"] * 4] * 8))
    np.savez(root / "objects.npz", x=np.array([{1: 2}] * 8, dtype=object))
    (root / "cut.npz").write_bytes((root / "rows.npz").read_bytes()[:100])
