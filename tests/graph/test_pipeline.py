"""A pipeline keeps the answers: a pass that changes them is found, named with its node, and left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from tests.graph.graphs import model, node
from tests.sources.making import config_of, write_model, write_onnx

from vengine.errors import UsageError
from vengine.graph import export as exporting
from vengine.graph.passes import drop_unused, fold_constants, plain_transposes, reduce_masks
from vengine.graph.pipeline import CLEAN, FUSED, PIPELINES, apply
from vengine.sources import example_feeds, open_source
from vengine.sources.onnx_file import plain_session
from vengine.types import PIPELINE_WORDS, PassResult, Source


def planted(change: Callable[[Any], Any], name: str = "planted") -> Any:
    """A pass that does this to the graph, and says that it is harmless."""

    def run(graph: Any) -> PassResult:
        change(graph)
        return PassResult(name=name, exactness="bitwise", matched=1)

    return SimpleNamespace(NAME=name, EXACTNESS="bitwise", run=run)


QUERY, VALUE, BEHIND, INNER = 0, 2, 3, 4  # products with a weight, in the order of a layer


def larger(place: int, by: float) -> Callable[[Any], None]:
    """Makes the weight of one product so many times larger."""

    def change(graph: Any) -> None:
        import onnx_ir as ir

        products = [n for n in graph.graph if n.op_type == "MatMul" and n.inputs[1].is_initializer()]
        value = products[place].inputs[1]
        value.const_value = ir.tensor(value.const_value.numpy() * np.float32(by), name=value.name)

    return change


def without_mask(graph: Any) -> None:
    """What right padding hides from a fusion that never looks: every token sees every other."""
    where = next(n for n in graph.graph if n.op_type == "Where" and n.inputs[1].const_value is not None)
    where.replace_input_with(2, where.inputs[1])


def infinite_mask(graph: Any) -> None:
    import onnx_ir as ir

    low = next(n for n in graph.graph if n.op_type == "Where" and n.inputs[2].const_value is not None).inputs[2]
    low.const_value = ir.tensor(np.float32(-np.inf), name=low.name)


def unloadable(graph: Any) -> None:
    next(n for n in graph.graph if n.op_type == "Softmax").op_type = "NoSuchOperator"


def failing(graph: Any) -> None:
    raise ValueError("of its own")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> tuple[Source, Path]:
    """A layer of BERT in operator set 18, where attention is written out."""
    folder = tmp_path_factory.mktemp("bert")
    config = config_of("bert", num_hidden_layers=1)
    source = open_source(write_model(folder / "model", config), cache=folder / "cache")
    kept, exporting.OPSETS = exporting.OPSETS, (18,)
    try:
        return source, exporting.export(source, folder / "export").path
    finally:
        exporting.OPSETS = kept


def test_the_words_of_recipes_are_the_pipelines() -> None:
    assert tuple(PIPELINES) == PIPELINE_WORDS
    assert all(step in FUSED for step in CLEAN)
    for steps in PIPELINES.values():
        assert len({step.NAME for step in steps}) == len(steps)


@pytest.mark.parametrize(
    ("change", "where", "why"),
    [
        pytest.param(larger(VALUE, 2.0), "node_MatMul", "batch 1 × length 1", id="a weight"),
        pytest.param(larger(INNER, 1.1), "node_MatMul", "largest error", id="a weight by a tenth"),
        pytest.param(without_mask, "node_", "padding", id="the mask is ignored"),
        pytest.param(unloadable, "", "can't load", id="a graph that doesn't load"),
        pytest.param(failing, "", "it fails: of its own", id="a pass that raises"),
    ],
)
def test_the_guilty_pass_is_named_and_the_others_stay(
    change: Callable[[Any], None], where: str, why: str, bert: tuple[Source, Path], tmp_path: Path
) -> None:
    source, path = bert
    results = apply(path, tmp_path, (plain_transposes, planted(change), reduce_masks, drop_unused), source)
    by_name = {result.name: result for result in results}
    assert list(by_name) == ["plain-transposes", "planted", "reduce-masks", "drop-unused"]
    ((node_name, reason),) = by_name["planted"].refusals
    assert where in node_name
    assert reason.startswith("left out, because it changes the answers")
    assert why in reason
    assert by_name["planted"].matched == 0
    assert (by_name["plain-transposes"].matched, by_name["reduce-masks"].matched) == (1, 3)
    _same_answers(source, path, tmp_path / "model.onnx")


def test_the_node_is_the_one_where_answers_part(bert: tuple[Source, Path], tmp_path: Path) -> None:
    source, path = bert
    results = apply(path, tmp_path, (planted(larger(INNER, 2.0)), plain_transposes), source)
    graph = onnx.load(path, load_external_data=False).graph
    weights = {w.name for w in graph.initializer}
    products = [n.name for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights]
    assert results[0].refusals[0][0] == products[INNER]


def test_two_guilty_passes_are_both_left_out(bert: tuple[Source, Path], tmp_path: Path) -> None:
    source, path = bert
    steps = (
        planted(larger(QUERY, 50.0), "first"),
        plain_transposes,
        planted(larger(BEHIND, 5.0), "second"),
    )
    results = {result.name: result for result in apply(path, tmp_path, steps, source)}
    assert [name for name, result in results.items() if result.refusals] == ["first", "second"]
    assert results["plain-transposes"].matched == 1
    _same_answers(source, path, tmp_path / "model.onnx")


def test_a_mask_of_infinity_ends_as_a_finite_one(bert: tuple[Source, Path], tmp_path: Path) -> None:
    """A fully masked row must be finite whatever comes first: the guard may only go when the mask is finite."""
    source, path = bert
    results = {r.name: r for r in apply(path, tmp_path, (planted(infinite_mask), *FUSED), source)}
    assert results["finite-masks"].matched == 1
    assert (results["drop-nan-guards"].matched, results["attention"].matched) == (1, 1)
    feeds = example_feeds(source, 3, 9, masked_row=1)
    assert all(np.isfinite(value).all() for value in plain_session(tmp_path / "model.onnx").run(None, feeds))


def test_passes_that_find_nothing_are_an_error(tmp_path: Path) -> None:
    source = open_source(write_onnx(tmp_path / "m.onnx", opset=18), cache=tmp_path / "c")
    path = exporting.export(source, tmp_path / "x").path
    with pytest.raises(UsageError, match="nothing to do"):
        apply(path, tmp_path / "out", FUSED, source)


def test_weights_stay_outside_and_are_not_written_twice(tmp_path: Path) -> None:
    weights = {"a": np.ones((64, 64), np.float32), "b": np.ones((64, 64), np.float32)}
    nodes = [node("MatMul", ["x", "a"], "h"), node("MatMul", ["h", "b"], "i"), node("Identity", ["i"], "y")]
    onnx.save(model(nodes, {"x": ("float32", ["n", 64])}, ["y"], **weights), tmp_path / "m.onnx")
    source = open_source(tmp_path / "m.onnx", cache=tmp_path / "c")
    path = exporting.export(source, tmp_path / "x").path
    apply(path, tmp_path / "out", (fold_constants, *CLEAN), source)
    assert (tmp_path / "out" / "model.onnx").stat().st_size < 2000
    assert (tmp_path / "out" / "model.onnx.data").stat().st_size == 64 * 64 * 4, "the same bytes once"
    assert path.with_name("model.onnx.data").stat().st_size == 2 * 64 * 64 * 4, "the original is untouched"


def _same_answers(source: Source, one: Path, two: Path) -> None:
    for padding in ("left", "right"):
        feeds = example_feeds(source, 3, 14, seed=5, padding=padding)  # type: ignore[arg-type]
        seen = feeds["attention_mask"].astype(bool)
        want, got = (plain_session(path).run(None, feeds) for path in (one, two))
        np.testing.assert_allclose(got[0][seen], want[0][seen], atol=1e-5)
