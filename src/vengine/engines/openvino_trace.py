"""OpenVINO's counters of a request, and its compiled graph, read into recordings.

A compiled graph with free axes has no sizes in it. They come from the file's own graph, reshaped to the call: each
compiled node names the operators of the file that it was made of, so what it computes is known and not guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from vengine.engines import products
from vengine.engines.products import Shape, Work
from vengine.engines.recording import Node, Recording, end_to_end

Shapes = tuple[Shape, ...]  # of a call's inputs, in the model's order
_PRECISIONS = {"f32": "fp32", "bf16": "bf16", "f16": "fp16", "i8": "int8", "u8": "int8"}
_FUSED = "Subgraph"  # whatever was fused into one kernel; attention too
_WIDTHS = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a compiled node before it runs."""

    kind: str = ""
    precision: str = ""
    origins: tuple[str, ...] = ()  # names of the file's operators that it was made of


@dataclass(frozen=True, kw_only=True)
class Origin:
    """An operator of the file, with the sizes of one call."""

    work: Work | None  # None: no product, or unknown
    is_product: bool
    output: Shape | None


def facts_of(compiled: Any) -> dict[str, Facts]:
    """Each node of the compiled graph, by name."""
    found = {}
    for node in compiled.get_runtime_model().get_ordered_ops():
        info = node.get_rt_info()
        ran = _told(info, "runtimePrecision")
        origins = tuple(name for name in _told(info, "originalLayersNames").split(",") if name)
        found[node.get_friendly_name()] = Facts(
            kind=_told(info, "layerType"), precision=_PRECISIONS.get(ran, ran), origins=origins
        )
    return found


def _told(info: Any, key: str) -> str:
    return str(info[key].astype(str)) if key in info else ""


def origins_of(model: Any, shapes: Sequence[Shape]) -> dict[str, Origin]:
    """The file's operators with the sizes of one call; {} where the graph can't be given these sizes.

    Args:
        model: as it was read and compiled, because names are made up while reading. It is reshaped.
        shapes: of each input, in the model's order.
    """
    try:
        model.reshape({port: list(shape) for port, shape in zip(model.inputs, shapes, strict=True)})
    except RuntimeError:
        return {}
    return {op.get_friendly_name(): _origin(op) for op in model.get_ordered_ops()}


def _origin(op: Any) -> Origin:
    kind = op.get_type_name()
    shapes = [_static(op.get_input_partial_shape(i)) for i in range(op.get_input_size())]
    output = _static(op.get_output_partial_shape(0)) if op.get_output_size() else None
    known = [shape for shape in shapes if shape is not None]
    whole = output is not None and len(known) == len(shapes)
    is_product = products.share_of(kind) == "products"
    work = _work(kind, known, output) if is_product and whole and output is not None else None
    return Origin(work=work, is_product=is_product, output=output)


def _static(shape: Any) -> Shape | None:
    return tuple(int(size) for size in shape.to_shape()) if shape.is_static else None


def _work(kind: str, inputs: Sequence[Shape], output: Shape) -> Work | None:
    if kind == "MatMul":
        return products.matmul(inputs[0], inputs[1], output)
    if kind == "Convolution":
        return products.convolution(inputs[0], inputs[1], output)
    if kind == "ScaledDotProductAttention":
        return products.attention(*inputs[:3])
    return None


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What a request tells after so many calls of its compiled model: the mean time of each node over all of them."""

    calls: int
    items: Sequence[Any]

    def totals(self) -> dict[str, float]:
        """Milliseconds that each node has taken since the model was compiled."""
        return {str(item.node_name): _milliseconds(item.real_time) * self.calls for item in self.items}


def read_counters(
    compiled: Any, model: Any, counted: tuple[Counters, Counters], walls_ms: Sequence[float], shapes: Sequence[Shapes]
) -> list[Recording]:
    """The calls between two readings of the counters.

    The engine keeps means of whole microseconds, from which a single call can't be told. So every recording has the
    mean of these calls: of its nodes, and of its wall time too, so that the two fit together.

    Args:
        compiled, model: the model that ran, and the graph that it was compiled from, which is reshaped here.
        counted: before the calls and after them.
        walls_ms, shapes: of each call.
    """
    facts, origins = facts_of(compiled), {sizes: origins_of(model, sizes) for sizes in dict.fromkeys(shapes)}
    before, after = (counters.totals() for counters in counted)
    ran = [item for item in counted[1].items if str(item.status).endswith("EXECUTED")]
    wall = sum(walls_ms) / len(walls_ms)

    def recording(sizes: Shapes) -> Recording:
        nodes = []
        for item in ran:
            ms = max(0.0, after[item.node_name] - before.get(item.node_name, 0.0)) / len(walls_ms)
            nodes.append(_node(item, ms, facts.get(item.node_name, Facts()), origins[sizes]))
        return Recording(wall_ms=wall, nodes=end_to_end(nodes), timeline=False)

    return [recording(sizes) for sizes in shapes]


def _node(item: Any, ms: float, facts: Facts, origins: Mapping[str, Origin]) -> Node:
    made_of = [origins[name] for name in facts.origins if name in origins]
    kind, heavy = str(item.node_type), [origin for origin in made_of if origin.is_product]
    share = products.share_of(kind)
    if kind == _FUSED and heavy:
        share = "products"
    work = products.together([origin.work for origin in heavy]) if share == "products" else None
    precision = _precision(str(item.exec_type), facts.precision)
    width = _WIDTHS.get(precision)
    return Node(
        name=str(item.node_name),
        kind=kind,
        share=share,
        kernel=str(item.exec_type),
        start_ms=0.0,
        span_ms=0.0,
        ms=ms,
        precision=precision,
        output=_output(kind, facts, origins),
        flops=work.flops if work else None,
        moved_bytes=work.elements * width if work and width and len(heavy) == 1 else None,
        origins=facts.origins,
    )


def _precision(kernel: str, runtime: str) -> str:
    """What the kernel computes in; a quantised result alone makes no int8 product."""
    suffix = kernel.rsplit("_", 1)[-1].lower()
    return _PRECISIONS.get(suffix, runtime)


def _output(kind: str, facts: Facts, origins: Mapping[str, Origin]) -> Shape | None:
    """The result's shape: that of the last operator that the node was made of.

    Where the compiler made that one up, it is the one shape that all the others share, if they do.
    """
    last = origins.get(facts.origins[-1]) if facts.origins else None
    if last is not None or kind == _FUSED:
        return last.output if last else None
    shapes = {origins[name].output for name in facts.origins if name in origins}
    return shapes.pop() if len(shapes) == 1 else None


def _milliseconds(value: Any) -> float:
    return value.total_seconds() * 1000 if isinstance(value, timedelta) else float(value) / 1000
