"""A model file in fp16 or bf16: the keep-list is searched, the graph converted, the file checked and loaded."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vengine.errors import UsageError
from vengine.graph.half_precision import HALF_TYPES, HalfType, check, convert, lost_weights
from vengine.graph.keep_list import find_keep_list
from vengine.graph.rounding import Feeds, typed_model
from vengine.types import PassResult

if TYPE_CHECKING:
    import onnx_ir as ir

MODEL_FILE = "model.onnx"
KEEP_PASS = "keep-list"
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "Attention"})


def write_half(
    model: Path,
    target: Path,
    kind: str,
    samples: Sequence[Feeds],
    *,
    keep: Collection[str] = (),
    op_types: Collection[str] = (),
    keep_io_types: bool = True,
    tight: bool = False,
) -> tuple[PassResult, ...]:
    """Write `target`/model.onnx in fp16 or bf16.

    Args:
        model: the ONNX file in fp32.
        kind: "fp16" or "bf16".
        samples: calls on which the keep-list is searched.
        keep: operator types or node names that stay in fp32 in any case.
        op_types: operator types or node names that may be converted; () = all that take the type.
        keep_io_types: inputs and outputs stay in fp32.
        tight: allow a quarter of the error that plain conversion has, where that is less than the usual tolerance.

    Returns:
        How many nodes were converted, with each node that stays and why; and what became of the weights.

    Raises:
        UsageError: a word names nothing in the graph, or nothing was converted.
    """
    half = HALF_TYPES[kind]
    graph = typed_model(model)
    kept = find_keep_list(model, half, samples, force=keep, only=op_types, tight=tight).kept
    stays = {k.node for k in kept}
    weights = _weights_told(graph, half, stays)
    count = convert(graph, half, stays, keep_io_types=keep_io_types)
    if not count:
        raise UsageError(
            f"{kind} was asked for and nothing was converted",
            where=str(model),
            next_step="keep fewer nodes in fp32, or leave the precision out",
        )
    _save(graph, target)
    check(target / MODEL_FILE, half)
    _load(target / MODEL_FILE, half)
    rows = tuple((k.node, k.reason) for k in kept)
    return (
        PassResult(name=f"to-{kind}", exactness="lossy", matched=count, refusals=weights),
        PassResult(name=KEEP_PASS, exactness="bitwise", matched=len(kept), refusals=rows),
    )


def write_half_int8(
    model: Path,
    target: Path,
    kind: str,
    samples: Sequence[Feeds],
    *,
    keep: Collection[str] = (),
    op_types: Collection[str] = (),
    keep_io_types: bool = True,
    tight: bool = False,
) -> tuple[PassResult, ...]:
    """Write an int8 graph (quantise and dequantise nodes) whose remaining products and attention run in the type.

    Elsewhere casts would cost more than they save: measured, converting every float node made 8 × 128 of
    all-MiniLM-L6-v2 slower than fp32 around int8 (315 against 288 ms on a busy machine), converting attention alone
    made it as fast as OpenVINO's own bf16 (270 against 266).

    Args:
        model: the int8 graph; its own answers in fp32 are what the keep-list is searched against.
        keep, op_types: as `write_half`; words that quantisation has removed from the graph are no mistakes.

    Raises:
        UsageError: as `write_half`.
    """
    nodes = list(typed_model(model).graph)
    names = {word for node in nodes for word in (node.name or "", node.op_type)}
    products = [n.name or "" for n in nodes if n.op_type in _PRODUCTS and not _is_quantised(n)]
    wanted = [n for n in products if not op_types or {n, _type(nodes, n)} & set(op_types)]
    if not wanted:
        raise UsageError(
            f"{kind} was asked for beside int8, and no product is left that it could have",
            where=str(model),
            next_step="leave the precision out, or ask for 'int8'",
        )
    known = [word for word in keep if word in names]
    return write_half(
        model, target, kind, samples, keep=known, op_types=wanted, keep_io_types=keep_io_types, tight=tight
    )


def _is_quantised(node: ir.Node) -> bool:
    before = [value.producer() for value in node.inputs if value is not None]
    return any(producer is not None and producer.op_type == "DequantizeLinear" for producer in before)


def _type(nodes: Sequence[ir.Node], name: str) -> str:
    return str(next(node.op_type for node in nodes if node.name == name))


def _weights_told(graph: ir.Model, half: HalfType, stays: Collection[str]) -> tuple[tuple[str, str], ...]:
    """What rounding the weights of converted nodes loses, counted: nothing is clamped."""
    arrays = [
        value.const_value.numpy()
        for value in graph.graph.initializers.values()
        if value.const_value is not None and value.dtype is not None and value.dtype.name == "FLOAT"
        if any(node.name not in stays for node, _ in value.uses())
    ]
    zero, denormal, over = lost_weights(arrays, half)
    total = sum(array.size for array in arrays)
    told = (
        (zero, f"become 0 (their size is below {half.smallest / 2:.2g})"),
        (denormal, f"lose digits (their size is below {half.smallest_normal:.2g})"),
        (over, f"become infinite (their size is beyond {half.largest:.4g})"),
    )
    return tuple(("weights", f"{count:,} of {total:,} {what}") for count, what in told if count)


def _save(graph: ir.Model, target: Path) -> None:
    import onnx_ir as ir

    target.mkdir(parents=True, exist_ok=True)
    ir.save(graph, str(target / MODEL_FILE), external_data=f"{MODEL_FILE}.data")


def _load(path: Path, half: HalfType) -> Any:
    """Open the file in an engine that has the type: ONNX Runtime has no products in bf16 on a CPU, OpenVINO has."""
    if half.name == "fp16":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    import openvino

    return openvino.Core().read_model(path)
