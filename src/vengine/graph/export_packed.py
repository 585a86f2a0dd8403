"""A packed graph of a model: exported like the ordinary one, and held to the untouched original.

The check runs batches of texts of many lengths, so that long ones stand alone, short ones share a row and some rows
are left half empty, with widths and numbers of rows other than the traced ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vengine import packing
from vengine.errors import ExportError
from vengine.graph.export import MODEL, OPSETS, Run, onnx_run, remove, torch_run, write_program
from vengine.graph.export_checks import Case, compare
from vengine.sources import huggingface, torch_module
from vengine.sources.checkpoint import brief
from vengine.sources.feeds import example_feeds
from vengine.sources.packed_module import MASKS, PackedModule, example, load_packed
from vengine.sources.silence import quiet
from vengine.types import PassResult, Source, TensorSpec

_ROWS = (32, 64)  # tokens in the rows of a check
_BATCHES = (1, 3, 11)
_LONGEST = 300


def packable(source: Source) -> str:
    """Why texts can't be packed for this source, as far as that is known without loading it; "" when they may."""
    names = {spec.name for spec in source.inputs}
    if source.kind != "huggingface" or source.tokenizer is None:
        return "only encoders from a model directory can be packed: a finished graph has no inputs for positions"
    if "attention_mask" not in names or any(spec.shape != ("batch", "length") for spec in source.inputs):
        return "the model reads no attention mask"
    return ""


def export_packed(source: Source, directory: Path) -> tuple[PassResult, ...]:
    """Write `directory`/model.onnx, which reads packed rows (see `packing`), and check it against the original.

    Raises:
        ExportError: the model can't be packed, or the packed graph answers otherwise.
        SourceError: the source can't be read any more.
    """
    if reason := packable(source):
        raise ExportError(f"texts can't be packed: {reason}", where=source.location)
    directory.mkdir(parents=True, exist_ok=True)
    original = torch_run(huggingface.load_module(source.path, source.task))
    refused: list[str] = []
    for mask in MASKS:
        try:
            packed = load_packed(source.path, source.task, mask)
            # Before the export, which takes seconds for each opset and would answer no better.
            _check(source, torch_run(packed.module), packed, original, _BATCHES[:-1])
            program = _traced(packed, source)
        except ExportError as error:
            refused.append(f"{mask} mask: {error.what}")
            continue
        for opset in OPSETS:
            try:
                write_program(program, directory, opset, _specs(packed))
                matched = _check(source, onnx_run(directory / MODEL), packed, original)
                return (PassResult(name="packing", exactness="reassociates", matched=matched),)
            except ExportError as error:
                refused.append(f"opset {opset}, {mask} mask: {error.what}")
    remove(directory)
    reasons = "; ".join(dict.fromkeys(refused))
    raise ExportError(f"no packed graph agrees with the original: {reasons}", where=source.location)


def _traced(packed: PackedModule, source: Source) -> Any:
    import torch

    axes = {name: {0: "slots"} if name == "slots" else {0: "rows", 1: "tokens"} for name in packed.inputs}
    try:
        with torch.no_grad(), quiet():
            return torch_module.trace(packed.module, example(packed.inputs), axes)
    except Exception as error:  # torch.export raises many kinds
        raise ExportError(f"torch can't trace the packed model: {brief(error)}", where=source.location) from error


def _specs(packed: PackedModule) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs with their free axes; outputs by name, their sizes left to the graph."""
    shape: dict[str, tuple[int | str, ...]] = {"slots": ("slots",)}
    inputs = [TensorSpec(name=n, dtype="int64", shape=shape.get(n, ("rows", "tokens"))) for n in packed.inputs]
    outputs = [TensorSpec(name=n, dtype="float32", shape=()) for n in packed.outputs]
    return tuple(inputs), tuple(outputs)


def _check(source: Source, graph: Run, packed: PackedModule, original: Run, batches: Sequence[int] = _BATCHES) -> int:
    """Compare packed rows with the original on batches of many lengths; the number of calls that agree.

    Raises:
        ExportError: one doesn't.
    """
    limit = min(source.max_tokens or _LONGEST, _LONGEST)
    cases = [(batch, row) for batch in batches for row in _ROWS]
    for number, (batch, row) in enumerate(cases):
        feeds = ragged(source, batch, limit, seed=number)
        case = Case(what=f"{batch} texts packed into rows of {row} tokens", batch=batch, length=limit)
        try:
            got = run_packed(graph, packed.inputs, feeds, row)
        except Exception as error:
            raise ExportError(f"it fails with {case.what}: {brief(error)}") from error
        answer = original(feeds)
        want = {spec.name: answer[spec.name] for spec in source.outputs}
        check = compare(case, want, {name: got.get(name) for name in want}, feeds, source)
        if not check.ok:
            raise ExportError(f"it answers otherwise with {check.what}: largest error {check.max_abs_error:.2g}")
    return len(cases)


def ragged(source: Source, batch: int, longest: int, *, seed: int) -> dict[str, Any]:
    """Random feeds [batch, longest], padded on the right: one text is the longest, most are short."""
    random = np.random.default_rng(seed)
    lengths = np.minimum(longest, 2 + random.exponential(longest / 8, size=batch).astype(int))
    lengths[random.integers(batch)] = longest
    feeds = example_feeds(source, batch, longest, seed=seed)
    shown = np.arange(longest)[None, :] < lengths[:, None]
    empty = example_feeds(source, batch, longest, seed=seed, masked_row=0)
    padding = {name: array[0, 0] for name, array in empty.items()}
    return {name: np.where(shown, array, padding[name]).astype(array.dtype) for name, array in feeds.items()}


def run_packed(graph: Run, names: Sequence[str], feeds: Mapping[str, Any], row_tokens: int) -> dict[str, Any]:
    """A padded call through a packed graph, all rows of one width at once."""
    into: list[dict[str, Any]] = [{}]
    rows = packing.rows_of(packing.pieces_of([feeds]), row_tokens)
    for width in sorted({row.width for row in rows}):
        same = [row for row in rows if row.width == width]
        packing.take([feeds], same, graph(packing.fill(same, [feeds], names)), into)
    return into[0]
