"""An .onnx file: checked, described and digested; its external data is read from its own folder only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from vengine.digests import digest_json
from vengine.errors import SourceError
from vengine.sources.checkpoint import brief
from vengine.sources.metadata import FETCH_AGAIN, class_names, licence, read_settings, several_labels, short_name
from vengine.sources.safetensors_file import NumberScan
from vengine.sources.shapes import require_numbers, specs_of
from vengine.sources.tokenizer_files import find_tokenizer
from vengine.types import Source, Task, TensorSpec

OLDEST_OPSET = 11
_OTHER_FREE = 224  # heights and widths, in nearly all vision models
# Operator sets that ONNX Runtime brings besides the standard one.
_KNOWN_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc")


@dataclass(frozen=True, kw_only=True)
class GraphWeights:
    """What a graph's weights are, by content."""

    digest: str
    parameters: int
    weight_bytes: int
    notes: tuple[str, ...]


def inspect(
    path: Path,
    *,
    cache: Path,
    location: str | None = None,
    task: Task | None = None,
    name: str | None = None,
    stated_licence: str = "unknown",
    notes: tuple[str, ...] = (),
) -> Source:
    """Read and check an .onnx file, and run it at two sizes to learn what is free in its outputs.

    Raises:
        SourceError: damaged, an opset below 11, an unknown operator, unsafe external data.
    """
    model = read_model(path)
    weights = read_graph_weights(model)
    found = find_tokenizer_beside(path, cache)
    text = found is not None and any(i.name == "input_ids" for i in model.graph.input)
    inputs = input_specs(model, text=text)
    require_numbers(inputs, "input", path)
    outputs, vocabulary_notes = _run_twice(path, inputs)
    require_numbers(outputs, "output", path)
    settled = settle_task(task, outputs if text else (), path)
    config = read_settings(path.parent / "config.json") or read_settings(path.parent.parent / "config.json")
    own = licence(path.parent)
    return Source(
        kind="onnx",
        name=short_name(name or path.stem),
        location=location or str(path),
        path=path,
        task=settled,
        digest=digest_json(
            {
                "weights": weights.digest,
                "graph": _skeleton_digest(model),
                "tokenizer": found.digest if text and found else None,
                "task": settled,
            }
        ),
        licence=stated_licence if own == "unknown" else own,
        parameters=weights.parameters,
        weight_bytes=weights.weight_bytes,
        inputs=inputs,
        outputs=outputs,
        tokenizer=found.path if text and found else None,
        max_tokens=_max_tokens(path, config) if text else None,
        labels=_fitting_labels(config, outputs),
        several_labels=several_labels(config),
        architecture=model.producer_name or "",
        notes=(*notes, *(found.notes if text and found else ()), *weights.notes, *vocabulary_notes),
    )


def find_tokenizer_beside(path: Path, cache: Path) -> Any:
    """The tokenizer in the file's folder or the one above it; None when there is none."""
    for directory in (path.parent, path.parent.parent):
        if (directory / "tokenizer.json").is_file() or (directory / "tokenizer_config.json").is_file():
            return find_tokenizer(directory, cache=cache)
    return None


def read_model(path: Path) -> Any:
    """The whole model with its external data in memory, after all checks that need no engine.

    Raises:
        SourceError: see `inspect`.
    """
    import onnx

    try:
        model = onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise SourceError(
            f"the file can't be read: {error.strerror}", where=str(path), next_step="check the path and its rights"
        ) from error
    except Exception as error:  # protobuf's DecodeError
        raise SourceError(
            f"this is not a whole ONNX file: {brief(error)}", where=str(path), next_step="fetch the file again"
        ) from error
    if not model.graph.node or not model.opset_import:
        raise SourceError("the file holds no ONNX graph", where=str(path), next_step="fetch the file again")
    _check_external_data(model, path)
    check_operators(model, path)
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
        onnx.checker.check_model(str(path))
    except Exception as error:
        raise SourceError(
            f"the ONNX checker refuses the model: {brief(error)}",
            where=str(path),
            next_step="export it again; onnx.checker.check_model(PATH) says more",
        ) from error
    return model


def opset_of(model: Any) -> int:
    """The version of the standard operator set that the model uses."""
    return next((int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)


def check_operators(model: Any, path: Path) -> None:
    """Refuse old opsets and operators that nobody knows.

    Raises:
        SourceError: naming the operator and its node.
    """
    import onnx

    opset = opset_of(model)
    if opset < OLDEST_OPSET:
        raise SourceError(
            f"the model uses opset {opset}; the oldest that is supported is {OLDEST_OPSET}",
            where=str(path),
            next_step=f"export it again, or convert it: onnx.version_converter.convert_version(model, {OLDEST_OPSET})",
        )
    own = {(f.domain, f.name) for f in model.functions}
    for node in _nodes(model.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        standard = domain == "" and not onnx.defs.has(node.op_type, opset, "")
        if (standard or domain not in _KNOWN_DOMAINS) and (node.domain, node.op_type) not in own:
            full = f"{domain}::{node.op_type}" if domain else node.op_type
            raise SourceError(
                f"unknown operator {full} in opset {opset}",
                where=f"{path}, node {node.name or '(without a name)'}",
                next_step="export the model with standard operators",
            )


def _nodes(graph: Any) -> Iterator[Any]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _nodes(inner)


def _tensors(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in _nodes(graph):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            yield from attribute.g.initializer


def _check_external_data(model: Any, path: Path) -> None:
    for tensor in _tensors(model.graph):
        if not tensor.external_data:
            continue
        entry = {item.key: item.value for item in tensor.external_data}
        location = entry.get("location", "")
        parts = PurePosixPath(location.replace("\\", "/"))
        if not location or parts.is_absolute() or ".." in parts.parts or ":" in location:
            raise SourceError(
                f"tensor {tensor.name} points to unsafe external data: {location!r}",
                where=str(path),
                next_step="don't use this file: a model has no business outside its own folder",
            )
        file = path.parent / location
        if not file.is_file():
            raise SourceError(
                f"the file with the weights is missing: {location}",
                where=str(path),
                next_step="keep both files in one folder, under their own names",
            )
        end = _whole_number(entry.get("offset"), path) + _whole_number(entry.get("length"), path)
        if end > file.stat().st_size:
            raise SourceError(
                f"{location} is truncated: tensor {tensor.name} ends at byte {end} of {file.stat().st_size}",
                where=str(path),
                next_step="fetch the file again",
            )


def _whole_number(text: str | None, path: Path) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise SourceError(f"{text!r} is no place in a file of weights", where=str(path), next_step=FETCH_AGAIN)
    return int(text)


def read_graph_weights(model: Any) -> GraphWeights:
    """Digest and scan a graph's initialisers: names, types, shapes and values, wherever the bytes lie."""
    from onnx import numpy_helper

    sha, scan = hashlib.sha256(), NumberScan()
    parameters = size = 0
    for tensor in sorted(model.graph.initializer, key=lambda t: t.name):
        array = numpy_helper.to_array(tensor)
        sha.update(json.dumps([tensor.name, int(tensor.data_type), list(tensor.dims)]).encode())
        sha.update(np.ascontiguousarray(array).tobytes())
        parameters, size = parameters + int(array.size), size + int(array.nbytes)
        if array.dtype.kind == "f":
            scan.see(tensor.name, array)
    return GraphWeights(
        digest="sha256:" + sha.hexdigest(), parameters=parameters, weight_bytes=size, notes=scan.notes()
    )


def _skeleton_digest(model: Any) -> str:
    """Digest of the graph without its weights and without who made it when."""
    import onnx

    bare = onnx.ModelProto()
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    graph = bare.graph
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    for node in _nodes(graph):
        node.doc_string = ""
        del node.metadata_props[:]
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def input_specs(model: Any, *, text: bool) -> tuple[TensorSpec, ...]:
    """Specs of the graph's inputs, weights left out; free first axes are "batch", free second axes of texts "length".

    Raises:
        SourceError: an input that is no dense tensor.
    """
    import onnx

    weights = {tensor.name for tensor in model.graph.initializer}
    specs = []
    for value in model.graph.input:
        if value.name in weights:
            continue
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            raise SourceError(f"input {value.name} is not a tensor of known rank", where=model.graph.name)
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        shape = tuple(
            int(dim.dim_value) if dim.dim_value > 0 else _free_name(value.name, axis, dim.dim_param, text)
            for axis, dim in enumerate(kind.shape.dim)
        )
        specs.append(TensorSpec(name=value.name, dtype=dtype, shape=shape))
    return tuple(specs)


def _free_name(name: str, axis: int, stated: str, text: bool) -> str:
    if axis == 0:
        return "batch"
    if axis == 1 and text:
        return "length"
    return stated or f"{name}_{axis}"


def _run_twice(path: Path, inputs: tuple[TensorSpec, ...]) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
    """The outputs' specs, from runs with all optimisation off at two sizes of whatever is free."""
    session = plain_session(path)
    free = list(dict.fromkeys(d for spec in inputs for d in spec.shape if isinstance(d, str)))
    sizes = [{d: _size(d, at) for d in free} for at in (0, 1)]
    runs = []
    for chosen in sizes if free else sizes[:1] * 2:
        feeds = {spec.name: _ones(spec, chosen) for spec in inputs}
        try:
            values = session.run(None, feeds)
        except Exception as error:
            raise SourceError(f"the model doesn't run at {chosen}: {brief(error)}", where=str(path)) from error
        runs.append(dict(zip([o.name for o in session.get_outputs()], values, strict=True)))
    finite = all(np.isfinite(v).all() for run in runs for v in run.values() if v.dtype.kind == "f")
    notes = () if finite else ("with inputs of ones the model gives NaN or infinite values",)
    try:
        return specs_of(runs[0], runs[1], sizes[0], sizes[1]), notes
    except ValueError as error:
        raise SourceError(str(error), where=str(path)) from error


def _size(dim: str, at: int) -> int:
    if dim == "batch":
        return (2, 3)[at]
    if dim == "length":
        return (5, 7)[at]
    return _OTHER_FREE + 32 * at  # a multiple of 32: what strided networks want


def _ones(spec: TensorSpec, sizes: Mapping[str, int]) -> Any:
    return np.ones([sizes[d] if isinstance(d, str) else d for d in spec.shape], dtype=spec.dtype)


def plain_session(path: Path) -> Any:
    """ONNX Runtime with all optimisation off: the meaning of the file, as directly as it can be run.

    Raises:
        SourceError: the runtime can't load the model; its message names the operator or the version.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4  # failures arrive as exceptions
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # a few calls, nothing is timed
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise SourceError(
            f"ONNX Runtime {onnxruntime.__version__} can't load the model: {brief(error)}", where=str(path)
        ) from error


def settle_task(asked: Task | None, outputs: tuple[TensorSpec, ...], path: Path) -> Task:
    """What the outputs mean: asked for, or read from their names and ranks; "tensor" without a tokenizer.

    Raises:
        SourceError: the asked task needs a tokenizer or a rank that isn't there.
    """
    found = _task_of(outputs)
    if asked is None or asked == found:
        return found
    if not outputs and asked != "tensor":
        raise SourceError(
            f"{asked} needs texts, and there is no tokenizer.json beside the model",
            where=str(path),
            next_step="put the tokenizer beside the model, or leave --task out",
        )
    rank = {"features": 3, "token-classification": 3}.get(asked, 2)
    if asked != "tensor" and all(len(o.shape) != rank for o in outputs):
        raise SourceError(f"no output fits {asked}: it needs {rank} dimensions", where=str(path))
    return asked


def _task_of(outputs: tuple[TensorSpec, ...]) -> Task:
    if not outputs:
        return "tensor"
    by_name = {o.name: o.shape for o in outputs}
    if "sentence_embedding" in by_name:
        return "embedding"
    logits = by_name.get("logits")
    if logits is not None:
        return "token-classification" if len(logits) == 3 else "scoring" if logits[-1] == 1 else "classification"
    return "features" if len(outputs[0].shape) == 3 else "embedding"


def _max_tokens(path: Path, config: Mapping[str, Any]) -> int | None:
    limits = []
    for directory in (path.parent, path.parent.parent):
        limits += [
            read_settings(directory / "tokenizer_config.json").get("model_max_length"),
            read_settings(directory / "sentence_bert_config.json").get("max_seq_length"),
        ]
    limits.append(config.get("max_position_embeddings"))
    usable = [int(x) for x in limits if isinstance(x, (int, float)) and 0 < x < 1e7]
    return min(usable, default=None)


def _fitting_labels(config: Mapping[str, Any], outputs: tuple[TensorSpec, ...]) -> tuple[str, ...]:
    names = class_names(config)
    return names if names and any(o.shape[-1:] == (len(names),) for o in outputs) else ()
