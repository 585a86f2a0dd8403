"""From an untouched model to an ONNX graph with external data that answers the same.

Generic: the graph comes from the forward's signature and sample inputs, there is no table of architectures.
After it is written it runs at several sizes, with left and right padding and with a row that is all padding,
beside the original. Newer operator sets are tried first: opset 23 has an `Attention` operator, which engines
run faster than the dozen operators that stand for it in opset 20.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vengine.errors import ExportError, LimitError, SourceError
from vengine.graph.export_checks import Case, Check, Outcome, cases_for, compare
from vengine.sources import huggingface, onnx_file, torch_module
from vengine.sources.checkpoint import brief
from vengine.sources.feeds import example_feeds
from vengine.sources.silence import quiet
from vengine.types import Source, TensorSpec

MODEL, DATA = "model.onnx", "model.onnx.data"
OPSETS = (23, 20, 18)  # in the order in which they are tried
EXTERNAL_FROM_BYTES = 1024  # smaller tensors stay in the graph, where shape inference looks for them
_FIRST_SIZES = {"batch": 2, "length": 16}  # what is traced; a size of 1 would be taken for a constant

Run = Callable[[Mapping[str, Any]], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A graph that passed its checks."""

    path: Path  # model.onnx; its weights lie beside it in model.onnx.data
    opset: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()


def export(source: Source, directory: Path) -> Exported:
    """Write the source as `directory`/model.onnx and check that it answers as the original does.

    Args:
        source: a Hugging Face directory, a traced module or an .onnx file.
        directory: made when missing; files of an earlier export are replaced.

    Raises:
        ExportError: it can't be exported, or a check failed; the message names the check and by how much.
        SourceError: the source can't be read any more.
        LimitError: the graph can't be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if source.kind == "onnx":
        return _copy(source, directory)
    if source.kind == "openvino":
        raise ExportError(
            "an OpenVINO model can't be turned into ONNX", where=str(source.path), next_step="use the openvino engine"
        )
    module, program = _traced(source)
    refused: list[str] = []
    for opset in OPSETS:
        try:
            write_program(program, directory, opset, (source.inputs, source.outputs), where=source.location)
            outcome = _check(source, directory / MODEL, torch_run(module))
        except ExportError as error:
            refused.append(f"opset {opset}: {error.what}")
            continue
        return Exported(
            path=directory / MODEL,
            opset=opset,
            inputs=source.inputs,
            outputs=source.outputs,
            checks=outcome.checks,
            notes=(*outcome.notes, *(f"not used, {reason}" for reason in refused)),
        )
    remove(directory)
    raise ExportError(
        "the exported graph doesn't agree with the original: " + "; ".join(refused),
        where=source.location,
        next_step="the torch engine still runs this model as it is",
    )


def _traced(source: Source) -> tuple[Any, Any]:
    """The original's module and its traced program."""
    import torch

    if source.kind == "torch":
        program = torch_module.load_exported(source.path)
        return program.module(), program
    module = huggingface.load_module(source.path, source.task)
    feeds = example_feeds(source, _FIRST_SIZES["batch"], _traced_length(source))
    axes = {
        spec.name: {axis: dim for axis, dim in enumerate(spec.shape) if isinstance(dim, str)} for spec in source.inputs
    }
    tensors = {name: torch.from_numpy(array) for name, array in feeds.items()}
    try:
        with torch.no_grad(), quiet():
            return module, torch_module.trace(module, tensors, axes)
    except Exception as error:  # torch.export raises many kinds
        raise ExportError(
            f"torch can't trace the model with a free batch and length: {brief(error)}",
            where=source.location,
            next_step="the torch engine still runs this model as it is",
        ) from error


def _traced_length(source: Source) -> int:
    return min(_FIRST_SIZES["length"], source.max_tokens or _FIRST_SIZES["length"])


def write_program(
    program: Any, directory: Path, opset: int, specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]], where: str = ""
) -> None:
    """Write a traced program as `directory`/model.onnx with external data; earlier files are replaced.

    Args:
        specs: the inputs and outputs that it shall have, with their axes' names; an output without axes keeps its own.

    Raises:
        ExportError: the exporter refuses it.
        LimitError: the file can't be written.
    """
    import torch

    remove(directory)
    try:
        with quiet():
            made = torch.onnx.export(
                program,
                (),
                dynamo=True,
                opset_version=opset,
                input_names=[spec.name for spec in specs[0]],
                output_names=[spec.name for spec in specs[1]],
                verbose=False,
            )
            _tidy(made.model, *specs)
            _save(made.model, directory)
    except Exception as error:  # the exporter raises many kinds
        cause = _innermost(error)
        if isinstance(cause, OSError):  # the disk's fault, which no other opset mends
            raise LimitError(
                f"the exported graph can't be written: {cause.strerror or cause}",
                where=str(directory),
                next_step="free some space, or name another folder for unfinished work with VENGINE_CACHE",
            ) from error
        raise ExportError(f"the exporter refuses the model: {brief(cause)}", where=where) from error


def _innermost(error: BaseException) -> BaseException:
    """The innermost cause says what; the outer ones are the exporter's advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _save(model: Any, directory: Path) -> None:
    import onnx_ir

    onnx_ir.save(model, directory / MODEL, external_data=DATA, size_threshold_bytes=EXTERNAL_FROM_BYTES)


def _tidy(model: Any, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Name the free dimensions, and drop what the exporter says about this machine's files."""
    names: dict[str, str] = {}
    for value, spec in zip(model.graph.inputs, inputs, strict=True):
        for dim, wanted in zip(value.shape, spec.shape, strict=True):
            if isinstance(wanted, str):
                names[str(getattr(dim, "value", dim))] = wanted
    for value in (*model.graph.inputs, *(out for node in model.graph for out in node.outputs)):
        _rename(value, names)
        value.metadata_props.clear()
    for value, spec in zip(model.graph.outputs, outputs, strict=True):
        if spec.shape:
            _set_shape(value, spec.shape)
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
    model.metadata_props.clear()
    model.graph.metadata_props.clear()


def _rename(value: Any, names: Mapping[str, str]) -> None:
    if value.shape is None:
        return
    dims = [dim if isinstance(dim, int) else getattr(dim, "value", None) for dim in value.shape]
    renamed = [_renamed(dim, names) if isinstance(dim, str) else dim for dim in dims]
    if renamed != dims:
        _set_shape(value, renamed)


def _renamed(dim: str, names: Mapping[str, str]) -> str:
    return re.sub(r"[A-Za-z_]\w*", lambda word: names.get(word.group(), word.group()), dim)


def _set_shape(value: Any, dims: Any) -> None:
    import onnx_ir

    value.shape = onnx_ir.Shape(list(dims))


def torch_run(module: Any) -> Run:
    """The module as a function of numpy arrays."""
    import torch

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        with torch.no_grad(), quiet():
            answer = module(**{name: torch.from_numpy(array) for name, array in feeds.items()})
        return {name: tensor.numpy() for name, tensor in answer.items()}

    return run


def onnx_run(path: Path) -> Run:
    """The graph in ONNX Runtime with all optimisation off."""
    session = onnx_file.plain_session(path)
    names = [output.name for output in session.get_outputs()]

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return run


def _check(source: Source, path: Path, original: Run) -> Outcome:
    """Run original and graph side by side.

    Raises:
        ExportError: naming the first check that failed.
    """
    try:
        graph = onnx_run(path)
    except SourceError as error:
        raise ExportError(error.what, where=source.location) from error
    checks: list[Check] = []
    notes: list[str] = []
    for case in cases_for(source):
        feeds = example_feeds(source, case.batch, case.length, seed=1, padding=case.padding, masked_row=case.masked_row)
        try:
            want = original(feeds)
        except Exception as error:  # where the original fails the graph can't be held to anything
            notes.append(f"the original itself doesn't run with {case.what}: {brief(error)}")
            continue
        checks.append(_one(case, want, graph, feeds, source))
    if not checks:
        raise ExportError("the original runs at none of the sizes that are tried", where=source.location)
    return Outcome(checks=tuple(checks), notes=tuple(notes))


def _one(case: Case, want: Mapping[str, Any], graph: Run, feeds: Mapping[str, Any], source: Source) -> Check:
    try:
        got = graph(feeds)
    except Exception as error:
        raise ExportError(f"the graph fails with {case.what}: {brief(error)}", where=source.location) from error
    check = compare(case, want, got, feeds, source)
    if not check.ok:
        raise ExportError(
            f"the graph answers otherwise with {check.what}: largest error {check.max_abs_error:.2g}",
            where=source.location,
        )
    return check


def _copy(source: Source, directory: Path) -> Exported:
    """An .onnx source as it is, its weights moved to external data, its free dimensions named."""
    import onnx

    model = onnx_file.read_model(source.path)
    for values, specs in ((model.graph.input, source.inputs), (model.graph.output, source.outputs)):
        by_name = {spec.name: spec for spec in specs}
        for value in values:
            _name_dims(value, by_name.get(value.name))
    remove(directory)
    onnx.save_model(
        model,
        str(directory / MODEL),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=DATA,
        size_threshold=EXTERNAL_FROM_BYTES,
    )
    if (directory / DATA).exists():
        (directory / DATA).chmod((directory / MODEL).stat().st_mode)  # onnx writes it for its owner only
    outcome = _check(source, directory / MODEL, onnx_run(source.path))
    return Exported(
        path=directory / MODEL,
        opset=onnx_file.opset_of(model),
        inputs=source.inputs,
        outputs=source.outputs,
        checks=outcome.checks,
        notes=outcome.notes,
    )


def _name_dims(value: Any, spec: TensorSpec | None) -> None:
    dims = value.type.tensor_type.shape.dim
    if spec is None or len(dims) != len(spec.shape):
        return
    for dim, name in zip(dims, spec.shape, strict=True):
        if isinstance(name, str):
            dim.dim_param = name


def remove(directory: Path) -> None:
    """Savers append to external data that is there already."""
    for name in (MODEL, DATA):
        (directory / name).unlink(missing_ok=True)
