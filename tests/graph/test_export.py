"""Every architecture goes the same way: exported with free sizes, checked beside the original, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from tests.sources.making import SMALL, config_of, write_bert, write_model, write_onnx, write_sentence_layout

from vengine.errors import ExportError
from vengine.graph import export as exporting
from vengine.graph.export import export
from vengine.graph.export_checks import Case, cases_for, compare
from vengine.sources import example_feeds, from_module, open_source
from vengine.sources.huggingface import load_module
from vengine.types import Source, TensorSpec

RELATIVE = {
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 16,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "max_relative_positions": -1,
}
MARKS = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
ONE = {"num_hidden_layers": 1}
DISTIL = {"dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 48}
IMAGE = {**ONE, "image_size": 16, "patch_size": 8, "num_labels": 3}
ALL_CASES = [
    "batch 1 × length 1",
    "batch 1 × length 16",
    "batch 3 × length 40",
    "batch 2 × length 300",
    "left padding",
    "right padding",
    "a fully masked row",
]


@pytest.mark.parametrize(
    ("kind", "more", "factory", "opset"),
    [
        ("bert", {}, "AutoModelForSequenceClassification", 23),
        ("distilbert", DISTIL, "AutoModelForTokenClassification", 23),
        ("roberta", {**ONE, "type_vocab_size": 1}, "AutoModel", 23),
        ("xlm-roberta", {**ONE, "type_vocab_size": 1, "num_labels": 1}, "AutoModelForSequenceClassification", 23),
        ("electra", {**ONE, "embedding_size": 16}, "AutoModel", 23),
        ("mpnet", {**ONE, "pad_token_id": 1}, "AutoModel", 23),
        ("deberta-v2", {**ONE, **RELATIVE}, "AutoModel", 23),
        # The runtime refuses the RotaryEmbedding operator of opset 23 at batches above 1: the next opset is taken.
        ("modernbert", {**MARKS, "local_attention": 16, "global_attn_every_n_layers": 2}, "AutoModel", 20),
    ],
)
def test_text_models(tmp_path: Path, kind: str, more: dict[str, Any], factory: str, opset: int) -> None:
    source = open_source(write_model(tmp_path / "m", config_of(kind, **more), factory), cache=tmp_path / "c")
    exported = export(source, tmp_path / "x")
    assert [check.what for check in exported.checks] == ALL_CASES
    assert max(check.max_abs_error for check in exported.checks) < 1e-5
    assert exported.opset == opset
    assert bool(exported.notes) is (opset != 23)
    _assert_agrees(source, exported.path, load_module(source.path), batch=5, length=23)


def test_an_image_model(tmp_path: Path) -> None:
    config = config_of("vit", **IMAGE)
    source = open_source(write_model(tmp_path / "m", config, "AutoModelForImageClassification"), cache=tmp_path / "c")
    assert source.inputs == (TensorSpec(name="pixel_values", dtype="float32", shape=("batch", 3, 16, 16)),)
    assert (source.task, len(source.labels)) == ("tensor", 3)
    exported = export(source, tmp_path / "x")
    assert [check.what for check in exported.checks] == ["batch 1", "batch 3", "batch 2"]
    _assert_agrees(source, exported.path, load_module(source.path), batch=5, length=1)


def test_pooling_and_normalisation_are_in_the_graph(tmp_path: Path) -> None:
    directory = write_bert(tmp_path / "m", **ONE)
    write_sentence_layout(directory, {"pooling_mode": ["mean", "max", "lasttoken"]}, "Normalize")
    source = open_source(directory, cache=tmp_path / "c")
    exported = export(source, tmp_path / "x")
    assert [spec.name for spec in exported.outputs] == ["sentence_embedding"]
    session = onnxruntime.InferenceSession(exported.path)
    (vectors,) = session.run(None, example_feeds(source, 3, 9, padding="right"))
    assert vectors.shape == (3, 96)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_module_of_the_users(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 3)

        def forward(self, x: Any, y: Any) -> Any:
            return self.layer(x) + y, {"sum": (x + 1).sum(-1)}

    module = Two()
    source = from_module(module, {"x": torch.ones(2, 4), "y": torch.ones(2, 3)}, directory=tmp_path)
    exported = export(source, tmp_path / "x")
    assert [spec.name for spec in exported.outputs] == ["output_0", "output_1_sum"]
    _assert_agrees(source, exported.path, lambda x, y: dict(zip("ab", _flat(module(x, y)), strict=True)), 5, 1)


def test_an_onnx_source_gets_external_data_and_keeps_its_answers(tmp_path: Path) -> None:
    source = open_source(write_onnx(tmp_path / "m.onnx", opset=11, width=512), cache=tmp_path / "c")
    exported = export(source, tmp_path / "x")
    assert exported.opset == 11
    assert {check.max_abs_error for check in exported.checks} == {0.0}
    assert source.path.exists()
    data = tmp_path / "x" / "model.onnx.data"
    size = data.stat().st_size
    assert 0 < size < 2 * source.weight_bytes
    assert export(source, tmp_path / "x") == exported
    assert data.stat().st_size == size  # an earlier export's weights are replaced, not added to


def test_the_graph_is_tidy_and_its_weights_lie_outside(tmp_path: Path) -> None:
    source = open_source(write_bert(tmp_path / "m"), cache=tmp_path / "c")
    path = export(source, tmp_path / "x").path
    graph = onnx.load(str(path), load_external_data=False).graph
    dims = [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]
    assert dims == [["batch", "length"]] * 3 + [["batch", "length", 32], ["batch", 32]]
    large = [t for t in graph.initializer if np.prod(t.dims) * 4 >= 1024]
    assert large
    assert all(item.value == "model.onnx.data" for t in large for item in t.external_data if item.key == "location")
    data = (tmp_path / "x" / "model.onnx.data").stat().st_size
    assert data <= 1.2 * source.weight_bytes  # nothing is written twice
    assert str(tmp_path).encode() not in path.read_bytes()
    assert not [p for node in graph.node for p in node.metadata_props]


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    source = from_module(torch.nn.Linear(40, 30), {"input": torch.ones(2, 40)}, directory=tmp_path)
    files = [export(source, tmp_path / name).path for name in ("one", "two")]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].with_name("model.onnx.data").read_bytes() == files[1].with_name("model.onnx.data").read_bytes()


def test_nothing_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = from_module(torch.nn.Linear(4, 3), {"input": torch.ones(2, 4)}, directory=tmp_path)
    export(source, tmp_path / "x")
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_a_graph_that_answers_otherwise_is_refused(tmp_path: Path) -> None:
    source = open_source(write_onnx(tmp_path / "m.onnx"), cache=tmp_path / "c")
    other = write_onnx(tmp_path / "other.onnx", node="Tanh")
    with pytest.raises(ExportError, match="answers otherwise with batch 1: largest error"):
        exporting._check(source, other, exporting.onnx_run(source.path))


def test_an_openvino_source_has_no_graph(tmp_path: Path) -> None:
    source = dataclasses.replace(TEXT, kind="openvino")
    with pytest.raises(ExportError, match="can't be turned into ONNX"):
        export(source, tmp_path)


TEXT = Source(
    kind="huggingface",
    name="m",
    location="m",
    path=Path("m"),
    task="features",
    digest="",
    licence="unknown",
    parameters=0,
    weight_bytes=0,
    inputs=tuple(TensorSpec(name=n, dtype="int64", shape=("batch", "length")) for n in ("input_ids", "attention_mask")),
    outputs=(TensorSpec(name="h", dtype="float32", shape=("batch", "length", 2)),),
    max_tokens=8,
)
CASE = Case(what="a case", batch=2, length=3)
MASK = np.array([[1, 1, 0], [0, 0, 0]])
GOOD = np.arange(12, dtype=np.float32).reshape(2, 3, 2)


def _with(values: Any, place: tuple[int, ...]) -> Any:
    changed = GOOD.copy()
    changed[place] = values
    return changed


@pytest.mark.parametrize(
    ("got", "ok"),
    [
        (GOOD, True),
        (GOOD + 1e-4, True),
        (_with(77.0, (0, 2)), True),  # padding
        (_with(77.0, (1, 1)), True),  # a row without a token
        (GOOD + 1e-2, False),
        (GOOD * 1.01, False),
        (-GOOD, False),
        (_with(77.0, (0, 1)), False),
        (_with(np.nan, (0, 0)), False),
        (_with(np.nan, (0, 2)), False),  # a NaN is never fine, padding or not
        (_with(np.inf, (1, 1)), False),
        (GOOD[:, ::-1], False),
        (GOOD[:1], False),
        (GOOD.astype(np.float64), False),
    ],
)
def test_the_comparison(got: Any, ok: bool) -> None:
    assert compare(CASE, {"h": GOOD}, {"h": got}, {"attention_mask": MASK}, TEXT).ok is ok


@pytest.mark.parametrize("got", [{}, {"other": GOOD}, {"h": GOOD, "more": GOOD}])
def test_other_outputs_are_not_the_same(got: dict[str, Any]) -> None:
    assert not compare(CASE, {"h": GOOD}, got, {"attention_mask": MASK}, TEXT).ok


def test_cases_stay_within_what_the_model_was_made_for() -> None:
    assert max(case.length for case in cases_for(TEXT)) == 8
    assert cases_for(dataclasses.replace(TEXT, max_tokens=None))[3].length == SMALL["max_position_embeddings"] - 20


def _flat(answer: Any) -> Any:
    return answer[0], answer[1]["sum"]


def _assert_agrees(source: Source, path: Path, module: Callable[..., Any], batch: int, length: int) -> None:
    """An independent comparison, with the runtime's own optimisation on."""
    feeds = example_feeds(source, batch, length, seed=3)
    got = onnxruntime.InferenceSession(path).run(None, feeds)
    with torch.no_grad():
        want = module(**{name: torch.from_numpy(array) for name, array in feeds.items()})
    for one, two in zip(want.values(), got, strict=True):
        np.testing.assert_allclose(two, one.numpy(), atol=1e-5)
