"""Packed graphs of real architectures: exact to rounding, or refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.graph.test_export import DISTIL, MARKS, ONE, RELATIVE
from tests.sources.making import config_of, write_bert, write_model, write_onnx, write_sentence_layout

from vengine.errors import ExportError
from vengine.graph import export_packed as packing
from vengine.graph.export import onnx_run, torch_run
from vengine.graph.export_packed import export_packed, packable, ragged, run_packed
from vengine.sources import open_source
from vengine.sources.huggingface import load_module
from vengine.types import PassResult

NEAR = {**MARKS, "num_hidden_layers": 2, "local_attention": 16, "global_attn_every_n_layers": 2}
NAMES = ("input_ids", "position_ids", "segment_ids", "slots")


@pytest.mark.parametrize(
    ("kind", "more", "factory"),
    [
        ("bert", ONE, "AutoModelForSequenceClassification"),
        ("distilbert", DISTIL, "AutoModelForTokenClassification"),
        ("xlm-roberta", {**ONE, "type_vocab_size": 1, "num_labels": 1}, "AutoModelForSequenceClassification"),
        ("electra", {**ONE, "embedding_size": 16}, "AutoModelForSequenceClassification"),
        ("mpnet", {**ONE, "pad_token_id": 1}, "AutoModel"),  # relative positions, and a mask that is added
        ("modernbert", NEAR, "AutoModel"),  # rotary positions, and layers that see only what is near
    ],
)
def test_architectures(tmp_path: Path, kind: str, more: dict[str, Any], factory: str) -> None:
    source = open_source(write_model(tmp_path / "m", config_of(kind, **more), factory), cache=tmp_path / "c")
    assert export_packed(source, tmp_path / "x") == (PassResult(name="packing", exactness="reassociates", matched=6),)


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken", "mean_sqrt_len"])
def test_poolings(tmp_path: Path, pooling: str) -> None:
    folder = write_bert(tmp_path / "m")
    names = {"mean": "mean_tokens", "cls": "cls_token", "mean_sqrt_len": "mean_sqrt_len_tokens"}
    mode = names.get(pooling, pooling)
    write_sentence_layout(folder, {f"pooling_mode_{mode}": True}, "Normalize")
    source = open_source(folder, cache=tmp_path / "c")
    assert source.pooling == pooling
    assert export_packed(source, tmp_path / "x")[0].matched == 6


@pytest.mark.parametrize(
    ("kind", "more", "factory", "reason"),
    [
        ("deberta-v2", {**ONE, **RELATIVE}, "AutoModel", "the model's code refuses the mask"),
    ],
)
def test_must_not_match(tmp_path: Path, kind: str, more: dict[str, Any], factory: str, reason: str) -> None:
    source = open_source(write_model(tmp_path / "m", config_of(kind, **more), factory), cache=tmp_path / "c")
    with pytest.raises(ExportError, match=reason):
        export_packed(source, tmp_path / "x")
    assert not (tmp_path / "x" / "model.onnx").exists()


def test_a_finished_graph_can_not_be_packed(tmp_path: Path) -> None:
    assert "finished graph" in packable(open_source(write_onnx(tmp_path / "m.onnx"), cache=tmp_path / "c"))


@pytest.mark.parametrize("fault", ["segments are ignored", "positions go on"])
def test_a_wrong_packing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    source = open_source(write_bert(tmp_path / "m"), cache=tmp_path / "c")
    right = packing.packing.fill

    def wrong(rows: Any, calls: Any, names: Any) -> Any:
        made = right(rows, calls, names)
        if fault == "positions go on":
            made["position_ids"][:] = np.arange(made["position_ids"].shape[1])
        else:
            made["segment_ids"] = np.minimum(made["segment_ids"], 1)
        return made

    monkeypatch.setattr(packing.packing, "fill", wrong)
    with pytest.raises(ExportError, match="it answers otherwise with 3 texts packed into rows of"):
        export_packed(source, tmp_path / "x")


def test_widths_and_numbers_that_were_never_traced(tmp_path: Path) -> None:
    source = open_source(write_bert(tmp_path / "m"), cache=tmp_path / "c")
    export_packed(source, tmp_path / "x")
    graph, original = onnx_run(tmp_path / "x" / "model.onnx"), torch_run(load_module(source.path))
    names = [spec.name for spec in source.inputs if spec.name != "attention_mask"]
    for batch, longest, row in ((1, 1, 8), (2, 9, 16), (40, 33, 128)):
        feeds = ragged(source, batch, longest, seed=batch)
        got = run_packed(graph, (*names, *NAMES[1:]), feeds, row)
        want = original(feeds)
        np.testing.assert_allclose(got["pooler_output"], want["pooler_output"], atol=2e-5)
