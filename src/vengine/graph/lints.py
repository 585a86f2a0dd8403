"""What makes quantisation go wrong, looked for in the graph before the quantiser and in what it made.

Each lint is a function from a graph to a `PassResult` that changes nothing: `matched` counts what was found, and its
rows name nodes (or constants) with the reason and what it leads to. They stand among the passes of an int8 variant.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from vengine.types import PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

    from vengine.types import Exactness

_MASK = -1e30  # a constant below it is a mask that says "never": a range with it in has no steps left for the rest
_SMALLEST_NORMAL = 1.1754944e-38  # of a 32-bit float
_TIED_BYTES = 4096  # smaller constants are alike by chance: zeros, ones, scales
_INT32 = 2**31 - 1
_AT_THE_END = 0.25  # a share of a channel's codes at ±127 that no rounding of a bell-shaped channel gives
_ROWS = 12  # named at most; `matched` counts all
_NEUTRAL: Exactness = "bitwise"


def before(model: ir.Model) -> tuple[PassResult, ...]:
    """The lints of a float graph; only those that found something."""
    return _found(float_min_masks(model), denormals(model), dead_channels(model), tied_weights(model))


def after(quantized: ir.Model) -> tuple[PassResult, ...]:
    """The lints of a quantised graph; only those that found something."""
    return _found(bias_overflow(quantized), saturated_channels(quantized))


def float_min_masks(model: ir.Model) -> PassResult:
    """Constants such as −inf or the smallest float that are added to or chosen among values."""
    rows = []
    for name, array, users in _floats(model):
        if not any(user.op_type in ("Add", "Where", "Sub", "Mul", "Attention", "Max", "Clip") for user in users):
            continue
        if array.size and float(array.min()) < _MASK:
            rows.append(
                (name, f"holds {float(array.min()):.3g}: quantised, its range would leave no step for the rest")
            )
    return _result("float-min-masks", rows)


def denormals(model: ir.Model) -> PassResult:
    """Weights so small that some CPUs take a hundred times as long for them; engines can flush them to zero."""
    import numpy as np

    rows = []
    for name, array, _ in _floats(model):
        count = int(((array != 0) & (np.abs(array) < _SMALLEST_NORMAL)).sum())
        if count:
            rows.append((name, f"{count:,} denormal values (ONNX Runtime: session.set_denormal_as_zero)"))
    return _result("denormals", rows)


def dead_channels(model: ir.Model) -> PassResult:
    """Output channels of a product whose weights are all zero: their scale is arbitrary."""
    rows = []
    for node, array in _weights(model):
        flat = _channels(node, array)
        dead = int((flat == 0).all(axis=1).sum())
        if dead:
            rows.append((node.name or "", f"{dead} of {len(flat)} output channels are all zero"))
    return _result("dead-channels", rows)


def tied_weights(model: ir.Model) -> PassResult:
    """Constants with the same content under several names: tied weights that an export wrote out twice."""
    groups: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < _TIED_BYTES:
            continue
        key = (str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(tensor.tobytes()).hexdigest())
        groups.setdefault(key, []).append((value.name or "", tensor.nbytes))
    rows = [
        (names[0][0], f"is also there as {', '.join(n for n, _ in names[1:])}: {names[0][1]:,} bytes each")
        for names in groups.values()
        if len(names) > 1
    ]
    return _result("tied-weights", rows)


def bias_overflow(quantized: ir.Model) -> PassResult:
    """Biases that don't fit 32 bits in the product's own steps (scale of activations × scale of weights)."""
    import numpy as np

    rows = []
    for node in quantized.graph:
        if node.op_type not in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
            continue
        scales = [_scale(value) for value in node.inputs[:2]]
        bias = _bias(node)
        if bias is None or scales[0] is None or scales[1] is None:
            continue
        step = scales[0].reshape(-1)[0] * scales[1].reshape(-1)
        steps = np.abs(bias.reshape(-1)) / (step if step.size in (1, bias.size) else step.max())
        if steps.size and float(steps.max()) > _INT32:
            rows.append((node.name or "", f"its bias is {float(steps.max()):.3g} steps, and 32 bits hold {_INT32:,}"))
    return _result("bias-overflow", rows)


def saturated_channels(quantized: ir.Model) -> PassResult:
    """Output channels that the quantiser cut off: a large share of their codes lies at the ends of the range."""
    import numpy as np

    rows = []
    for node, array in _weights(quantized, "int8"):
        flat = np.abs(_channels(node, array).astype(np.int16))
        cut = int(((flat >= 127).mean(axis=1) > _AT_THE_END).sum()) if flat.shape[1] > 8 else 0
        if cut:
            rows.append((node.name or "", f"{cut} of {len(flat)} output channels have their weights at ±127"))
    return _result("saturated-channels", rows)


def _found(*results: PassResult) -> tuple[PassResult, ...]:
    return tuple(result for result in results if result.matched)


def _result(name: str, rows: Sequence[tuple[str, str]]) -> PassResult:
    return PassResult(name=f"lint: {name}", exactness=_NEUTRAL, matched=len(rows), refusals=tuple(rows[:_ROWS]))


def _floats(model: ir.Model) -> Iterator[tuple[str, Any, list[ir.Node]]]:
    """(name, array, users) of 32-bit constants: initialisers, and what Constant nodes hold."""
    for value in [*model.graph.initializers.values(), *(n.outputs[0] for n in model.graph if n.op_type == "Constant")]:
        tensor = value.const_value
        if tensor is None and (node := value.producer()) is not None and "value" in node.attributes:
            tensor = node.attributes["value"].as_tensor()
        if tensor is not None and str(tensor.dtype) == "FLOAT":
            yield value.name or "", tensor.numpy(), [user for user, _ in value.uses()]


def _weights(model: ir.Model, kind: str = "float32") -> Iterator[tuple[ir.Node, Any]]:
    """(product, its constant weights); int8 ones are looked up behind their DequantizeLinear."""
    for node in model.graph:
        if node.op_type not in ("MatMul", "Gemm", "Conv", "ConvTranspose"):
            continue
        value = node.inputs[1]
        source = value.producer() if value is not None else None
        if source is not None and source.op_type == "DequantizeLinear":
            value = source.inputs[0]
        tensor = value.const_value if value is not None else None
        if tensor is not None and len(tensor.shape) > 1:
            array = tensor.numpy()
            if str(array.dtype) == kind:
                yield node, array


def _channels(node: ir.Node, array: Any) -> Any:
    """[output channels, rest]."""
    import numpy as np

    turned = node.op_type == "Gemm" and "transB" in node.attributes and node.attributes["transB"].as_int()
    axis = {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, 0 if turned else array.ndim - 1)
    rows = np.moveaxis(array, axis, 0)
    return rows.reshape(len(rows), -1)


def _scale(value: ir.Value | None) -> Any:
    source = value.producer() if value is not None else None
    if source is None or source.op_type != "DequantizeLinear" or source.inputs[1] is None:
        return None
    tensor = source.inputs[1].const_value
    return None if tensor is None else tensor.numpy()


def _bias(node: ir.Node) -> Any:
    """The constant added to the product: its third input, or that of the Add behind it."""
    candidates = [node.inputs[2]] if len(node.inputs) > 2 else []
    for user, _ in node.outputs[0].uses():
        if user.op_type == "Add":
            candidates += [value for value in user.inputs if value is not node.outputs[0]]
    for value in candidates:
        if value is not None and value.const_value is not None:
            return value.const_value.numpy()
    return None
