"""A recipe's words for passes become a file: built in a process of its own, opened by a plain ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.sources.making import config_of, write_model, write_onnx

from vengine.errors import UsageError
from vengine.graph.export import export
from vengine.sources import example_feeds, open_source
from vengine.tune.build import Workshop
from vengine.types import Recipe, RuntimeProfile, Source

PLAIN = Recipe(engine="onnxruntime", precision="fp32", profile=RuntimeProfile(threads=1))
FUSED = replace(PLAIN, passes=("fused",))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Workshop]:
    folder = tmp_path_factory.mktemp("bert")
    config = config_of("bert", num_hidden_layers=1)
    source = open_source(write_model(folder / "model", config), cache=folder / "cache")
    graph = export(source, folder / "export").path
    feeds = [example_feeds(source, 1, 8 + i, seed=i) for i in range(4)]
    return source, Workshop(model=graph, directory=folder / "built", calibration=feeds, transformer=True, source=source)


def _ops(variant: Any) -> set[str]:
    return {n.op_type for n in onnx.load(variant.directory / variant.entry, load_external_data=False).graph.node}


def test_fused_is_another_file_with_the_same_answers(bert: tuple[Source, Workshop]) -> None:
    source, shop = bert
    plain, fused = shop.build(PLAIN), shop.build(FUSED)
    assert plain.digest != fused.digest
    assert {"SkipLayerNormalization", "BiasGelu"} <= _ops(fused)
    assert not {"SkipLayerNormalization", "BiasGelu"} & _ops(plain)
    assert {r.name: r.matched for r in fused.passes}["attention"] == 1
    assert (fused.required_isa, fused.recipe.label) == ((), "onnxruntime fp32 fused")
    feeds = example_feeds(source, 3, 11, padding="left")
    seen = feeds["attention_mask"].astype(bool)
    one, two = (onnxruntime.InferenceSession(v.directory / v.entry).run(None, feeds) for v in (plain, fused))
    np.testing.assert_allclose(one[0][seen], two[0][seen], atol=2e-5)


def test_it_is_built_once_for_every_profile(bert: tuple[Source, Workshop]) -> None:
    _, shop = bert
    first = shop.build(FUSED)
    other = shop.build(replace(FUSED, profile=RuntimeProfile(threads=1, arena=False)))
    assert (first.directory, first.passes) == (other.directory, other.passes)
    assert first.digest != other.digest


def test_passes_come_before_the_quantiser(bert: tuple[Source, Workshop]) -> None:
    _, shop = bert
    variant = shop.build(replace(PLAIN, engine="openvino", precision="int8-static", passes=("clean",)))
    names = [result.name for result in variant.passes]
    assert names.index("reduce-masks") < names.index("nncf-static-int8")
    assert "GatherND" not in _ops(variant)


def test_passes_that_find_nothing_end_the_trial_with_a_reason(tmp_path: Path) -> None:
    source = open_source(write_onnx(tmp_path / "m.onnx"), cache=tmp_path / "c")
    graph = export(source, tmp_path / "x").path
    shop = Workshop(model=graph, directory=tmp_path / "built", calibration=[], transformer=False, source=source)
    with pytest.raises(UsageError, match="nothing to do"):
        shop.build(FUSED)
