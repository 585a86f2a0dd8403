"""Were the fusions that the configuration promises achieved, and what stands in the way of the others?

What counts is the graph as ONNX Runtime runs it: its own fusions are part of it, whoever made the operator. Expected
counts come from the model's configuration alone, so that a fusion that stops matching after an exporter's update shows
as a miss with a node and a reason, and not as a model that is merely slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from vengine.graph.known import made_by
from vengine.types import PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

_ATTENTIONS = frozenset({"Attention", "MultiHeadAttention", "GroupQueryAttention"})
_NORMS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"})
_SKIPS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
_GELUS = frozenset({"Gelu", "BiasGelu", "FastGelu", "QuickGelu"})
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_ACTIVATIONS = ("hidden_act", "activation_function", "hidden_activation", "activation", "dense_act_fn")
_PRODUCTS = ("MatMul", "Gemm")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One fusion in one graph. `node` and `reason` name the nearest miss where less was achieved than expected."""

    fusion: str
    expected: int
    achieved: int
    node: str = ""
    reason: str = ""

    @property
    def met(self) -> bool:
        return self.achieved >= self.expected


@dataclass(frozen=True, kw_only=True)
class _Fusion:
    """How a fusion is counted, and which operators are left where it is missing."""

    count: Callable[[ir.Graph], int]
    anchors: frozenset[str]
    passes: tuple[str, ...] = ()  # whose refusals name the reason
    otherwise: str = ""  # the reason where no pass names one


def expected(config: Mapping[str, Any]) -> dict[str, int]:
    """Fusion → how often the configuration promises it.

    Args:
        config: the keys of a model's config.json.
    """
    layers = next((int(config[key]) for key in _LAYERS if isinstance(config.get(key), int)), 0)
    act = next((str(config[key]) for key in _ACTIVATIONS if isinstance(config.get(key), str)), "")
    heads, shared = config.get("num_attention_heads"), config.get("num_key_value_heads")
    grouped = isinstance(heads, int) and isinstance(shared, int) and shared < heads
    gelu = "gelu" in act or act in ("silu", "swish")
    biased = act == "gelu" and config.get("mlp_bias", True)
    rotary = bool(config.get("rope_theta") or config.get("rope_parameters"))
    found = {
        "attention": layers,
        "merged Q, K, V": layers,
        "grouped-query attention": layers if grouped else 0,
        "norm": 2 * layers + 1,
        "skip + norm": 2 * layers,
        "GELU": layers if gelu else 0,
        "bias + GELU": layers if biased else 0,
        "rotary embedding": 2 * layers if rotary else 0,
        "embedding + norm": 1 if "type_vocab_size" in config else 0,
    }
    return {fusion: count for fusion, count in found.items() if count}


def audit(model: Path, wanted: Mapping[str, int], results: Sequence[PassResult] = ()) -> tuple[Finding, ...]:
    """Compare with the graph that ONNX Runtime makes of the model when it loads.

    Args:
        model: an .onnx file, before or after the passes.
        wanted: as `expected` says.
        results: what the passes said, for the reasons of misses.
    """
    graph = as_run(model).graph
    return tuple(_finding(graph, fusion, count, results) for fusion, count in wanted.items())


def as_run(model: Path) -> ir.Model:
    """The graph after ONNX Runtime's own fusions for this file, without its weights' content."""
    import onnx
    import onnx_ir as ir
    import onnxruntime

    with TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(Path(folder) / "run.onnx")
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "run.data")
        options.log_severity_level = 4
        onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return ir.from_proto(onnx.load(options.optimized_model_filepath, load_external_data=False))


def _finding(graph: ir.Graph, fusion: str, wanted: int, results: Sequence[PassResult]) -> Finding:
    kind = _FUSIONS[fusion]
    achieved = kind.count(graph)
    if achieved >= wanted:
        return Finding(fusion=fusion, expected=wanted, achieved=achieved)
    said = [refusal for result in results if result.name in kind.passes for refusal in result.refusals]
    left = [node.name or node.op_type for node in graph if node.op_type in kind.anchors]
    node, reason = said[0] if said else (left[0] if left else "", kind.otherwise)
    return Finding(fusion=fusion, expected=wanted, achieved=achieved, node=node, reason=reason)


def _number_of(ops: frozenset[str]) -> Callable[[ir.Graph], int]:
    return lambda graph: sum(node.op_type in ops for node in graph)


def _biased_gelus(graph: ir.Graph) -> int:
    """With a bias of their own, or behind a Gemm, which holds it."""
    return sum(
        node.op_type == "BiasGelu"
        or (node.op_type == "FastGelu" and len(node.inputs) > 1)
        or (node.op_type in _GELUS and _behind_gemm(node))
        for node in graph
    )


def _behind_gemm(node: ir.Node) -> bool:
    source = node.inputs[0]
    while (move := made_by(source, "Reshape")) is not None:
        source = move.inputs[0]
    return (made_by(source, "Gemm")) is not None


def _merged(graph: ir.Graph) -> int:
    """Attentions whose Q, K and V come from one product: inside com.microsoft Attention, or split behind it."""
    found = 0
    for node in graph:
        if node.op_type == "Attention" and node.domain == "com.microsoft":
            found += 1
        elif node.op_type in _ATTENTIONS:
            products = [next(_products(value), None) for value in node.inputs[:3]]
            found += products[0] is not None and all(p is products[0] for p in products)
    return found


def _products(value: ir.Value | None) -> Iterator[ir.Node]:
    """The matrix products with a weight that a value comes from, the nearest first."""
    waiting: list[ir.Value | None] = [value]
    seen: set[ir.Value] = set()
    while waiting:
        current = waiting.pop(0)
        node = current.producer() if current is not None else None
        if current is None or node is None or current in seen:
            continue
        seen.add(current)
        if node.op_type in _PRODUCTS and any(v is not None and v.is_initializer() for v in node.inputs[1:2]):
            yield node
        elif node.op_type not in _NORMS | _SKIPS:
            waiting += node.inputs


def _expanded_keys(graph: ir.Graph) -> int:
    return sum(node.op_type == "GroupQueryAttention" or _shares_heads(node) for node in graph)


def _shares_heads(node: ir.Node) -> bool:
    """The operator of set 23 with fewer heads of keys than of queries."""
    if node.op_type != "Attention" or node.domain:
        return False
    shapes = [value.shape for value in node.inputs[:2] if value is not None and value.shape is not None]
    return len(shapes) == 2 and len(shapes[0]) == len(shapes[1]) == 4 and shapes[0][1] != shapes[1][1]


_FUSIONS: Mapping[str, _Fusion] = {
    "attention": _Fusion(
        count=_number_of(_ATTENTIONS),
        anchors=frozenset({"Softmax"}),
        passes=("attention",),
        otherwise="it adds more than a mask to the scores, or its shapes are unknown",
    ),
    "merged Q, K, V": _Fusion(
        count=_merged,
        anchors=frozenset({"MultiHeadAttention", "Attention", "Softmax"}),
        passes=("attention",),
        otherwise="something stands between the projections and the attention (rotary positions, repeated heads)",
    ),
    "grouped-query attention": _Fusion(
        count=_expanded_keys,
        anchors=frozenset({"MultiHeadAttention"}),
        otherwise="GroupQueryAttention takes lengths and right padding only, and this graph has a mask: its keys are "
        "repeated for each head instead",
    ),
    "norm": _Fusion(count=_number_of(_NORMS | _SKIPS), anchors=frozenset({"ReduceMean"}), passes=("rms-norm",)),
    "skip + norm": _Fusion(count=_number_of(_SKIPS), anchors=_NORMS, passes=("skip-norm",)),
    "GELU": _Fusion(count=_number_of(_GELUS), anchors=frozenset({"Erf", "Tanh", "Sigmoid"}), passes=("gelu",)),
    "bias + GELU": _Fusion(
        count=_biased_gelus, anchors=_GELUS, passes=("gelu",), otherwise="no bias of one vector is added in front of it"
    ),
    "rotary embedding": _Fusion(
        count=_number_of(frozenset({"RotaryEmbedding"})),
        anchors=frozenset({"Neg"}),
        otherwise="cosine and sine are computed at run time from the positions, and the operator wants them as tables",
    ),
    "embedding + norm": _Fusion(
        count=_number_of(frozenset({"EmbedLayerNormalization"})),
        anchors=_NORMS | _SKIPS,
        otherwise="no rule: the look-ups and this norm take 0.5 to 1 % of the time (all-MiniLM-L6-v2)",
    ),
}
