"""What a quantiser changed, in units that can each be taken back into float by themselves.

A unit is a node whose inputs the quantiser replaced (by dequantised activations, by dequantised weights), together
with the moves (Reshape, Transpose, …) through which it reads them and the bias that was corrected for it. Taking a
unit back gives its nodes the inputs of the original graph again: values keep their names, so this needs no knowledge
of any operator, architecture or quantiser.

Exactness: with every unit taken back the graph computes what the original computes, bit for bit.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vengine.errors import UsageError
from vengine.types import PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

NAME = "back-to-float"
_MOVES = frozenset({"Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Slice", "Concat", "Flatten", "Resize"})
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Gather"})
_CORRECTED = 1 << 20  # initialisers of at most so many elements are looked at: biases, never tables
SHAPE_ONLY = frozenset({"Shape", "Size"})  # read no values, so whatever they read is right


@dataclass(frozen=True, kw_only=True)
class Place:
    """An input of a node that reads something else than in the original graph."""

    node: str
    index: int
    original: str  # the name of what it read


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What is quantised, or computed in float, as a whole. It is named after its first product."""

    name: str
    nodes: tuple[str, ...]
    places: tuple[Place, ...]


def units_of(original: ir.Model, quantized: ir.Model) -> tuple[Unit, ...]:
    """The quantised units of a graph, in its order.

    Args:
        original: the graph that was quantised.
        quantized: what the quantiser made of it; nodes and values of the original keep their names there.
    """
    before = {node.name: node for node in original.graph if node.name}
    after = {node.name: node for node in quantized.graph if node.name in before}
    places = {name: found for name in after if (found := tuple(_places(before[name], after[name], quantized)))}
    leader = {name: name for name in places}
    for name in places:
        if after[name].op_type in _MOVES:
            for user in _users(after[name]):
                if user in leader:
                    _join(leader, name, user)
    for name, place in _corrected(original, quantized, after, places):
        places[name] = (*places.get(name, ()), place)
        leader.setdefault(name, name)
        if (product := _producer(after[name], places)) is not None:
            _join(leader, name, product)
    groups: dict[str, list[str]] = {}
    for name in after:
        if name in leader:
            groups.setdefault(_root(leader, name), []).append(name)
    return tuple(_unit(names, after, places) for names in groups.values())


def take_back(original: ir.Model, quantized: ir.Model, names: Collection[str]) -> PassResult:
    """Compute these units in float again; `quantized` is changed in place.

    Raises:
        UsageError: a name is no unit of this graph.
    """
    units = {unit.name: unit for unit in units_of(original, quantized)}
    if unknown := sorted(set(names) - set(units)):
        raise UsageError(
            f"{unknown[0]!r} is no quantised node of this graph", next_step=f"quantised here: {', '.join(units)}"
        )
    nodes = {node.name: node for node in quantized.graph}
    for name in names:
        for place in units[name].places:
            node = nodes[place.node]
            node.replace_input_with(place.index, float_value(original, quantized, place))
    return PassResult(name=NAME, exactness="lossy", matched=len(names))


def float_value(original: ir.Model, quantized: ir.Model, place: Place) -> ir.Value:
    """What the original graph reads at this place, as a value of the quantised graph."""
    import onnx_ir as ir

    constant = original.graph.initializers.get(place.original)
    if constant is None:
        return values_of(quantized)[place.original]
    name = f"{place.original}_in_float"
    known = quantized.graph.initializers.get(name)
    if known is not None:
        return known
    value = ir.Value(name=name, shape=constant.shape, type=constant.type, const_value=constant.const_value)
    quantized.graph.register_initializer(value)
    return value


def values_of(model: ir.Model) -> dict[str, ir.Value]:
    """Inputs and results of nodes, by name."""
    found = {value.name: value for value in model.graph.inputs if value.name}
    return found | {value.name: value for node in model.graph for value in node.outputs if value.name}


def _places(before: ir.Node, after: ir.Node, quantized: ir.Model) -> Iterator[Place]:
    """Inputs that the quantiser replaced by something dequantised, where the original's value still exists."""
    if after.op_type in SHAPE_ONLY:
        return
    for index, (old, new) in enumerate(zip(before.inputs, after.inputs, strict=False)):
        if old is None or new is None or old.name is None or old.name == new.name:
            continue
        if _dequantized(new, old.name) and (old.is_initializer() or _exists(quantized, old.name)):
            yield Place(node=after.name or "", index=index, original=old.name)


def _exists(model: ir.Model, name: str) -> bool:
    return any(value.name == name for value in model.graph.inputs) or any(
        value.name == name for node in model.graph for value in node.outputs
    )


def _dequantized(value: ir.Value, original: str) -> bool:
    """Whether the value comes out of a DequantizeLinear that the quantiser put behind the original value."""
    node = value.producer()
    for _ in range(4):  # dequantise, quantise, and a scale that smooths outliers
        if node is None:
            return False
        if node.op_type == "DequantizeLinear":
            return True
        source = node.inputs[0]
        if source is None or source.name == original:
            return False
        node = source.producer()
    return False


def _corrected(
    original: ir.Model, quantized: ir.Model, after: dict[str, ir.Node], places: dict[str, tuple[Place, ...]]
) -> Iterator[tuple[str, Place]]:
    """Constants that keep their name and not their content: biases that make up for the rounding."""
    for name, constant in original.graph.initializers.items():
        new, old = quantized.graph.initializers.get(name), constant.const_value
        if new is None or old is None or new.const_value is None or old.size > _CORRECTED:
            continue
        if old.dtype != new.const_value.dtype or old.tobytes() == new.const_value.tobytes():
            continue
        for user, index in new.uses():
            if user.name in after:
                yield user.name, Place(node=user.name, index=index, original=name)


def _producer(node: ir.Node, places: dict[str, tuple[Place, ...]]) -> str | None:
    """The quantised product whose result this node reads."""
    if node.op_type in _PRODUCTS:
        return None
    for value in node.inputs:
        source = value.producer() if value is not None else None
        if source is not None and source.name in places and source.op_type in _PRODUCTS:
            return str(source.name)
    return None


def _users(node: ir.Node) -> Iterator[str]:
    for value in node.outputs:
        for user, _ in value.uses():
            if user.op_type in _MOVES:
                yield from _users(user)
            if user.name:
                yield user.name


def _unit(names: list[str], after: dict[str, ir.Node], places: dict[str, tuple[Place, ...]]) -> Unit:
    first = next((name for name in names if after[name].op_type in _PRODUCTS), names[0])
    return Unit(name=first, nodes=tuple(names), places=tuple(p for name in names for p in places[name]))


def _root(leader: dict[str, str], name: str) -> str:
    while leader[name] != name:
        name = leader[name]
    return name


def _join(leader: dict[str, str], one: str, other: str) -> None:
    leader[_root(leader, one)] = _root(leader, other)
