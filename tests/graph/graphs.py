"""Small quantised graphs for the passes' tests, built node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def model(
    nodes: Sequence[Any], inputs: Mapping[str, tuple[str, list[Any]]], outputs: Sequence[str], **weights: Any
) -> Any:
    """An ONNX model of opset 23; inputs are name → (numpy's type name, shape), weights are arrays."""
    import onnx
    from onnx import helper, numpy_helper

    def kind(name: str) -> int:
        return helper.np_dtype_to_tensor_dtype(np.dtype(name))

    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, kind(dtype), shape) for name, (dtype, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    made = onnx.shape_inference.infer_shapes(made)  # the outputs' shapes
    onnx.checker.check_model(made)
    return made


def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(op, list(inputs), [output], name=f"{op.lower()}_{output}", **attributes)


def pair(source: str, target: str, *, scale: str = "s", zero: str = "z") -> list[Any]:
    """Quantise and dequantise: source → target."""
    return [
        node("QuantizeLinear", [source, scale, zero], f"{target}_q"),
        node("DequantizeLinear", [f"{target}_q", scale, zero], target),
    ]


def run(proto: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """ONNX Runtime with all optimisation off."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def rewritten(rule: Any, proto: Any) -> tuple[Any, Any]:
    """(the pass's result, the new model), checked and without what nobody uses any more."""
    import onnx
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    graph = ir.from_proto(proto)
    result = rule.run(graph)
    RemoveUnusedNodesPass()(graph)
    made = ir.to_proto(graph)
    onnx.checker.check_model(made)
    return result, made


def ops(proto: Any) -> list[str]:
    return sorted(n.op_type for n in proto.graph.node)


def random(shape: Sequence[int], seed: int = 0) -> Any:
    return (3 * np.random.default_rng(seed).standard_normal(tuple(shape))).astype(np.float32)
