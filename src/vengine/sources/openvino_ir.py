"""An OpenVINO IR: a graph in .xml and its weights in a .bin of the same name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vengine.digests import digest_file, digest_json
from vengine.errors import SourceError
from vengine.sources.checkpoint import brief
from vengine.sources.metadata import class_names, licence, read_settings, several_labels, short_name
from vengine.sources.onnx_file import find_tokenizer_beside, settle_task
from vengine.sources.shapes import require_numbers
from vengine.types import Source, Task, TensorSpec

_NUMPY = {"f32": "float32", "f16": "float16", "f64": "float64", "boolean": "bool"}


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
    """Read an IR with OpenVINO's own reader; nothing is compiled or run.

    Raises:
        SourceError: the .bin is missing, a file is damaged, or OpenVINO isn't installed.
    """
    model = read_model(path)
    found = find_tokenizer_beside(path, cache)
    text = found is not None and any("input_ids" in port.get_names() for port in model.inputs)
    inputs = tuple(_spec(port, at, text, "input") for at, port in enumerate(model.inputs))
    outputs = tuple(_spec(port, at, text, "output") for at, port in enumerate(model.outputs))
    require_numbers(inputs, "input", path)
    require_numbers(outputs, "output", path)
    settled = settle_task(task, outputs if text else (), path)
    parameters, size = _weights(model)
    config = read_settings(path.parent / "config.json")
    labels = class_names(config)
    own = licence(path.parent)
    return Source(
        kind="openvino",
        name=short_name(name or path.stem),
        location=location or str(path),
        path=path,
        task=settled,
        digest=digest_json(
            {
                "xml": digest_file(path),
                "bin": digest_file(path.with_suffix(".bin")),
                "tokenizer": found.digest if text and found else None,
                "task": settled,
            }
        ),
        licence=stated_licence if own == "unknown" else own,
        parameters=parameters,
        weight_bytes=size,
        inputs=inputs,
        outputs=outputs,
        tokenizer=found.path if text and found else None,
        labels=labels if any(o.shape[-1:] == (len(labels),) for o in outputs) else (),
        several_labels=several_labels(config),
        architecture=str(model.get_friendly_name()),
        notes=(*notes, *(found.notes if text and found else ()), "an OpenVINO model runs on the openvino engine only"),
    )


def read_model(path: Path) -> Any:
    """The `openvino.Model` of an .xml file.

    Raises:
        SourceError: see `inspect`.
    """
    weights = path.with_suffix(".bin")
    if not weights.is_file():
        raise SourceError(
            f"the weights are missing: {weights.name}",
            where=str(path),
            next_step="keep the .xml and its .bin in one folder, under one name",
        )
    try:
        import openvino
    except ImportError as error:
        raise SourceError(
            "an OpenVINO model can't be read without openvino",
            where=str(path),
            next_step="pip install 'vengine[openvino]'",
        ) from error
    try:
        return openvino.Core().read_model(str(path), str(weights))
    except RuntimeError as error:
        raise SourceError(
            f"OpenVINO can't read the model: {brief(error)}", where=str(path), next_step="fetch both files again"
        ) from error


def _spec(port: Any, place: int, text: bool, kind: str) -> TensorSpec:
    names = sorted(port.get_names())
    name = names[0] if names else f"{kind}_{place}"
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        raise SourceError(f"{kind} {name} has no known rank")
    dtype = str(port.get_element_type().get_type_name())
    return TensorSpec(
        name=name,
        dtype=_NUMPY.get(dtype, dtype.replace("i", "int").replace("u", "uint") if dtype[0] in "iu" else dtype),
        shape=tuple(
            int(dim.get_length()) if dim.is_static else _free_name(name, axis, text) for axis, dim in enumerate(shape)
        ),
    )


def _free_name(name: str, axis: int, text: bool) -> str:
    if axis == 0:
        return "batch"
    return "length" if axis == 1 and text else f"{name}_{axis}"


def _weights(model: Any) -> tuple[int, int]:
    """Number and bytes of the graph's constants."""
    count = size = 0
    for op in model.get_ops():
        if op.get_type_name() == "Constant":
            count += int(op.data.size)
            size += int(op.data.nbytes)
    return count, size
