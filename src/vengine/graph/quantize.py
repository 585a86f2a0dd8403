"""Integer variants of an exported graph, made by the field's own quantisers.

Static int8 comes from NNCF's post-training quantisation of the ONNX graph itself (transformer model type: SmoothQuant
and bias correction included): one QDQ file that OpenVINO and ONNX Runtime both open. Dynamic int8 comes from ONNX
Runtime.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vengine.errors import EngineMissing, UsageError
from vengine.graph import lints, units
from vengine.graph.keep_list import require_word
from vengine.graph.passes import idle_quantizers, late_dequantize, portable_weights, unsigned_activations
from vengine.graph.running_mean import running_means
from vengine.types import PassResult

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

# After the quantiser, in this order; units are taken back into float behind the first one.
PIPELINE = (idle_quantizers, unsigned_activations, late_dequantize)
MODEL_FILE = "model.onnx"
COULD_SATURATE = "could-saturate"
RAW_FOLDER = "raw"  # what the quantiser made, before the passes: `finish` starts there again


def quantize_static(
    model: Path,
    target: Path,
    calibration: Sequence[dict[str, np.ndarray]],
    *,
    transformer: bool,
    half_range: bool = False,
    op_types: Sequence[str] = (),
    keep: Sequence[str] = (),
    portable: bool = False,
) -> tuple[PassResult, ...]:
    """Write `target`/model.onnx: weights int8 per channel, activations uint8 per tensor.

    Args:
        calibration: feeds of the model, real ones; each is one call.
        transformer: use NNCF's transformer scheme (SmoothQuant, no quantised attention scores).
        half_range: weights use 7 of their 8 bits, so that no pair sum overflows 16 bits on a CPU without VNNI.
        op_types: quantise only these operator types; () = what the quantiser knows.
        keep: operator types or node names that stay in float: the quantiser never sees them.
        portable: shrink weights where a CPU without VNNI could saturate, and only there (`passes.portable_weights`).

    Raises:
        UsageError: `keep` or `op_types` names nothing in the graph, or nothing was quantised.
    """
    calibrated(model, target, calibration, transformer=transformer, half_range=half_range, op_types=op_types, keep=keep)
    return finish(model, target / RAW_FOLDER, target, portable=portable)


def calibrated(
    model: Path,
    target: Path,
    calibration: Sequence[dict[str, np.ndarray]],
    *,
    transformer: bool,
    half_range: bool = False,
    op_types: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> None:
    """Write `target`/raw/model.onnx: what the quantiser makes of the graph. See `quantize_static`."""
    import onnx
    import onnx_ir as ir

    # The weights stay outside: the quantiser serialises the graph again and again.
    proto = onnx.load(str(model), load_external_data=False)
    ignored = _ignored([(n.name, n.op_type) for n in proto.graph.node], op_types, keep)
    quantized = _nncf(proto, calibration, transformer, half_range, ignored, weights_in=model.parent)
    graph = ir.from_proto(quantized)
    ir.external_data.set_base_dir(graph.graph, model.parent)
    if not _quantizers(graph):
        raise UsageError(
            "static int8 was asked for and nothing was quantised",
            where=str(model),
            next_step="widen --op-types or leave int8 out with --precision",
        )
    _save(graph, target / RAW_FOLDER)


def finish(
    model: Path, raw: Path, target: Path, *, in_float: Sequence[str] = (), portable: bool = False
) -> tuple[PassResult, ...]:
    """Write `target`/model.onnx: what the quantiser made, with some units back in float, made fit for the engines.

    Args:
        model: the graph that was quantised.
        raw: the folder that `calibrated` wrote.
        in_float: names of units that are computed in float again.
        portable: see `quantize_static`.

    Returns:
        One result a pass. The last one, `could-saturate`, counts the products that are right on a CPU with VNNI only
        and names them; with none of them the artefact is portable.

    Raises:
        UsageError: `in_float` names no unit, or leaves nothing quantised.
    """
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    graph, original = ir.load(str(raw / MODEL_FILE)), ir.load(str(model))
    results = [PassResult(name="nncf-static-int8", exactness="lossy", matched=_quantizers(graph))]
    results += [*lints.before(original), *lints.after(graph)]
    for rule in PIPELINE:
        results.append(rule.run(graph))
        if rule is PIPELINE[0] and in_float:
            results.append(units.take_back(original, graph, in_float))
        RemoveUnusedNodesPass()(graph)
    if not _quantizers(graph):
        raise UsageError("every quantised node was taken back into float, so nothing is quantised", where=str(model))
    if portable:
        results.append(portable_weights.run(graph))
    results.append(_saturation(graph))
    _save(graph, target)
    return tuple(results)


def _saturation(graph: ir.Model) -> PassResult:
    """Which integer products depend on VNNI, proven from their weights alone."""
    found = portable_weights.could_saturate(graph)
    reason = "some input could overflow its 16-bit pair sums on a CPU without VNNI"
    return PassResult(
        name=COULD_SATURATE, exactness="bitwise", matched=len(found), refusals=tuple((name, reason) for name in found)
    )


def _quantizers(graph: ir.Model) -> int:
    return sum(node.op_type == "QuantizeLinear" for node in graph.graph)


def _nncf(
    proto: Any,
    calibration: Sequence[dict[str, np.ndarray]],
    transformer: bool,
    half_range: bool,
    ignored: list[str],
    weights_in: Path | None = None,
) -> Any:
    try:
        import nncf
    except ImportError as error:
        raise EngineMissing(
            "static int8 needs nncf", next_step="pip install 'vengine[optimize]', or leave int8 out with --precision"
        ) from error
    logging.getLogger("nncf").setLevel(logging.ERROR)
    advanced = nncf.AdvancedQuantizationParameters(
        overflow_fix=nncf.OverflowFix.ENABLE if half_range else nncf.OverflowFix.DISABLE,
        backend_params={"external_data_dir": str(weights_in.absolute())} if weights_in else {},
    )
    with running_means():
        return nncf.quantize(
            proto,
            nncf.Dataset(list(calibration)),
            subset_size=len(calibration),
            preset=nncf.QuantizationPreset.MIXED,
            model_type=nncf.ModelType.TRANSFORMER if transformer else None,
            ignored_scope=nncf.IgnoredScope(names=ignored) if ignored else None,
            advanced_parameters=advanced,
        )


def quantize_dynamic(
    model: Path,
    target: Path,
    *,
    half_range: bool = False,
    op_types: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> tuple[PassResult, ...]:
    """Write `target`/model.onnx: weights int8, activations quantised at run time, one scale a call.

    The scale depends on the whole batch, so an answer depends on its neighbours: the verifier measures how far.
    `half_range` as for `quantize_static`.

    Raises:
        UsageError: as `quantize_static`.
    """
    import onnx
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as ort_dynamic

    nodes = [(n.name, n.op_type) for n in onnx.load(str(model), load_external_data=False).graph.node]
    left_out = set(_ignored(nodes, op_types, keep))
    wanted = {kind for name, kind in nodes if name not in left_out} if op_types else {"MatMul", "Gemm"}
    target.mkdir(parents=True, exist_ok=True)
    ort_dynamic(
        str(model),
        str(target / MODEL_FILE),
        weight_type=QuantType.QInt8,
        per_channel=True,
        reduce_range=half_range,
        op_types_to_quantize=sorted(wanted),
        nodes_to_exclude=sorted(left_out),
        use_external_data_format=True,
        extra_options={"MatMulConstBOnly": True},
    )
    made = onnx.load(str(target / MODEL_FILE), load_external_data=False).graph.node
    found = sum(node.op_type in ("MatMulInteger", "DynamicQuantizeMatMul", "ConvInteger") for node in made)
    if not found:
        raise UsageError(
            "dynamic int8 was asked for and nothing was quantised",
            where=str(model),
            next_step="the graph has no matrix product with constant weights: leave int8 out with --precision",
        )
    return (PassResult(name="onnxruntime-dynamic-int8", exactness="lossy", matched=found),)


def quantize_ir(
    model: Path,
    target: Path,
    calibration: Sequence[dict[str, np.ndarray]],
    *,
    transformer: bool,
    half_range: bool = False,
    op_types: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> tuple[PassResult, ...]:
    """Static int8 of an OpenVINO IR: writes `target`/model.xml and model.bin. See `quantize_static`."""
    import openvino as ov

    target.mkdir(parents=True, exist_ok=True)
    graph = ov.Core().read_model(str(model))
    ignored = _ignored([(op.get_friendly_name(), op.get_type_name()) for op in graph.get_ordered_ops()], op_types, keep)
    quantized = _nncf(graph, calibration, transformer, half_range, ignored)
    found = sum(op.get_type_name() == "FakeQuantize" for op in quantized.get_ops())
    if not found:
        raise UsageError("static int8 was asked for and nothing was quantised", where=str(model))
    ov.save_model(quantized, str(target / "model.xml"), compress_to_fp16=False)
    return (PassResult(name="nncf-static-int8", exactness="lossy", matched=found),)


def _ignored(nodes: Sequence[tuple[str, str]], op_types: Sequence[str], keep: Sequence[str]) -> list[str]:
    """Names of the (name, type) nodes that stay in float; every word of the user must mean something."""
    types = dict(nodes)
    for word in (*keep, *op_types):
        require_word(word, types)
    kept = {name for name, kind in nodes if name in keep or kind in keep}
    if op_types:
        kept |= {name for name, kind in nodes if kind not in op_types and name not in op_types}
    return sorted(kept)


def _save(graph: ir.Model, target: Path) -> None:
    import onnx_ir as ir

    target.mkdir(parents=True, exist_ok=True)
    ir.save(graph, str(target / MODEL_FILE), external_data=f"{MODEL_FILE}.data")
