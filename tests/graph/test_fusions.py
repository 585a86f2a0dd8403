"""Fusions: what today's exporter writes must be matched, counted against the configuration; and what must not be."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.graph.architectures import ARCHITECTURES, exported, settings
from tests.graph.graphs import model, node, ops, random, run

from vengine.graph.audit import audit, expected
from vengine.graph.passes import attention, gelu, one_mask, rms_norm, skip_norm
from vengine.graph.pipeline import FUSED, apply
from vengine.sources import example_feeds
from vengine.types import Source

F = np.float32
# What is not achieved anywhere, and why, stands in docs/passes.md.
NO_RULE = {"embedding + norm"}
ROTARY = {"rotary embedding", "merged Q, K, V", "grouped-query attention"}
MISSED = {
    "DeBERTa-v3": {"attention", "merged Q, K, V"},
    "ModernBERT": {"rotary embedding"},
    "Llama": ROTARY,
    "Qwen": ROTARY,
    "CLIP": {"skip + norm"},  # its first norm has no sum in front, the last one reads one token
}
FAST = ("BERT", "ViT", "GPT-2")


@cache
def graph_of(name: str, opset: int) -> tuple[Source, Path]:
    return exported(name, Path(mkdtemp(prefix="vengine-test-")), opset)


def _rows() -> list[Any]:
    rows = [(name, opset) for name, a in ARCHITECTURES.items() for opset in {a.opset, 20, 18} if opset <= a.opset]
    fast = {(name, ARCHITECTURES[name].opset) for name in FAST} | {("BERT", 18)}
    return [
        pytest.param(*row, id=f"{row[0]} in set {row[1]}", marks=() if row in fast else pytest.mark.slow)
        for row in sorted(rows)
    ]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "opset"), _rows())
def test_what_the_configuration_promises_is_fused(name: str, opset: int, tmp_path: Path) -> None:
    source, path = graph_of(name, opset)
    results = apply(path, tmp_path, FUSED, source)
    assert [refusal for r in results for refusal in r.refusals if "left out" in refusal[1]] == []
    found = audit(tmp_path / "model.onnx", expected(settings(name)), results)
    assert {f.fusion for f in found if not f.met} - NO_RULE == MISSED.get(name, set())
    assert all(f.node and f.reason for f in found if not f.met)
    assert _bytes(tmp_path) <= 1.02 * _bytes(path.parent), "no weight is there twice"
    _assert_agrees(source, path, tmp_path / "model.onnx", batch=5, length=23)


def test_the_runtime_alone_misses_what_the_passes_fuse() -> None:
    """The audit must be able to say no: an export of set 18, as it is."""
    _, path = graph_of("BERT", 18)
    missed = {f.fusion: f for f in audit(path, expected(settings("BERT"))) if not f.met}
    assert set(missed) == {"attention", "merged Q, K, V", "GELU", "bias + GELU", *NO_RULE}
    assert (missed["attention"].expected, missed["attention"].achieved) == (2, 0)
    assert missed["attention"].node.startswith("node_Softmax")


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        ({"num_hidden_layers": 6, "hidden_act": "gelu", "type_vocab_size": 2}, (6, 12, 6, 6, 0)),
        ({"n_layer": 2, "activation_function": "gelu_new"}, (2, 4, 2, 0, 0)),
        ({"num_hidden_layers": 3, "hidden_act": "relu"}, (3, 6, 0, 0, 0)),
        ({"num_hidden_layers": 3, "hidden_act": "silu", "rope_parameters": {"rope_theta": 1e4}}, (3, 6, 3, 0, 6)),
        ({}, (0, 0, 0, 0, 0)),
    ],
)
def test_expected_counts_come_from_the_configuration(config: dict[str, Any], counts: tuple[int, ...]) -> None:
    found = expected(config)
    names = ("attention", "skip + norm", "GELU", "bias + GELU", "rotary embedding")
    assert tuple(found.get(name, 0) for name in names) == counts


# --- tables of small graphs -------------------------------------------------------------------------------------

HEADS = {name: ("float32", ["b", "s", 8]) for name in ("q", "k", "v")}


def attended(*, mask: list[Any] | None = None, keys: int = 2, **attributes: Any) -> Any:
    """`Attention` of set 23 between its Reshapes and Transposes."""
    inputs: dict[str, Any] = {"q": HEADS["q"], **{n: ("float32", ["b", "s", 4 * keys]) for n in "kv"}}
    inputs |= {} if mask is None else {"mask": ("bool", mask)}
    nodes = [
        step
        for name in ("q", "k", "v")
        for step in (
            node("Reshape", [name, f"{'q' if name == 'q' else 'kv'}_heads"], f"{name}4"),
            node("Transpose", [f"{name}4"], f"{name}t", perm=[0, 2, 1, 3]),
        )
    ]
    nodes += [
        node("Attention", ["qt", "kt", "vt", *(["mask"] if mask else [])], "a", **attributes),
        node("Transpose", ["a"], "at", perm=[0, 2, 1, 3]),
        node("Reshape", ["at", "flat"], "y"),
    ]
    shapes = {"q_heads": [0, 0, 2, 4], "kv_heads": [0, 0, keys, 4], "flat": [0, 0, 8]}
    return model(nodes, inputs, ["y"], **{name: np.array(shape) for name, shape in shapes.items()})


@pytest.mark.parametrize(
    ("graph", "matched", "reason"),
    [
        pytest.param(attended, 1, "", id="without a mask"),
        pytest.param(lambda: attended(mask=["b", 1, "s", "s"]), 1, "", id="a mask"),
        pytest.param(lambda: attended(mask=["b", 2, "s", "s"]), 1, "", id="a mask for each head"),
        pytest.param(lambda: attended(scale=0.3), 1, "", id="a scale of its own"),
        pytest.param(lambda: attended(mask=["s", "s"]), 0, "doesn't state", id="must not: a mask of two axes"),
        pytest.param(lambda: attended(keys=1), 0, "share 1 of keys", id="must not: shared heads"),
        pytest.param(lambda: attended(is_causal=1), 0, "is_causal", id="must not: causal"),
        pytest.param(lambda: attended(softcap=5.0), 0, "softcap", id="must not: a soft cap"),
    ],
)
def test_attention(graph: Callable[[], Any], matched: int, reason: str) -> None:
    proto = graph()
    result, made = rewritten_for_the_runtime(attention, proto)
    assert result.matched == matched
    assert [reason in why for _, why in result.refusals] == ([] if matched else [True])
    assert ("MultiHeadAttention" in ops(made)) is bool(matched)
    for batch, length in ((1, 1), (2, 5), (3, 4)):
        feeds: dict[str, Any] = {
            i.name: random([batch, length, i.type.tensor_type.shape.dim[2].dim_value]) for i in proto.graph.input[:3]
        }
        for given in proto.graph.input[3:]:
            shape = [{"b": batch, "s": length}.get(d.dim_param, d.dim_value) for d in given.type.tensor_type.shape.dim]
            feeds["mask"] = np.random.default_rng(1).random(shape) > 0.3
            feeds["mask"][..., 0] = True
        _close(proto, made, feeds)


def test_a_fully_masked_row_stays_finite() -> None:
    _, made = rewritten_for_the_runtime(attention, attended(mask=["b", 1, "s", "s"]))
    feeds = {name: random([2, 3, 8]) for name in ("q", "k", "v")}
    assert np.isfinite(run(made, {**feeds, "mask": np.zeros((2, 1, 3, 3), bool)})["y"]).all()


X = {"x": ("float32", ["b", "s", 8])}


def erf_gelu(*, half: float = 0.5, root: float = 2**0.5) -> Any:
    nodes = [
        node("Div", ["x", "root"], "d"),
        node("Erf", ["d"], "e"),
        node("Add", ["e", "one"], "a"),
        node("Mul", ["half", "a"], "h"),
        node("Mul", ["x", "h"], "y"),
    ]
    return model(nodes, X, ["y"], root=F(root), one=F(1), half=F(half))


def rms(*, power: float = 2.0, axis: int = -1) -> Any:
    nodes = [
        node("Pow", ["x", "power"], "p"),
        node("ReduceMean", ["p", "axes"], "m", keepdims=1, noop_with_empty_axes=0),
        node("Add", ["m", "eps"], "e"),
        node("Sqrt", ["e"], "r"),
        node("Reciprocal", ["r"], "i"),
        node("Mul", ["x", "i"], "n"),
        node("Mul", ["w", "n"], "y"),
    ]
    return model(nodes, X, ["y"], power=F(power), axes=np.array([axis]), eps=F(1e-6), w=np.linspace(0.5, 2, 8, dtype=F))


def skip(*, bias: bool = True, wide: bool = True, axis: int = -1) -> Any:
    weights = {"w": np.linspace(0.5, 2, 8, dtype=F), "b": np.ones(8, F)}
    nodes = [
        node("Add", ["x", "other"], "sum"),
        node("LayerNormalization", ["sum", "w", *(["b"] if bias else [])], "n", axis=axis),
        node("Add", ["n", "sum"], "y"),  # as in a pre-norm model, the sum is read again
    ]
    inputs = {**X, "other": ("float32", ["b", "s", 8] if wide else [1, "s", 8])}
    return model(nodes, inputs, ["y"], **(weights if bias else {"w": weights["w"]}))


def masked(*, products: bool = True, also: bool = False) -> Any:
    """(q·k + positions) + mask, softmaxed."""
    nodes = [
        node("MatMul", ["x", "y"], "scores") if products else node("Sub", ["x", "y"], "scores"),
        node("Add", ["scores", "positions"], "first"),
        node("Add", ["first", "mask"], "second"),
        node("Softmax", ["second"], "z", axis=-1),
    ]
    square = ("float32", [2, 4, 4])
    inputs = {"x": square, "y": square, "mask": ("float32", [2, 1, 4])}
    return model(nodes, inputs, ["z", "first"] if also else ["z"], positions=random([1, 4, 4]))


@pytest.mark.parametrize(
    ("rule", "graph", "matched", "new"),
    [
        pytest.param(gelu, erf_gelu, 1, "Gelu", id="gelu: erf"),
        pytest.param(gelu, lambda: erf_gelu(half=0.4), 0, "", id="gelu, must not: 0.4"),
        pytest.param(gelu, lambda: erf_gelu(root=1.5), 0, "", id="gelu, must not: x ÷ 1.5"),
        pytest.param(rms_norm, rms, 1, "SimplifiedLayerNormalization", id="rms"),
        pytest.param(rms_norm, lambda: rms(power=3.0), 0, "", id="rms, must not: the cube"),
        pytest.param(rms_norm, lambda: rms(axis=1), 0, "", id="rms, must not: over the length"),
        pytest.param(skip_norm, skip, 1, "SkipLayerNormalization", id="skip"),
        pytest.param(skip_norm, lambda: skip(bias=False), 1, "SkipLayerNormalization", id="skip: a norm without bias"),
        pytest.param(skip_norm, lambda: skip(wide=False), 0, "", id="skip, must not: one row for all"),
        pytest.param(one_mask, masked, 1, "", id="one mask"),
        pytest.param(one_mask, lambda: masked(products=False), 0, "", id="one mask, must not: no scores"),
        pytest.param(one_mask, lambda: masked(also=True), 0, "", id="one mask, must not: read elsewhere"),
    ],
)
def test_fusions_of_small_graphs(rule: Any, graph: Callable[[], Any], matched: int, new: str) -> None:
    proto = graph()
    result, made = rewritten_for_the_runtime(rule, proto)
    assert (result.matched, result.exactness) == (matched, "reassociates")
    assert not new or new in ops(made)
    assert matched or ops(made) == ops(proto)
    for seed in range(3):
        feeds = {
            i.name: random([d.dim_value or 3 for d in i.type.tensor_type.shape.dim], seed + k)
            for k, i in enumerate(proto.graph.input)
        }
        _close(proto, made, feeds)


def test_what_is_not_fused_has_a_node_and_a_reason() -> None:
    result, _ = rewritten_for_the_runtime(rms_norm, rms(power=3.0))
    ((where, why),) = result.refusals
    assert where
    assert why


def rewritten_for_the_runtime(rule: Any, proto: Any) -> tuple[Any, Any]:
    """As the tables of the clean-up do it, for operators that only the runtime knows."""
    import onnx_ir as ir

    graph = ir.from_proto(proto)
    result = rule.run(graph)
    return result, ir.to_proto(graph)


def _close(before: Any, after: Any, feeds: dict[str, Any]) -> None:
    want, got = run(before, feeds), run(after, feeds)
    assert list(want) == list(got)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-5 * max(1.0, float(np.abs(value).max())))


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("model.onnx*"))


def _assert_agrees(source: Source, one: Path, two: Path, batch: int, length: int) -> None:
    """Both files as the runtime runs them, all of its optimisation on."""
    feeds = example_feeds(source, batch, length, padding="right")
    answers = [onnxruntime.InferenceSession(path).run(None, feeds) for path in (one, two)]
    for spec, a, b in zip(source.outputs, *answers, strict=True):
        seen = feeds["attention_mask"].astype(bool) if "attention_mask" in feeds and spec.shape[1] == "length" else ...
        np.testing.assert_allclose(a[seen], b[seen], rtol=0, atol=2e-5)
