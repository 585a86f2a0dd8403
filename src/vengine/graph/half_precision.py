"""An ONNX graph in fp16 or bf16, type for type written into the file: no engine has a choice left.

A node is converted where its operator takes the type; its weights are rounded once, and values that go between a
converted node and one that stays are cast, each value at most once. Nodes that only move data (Reshape, Transpose, …)
have the type of what they move, so that no value is cast forth and back around them. The result is checked: types of
all values by full inference, no Cast that changes nothing, and no pair of Casts that cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vengine.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

Half = Literal["fp16", "bf16"]
MOVERS = frozenset(
    {"Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Expand", "Gather", "GatherND"}
    | {"GatherElements", "Split", "Tile", "DepthToSpace", "SpaceToDepth", "Dropout"}
)
"""Operators whose result holds values of their first input, and nothing else."""
# They carry a type in an attribute, or their meaning is a type; what follows them is cast.
_TYPED = frozenset(
    {"Constant", "ConstantOfShape", "EyeLike", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"}
    | {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Bernoulli", "CastLike", "Range"}
)
_TYPE_NAMES = {"fp16": "tensor(float16)", "bf16": "tensor(bfloat16)"}


@dataclass(frozen=True, kw_only=True)
class HalfType:
    """The numbers of a half-width type."""

    name: Half
    largest: float
    smallest_normal: float
    smallest: float  # below half of it, a value becomes 0
    epsilon: float  # the largest relative error of one rounding

    @property
    def numpy(self) -> Any:
        """The numpy dtype."""
        import onnx_ir as ir

        return ir.DataType(self.onnx).numpy()

    @property
    def onnx(self) -> int:
        """The number of the type in ONNX files."""
        return 10 if self.name == "fp16" else 16


HALF_TYPES: dict[str, HalfType] = {
    "fp16": HalfType(name="fp16", largest=65504.0, smallest_normal=2.0**-14, smallest=2.0**-24, epsilon=2.0**-11),
    "bf16": HalfType(
        name="bf16", largest=3.3895313892515355e38, smallest_normal=2.0**-126, smallest=2.0**-133, epsilon=2.0**-8
    ),
}


def convertible(model: ir.Model, half: HalfType) -> tuple[ir.Node, ...]:
    """Nodes that can run in the type: they compute floats, and their operator takes it. Movers are not among them.

    Raises:
        UsageError: the graph has branches or loops, or functions of its own.
    """
    if model.functions or any(_has_subgraph(node) for node in model.graph):
        raise UsageError(
            f"a graph with branches, loops or functions of its own can't be converted to {half.name}",
            next_step="leave the precision out, or export the model without control flow",
        )
    return tuple(n for n in model.graph if n.op_type not in MOVERS and _takes(n, half, model.opset_imports))


def convert(model: ir.Model, half: HalfType, keep: Collection[str], *, keep_io_types: bool = True) -> int:
    """Convert every convertible node that `keep` doesn't name; the model is changed in place.

    Args:
        keep: names of nodes that stay in fp32.
        keep_io_types: the model's inputs and outputs stay fp32; else they get the type as well.

    Returns:
        How many nodes were converted. Movers that follow them are not counted.
    """
    chosen = [node for node in convertible(model, half) if node.name not in keep]
    rewriting = _Rewriting(model, half)
    if not keep_io_types:
        rewriting.narrow_inputs()
    wanted = set(chosen)
    for node in list(model.graph):
        if node in wanted or (node.op_type in MOVERS and (rewriting.moves_half(node) or _serves(node, wanted))):
            rewriting.convert(node)
        else:
            rewriting.restore_inputs(node)
    rewriting.finish(keep_io_types)
    return len(chosen)


class _Rewriting:
    """The casts that exist already, so that no value is cast twice to one type."""

    def __init__(self, model: ir.Model, half: HalfType) -> None:
        import onnx_ir as ir

        self._ir, self._model, self._half = ir, model, half
        self._dtype = ir.DataType(half.onnx)
        self._casts: dict[tuple[ir.Value, bool], ir.Value] = {}  # (value, to half) → the cast one
        self._opsets = model.opset_imports

    def narrow_inputs(self) -> None:
        for value in self._model.graph.inputs:
            if value.dtype == self._ir.DataType.FLOAT:
                value.dtype = self._dtype

    def moves_half(self, node: ir.Node) -> bool:
        data = node.inputs[0]
        return data is not None and data.dtype == self._dtype and allows(node, 0, self._half, self._opsets)

    def convert(self, node: ir.Node) -> None:
        for place, value in enumerate(node.inputs):
            if value is not None and value.dtype == self._ir.DataType.FLOAT:
                if allows(node, place, self._half, self._opsets):
                    node.replace_input_with(place, self._cast(value, node, to_half=True))
            elif value is not None and value.dtype == self._dtype and not allows(node, place, self._half, self._opsets):
                node.replace_input_with(place, self._cast(value, node, to_half=False))
        if node.op_type == "Cast":
            node.attributes["to"] = self._ir.AttrInt64("to", self._half.onnx)
        for place, value in enumerate(node.outputs):
            if value.dtype == self._ir.DataType.FLOAT and allows(node, place, self._half, self._opsets, output=True):
                value.dtype = self._dtype

    def restore_inputs(self, node: ir.Node) -> None:
        if node.op_type == "Cast":  # it takes any type, and reads the narrow value as well as the wide one
            return
        for place, value in enumerate(node.inputs):
            if value is not None and value.dtype == self._dtype:
                node.replace_input_with(place, self._cast(value, node, to_half=False))

    def finish(self, keep_io_types: bool) -> None:
        graph, float32 = self._model.graph, self._ir.DataType.FLOAT
        for place, value in enumerate(graph.outputs):
            if keep_io_types and value.dtype == self._dtype:
                graph.outputs[place] = self._named_output(value, to_half=False)
            elif not keep_io_types and value.dtype == float32 and value.producer() is not None:
                graph.outputs[place] = self._named_output(value, to_half=True)
        for name in [name for name, value in graph.initializers.items() if not list(value.uses())]:
            if not graph.initializers[name].is_graph_output():
                del graph.initializers[name]

    def _named_output(self, value: ir.Value, *, to_half: bool) -> ir.Value:
        """The value in the other type, under the name that callers ask for."""
        name = value.name
        value.name = f"{name}_{'wide' if to_half else 'narrow'}"
        cast = self._cast(value, None, to_half=to_half)
        cast.name = name
        return cast

    def _cast(self, value: ir.Value, before: ir.Node | None, *, to_half: bool) -> ir.Value:
        key = (value, to_half)
        if key not in self._casts:
            origin = self._casts_of(value, to_half)
            self._casts[key] = origin or self._made(value, before, to_half=to_half)
        return self._casts[key]

    def _casts_of(self, value: ir.Value, to_half: bool) -> ir.Value | None:
        """What the value was cast from, where casting back loses nothing: half → fp32 → half."""
        producer = value.producer()
        if not to_half or producer is None or producer.op_type != "Cast":
            return None
        source = producer.inputs[0]
        return source if source is not None and source.dtype == self._dtype else None

    def _made(self, value: ir.Value, before: ir.Node | None, *, to_half: bool) -> ir.Value:
        if value.const_value is not None and value.is_initializer() and to_half:
            return self._narrowed(value)
        dtype = self._dtype if to_half else self._ir.DataType.FLOAT
        name = f"{value.name}_{self._half.name if to_half else 'fp32'}"
        cast = self._ir.node("Cast", [value], attributes={"to": int(dtype)}, name=f"cast_{name}")
        made: ir.Value = cast.outputs[0]
        made.name, made.dtype, made.shape = name, dtype, value.shape
        if before is None:
            self._model.graph.append(cast)
        else:
            self._model.graph.insert_before(before, cast)
        return made

    def _narrowed(self, value: ir.Value) -> ir.Value:
        assert value.const_value is not None
        import numpy as np

        name = f"{value.name}_{self._half.name}"
        with np.errstate(over="ignore"):
            array = value.const_value.numpy().astype(self._half.numpy)
        tensor = self._ir.tensor(array, dtype=self._dtype, name=name)
        made = self._ir.Value(name=name, shape=value.shape, type=self._ir.TensorType(self._dtype), const_value=tensor)
        self._model.graph.register_initializer(made)
        return made


def _serves(mover: ir.Node, wanted: Collection[ir.Node]) -> bool:
    """Whether it moves a weight, and nodes that are converted are all that read the result."""
    data = mover.inputs[0]
    if data is None or not data.is_initializer() or mover.outputs[0].is_graph_output():
        return False
    users = [user for user, _ in mover.outputs[0].uses()]
    return bool(users) and all(user in wanted for user in users)


def check(path: Any, half: HalfType) -> None:
    """Raise AssertionError unless the file's types fit together: ours is the fault where they don't."""
    import onnx

    onnx.checker.check_model(str(path), full_check=True)
    proto = onnx.load(str(path), load_external_data=False)
    faults = list(cast_faults(onnx.shape_inference.infer_shapes(proto)))
    assert not faults, f"{half.name}: {'; '.join(faults)}"


def cast_faults(proto: Any) -> Iterator[str]:
    """Casts that change nothing, and pairs that cancel, in an ONNX model with inferred types."""
    graph = proto.graph
    types = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input, *graph.output)}
    types |= {w.name: w.data_type for w in graph.initializer}
    made_by = {name: node for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type != "Cast":
            continue
        to = next(a.i for a in node.attribute if a.name == "to")
        if types.get(node.input[0]) == to:
            yield f"{node.name} casts {node.input[0]} to the type that it has"
        before = made_by.get(node.input[0])
        if before is not None and before.op_type == "Cast" and types.get(before.input[0]) == to and to in (10, 16):
            yield f"{before.name} and {node.name} cancel"


def _has_subgraph(node: ir.Node) -> bool:
    return any(attribute.type.name in ("GRAPH", "GRAPHS") for attribute in node.attributes.values())


def _takes(node: ir.Node, half: HalfType, opsets: Any) -> bool:
    """Whether the node computes floats and its operator takes the type for all of them that carry its result."""
    import onnx_ir as ir

    if node.op_type in _TYPED or not node.outputs or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    if node.op_type == "Cast":
        source = node.inputs[0]
        return source is not None and source.dtype != ir.DataType.FLOAT
    return allows(node, 0, half, opsets, output=True)


def allows(node: ir.Node, place: int, half: HalfType, opsets: Any, *, output: bool = False) -> bool:
    """Whether the operator's schema takes the type at this input or output."""
    import onnx

    version = opsets.get(node.domain, 1)
    if not onnx.defs.has(node.op_type, node.domain):
        return False
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    formal = schema.outputs if output else schema.inputs
    if not formal:
        return False
    parameter = formal[min(place, len(formal) - 1)]
    return _TYPE_NAMES[half.name] in parameter.types


def lost_weights(arrays: Collection[np.ndarray], half: HalfType) -> tuple[int, int, int]:
    """How many non-zero weights become 0, lose digits because they are denormal, or overflow in the type."""
    import numpy as np

    zero = denormal = over = 0
    for array in arrays:
        size = np.abs(array[array != 0])
        with np.errstate(over="ignore"):
            rounded = size.astype(half.numpy).astype(np.float32)
        zero += int((rounded == 0).sum())
        denormal += int(((rounded > 0) & (rounded < half.smallest_normal)).sum())
        over += int(np.isinf(rounded).sum())
    return zero, denormal, over
