"""A `torch.nn.Module` of the user's: traced once, kept as a program file, its answer's shape remembered.

The program file is written and read by this machine's user only: PyTorch may unpickle when it loads one,
so a program file from elsewhere is refused (see `open_source`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vengine.digests import canonical_json, digest_json
from vengine.errors import SourceError, UsageError
from vengine.sources.checkpoint import brief
from vengine.sources.metadata import short_name
from vengine.sources.named_module import named_module
from vengine.sources.outputs import OutputTemplate, describe_output
from vengine.sources.shapes import specs_of
from vengine.sources.silence import quiet
from vengine.types import Source, Task, TensorSpec

PROGRAM, FACTS = "module.pt2", "module.json"
_TOLERANCE = 1e-4  # largest error of the traced program, relative to the answer's largest value
_REACH = (("batch", "length"), ("batch",), ())  # what is tried to be free, the best first


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A program with named inputs and outputs, and what is free in it."""

    program: Any  # torch.export.ExportedProgram
    free: tuple[str, ...]  # ("batch", "length"), ("batch",) or ()


def from_module(
    module: Any,
    example_inputs: Mapping[str, Any],
    *,
    directory: Path,
    name: str | None = None,
    task: Task = "tensor",
    tokenizer: Path | None = None,
    max_tokens: int | None = None,
    labels: tuple[str, ...] = (),
) -> Source:
    """Make a source of a module in memory. The module itself is not changed, its training mode included.

    Axis 0 is the batch for all inputs that share its size; axis 1 of whole-number inputs is the length.
    Where the module can't do that, only the batch is free, or nothing; a note says so.

    Args:
        module: any module; its forward may return a tensor, tuple, dict or transformers' output class.
        example_inputs: the forward's keyword arguments. Tensors become inputs, other values stay fixed.
        directory: where the program is written; made when missing.
        name: a short name; the class's by default.
        task: what the outputs mean, when the caller knows.
        tokenizer: the tokenizer file that makes the inputs, when there is one.
        max_tokens: longest text.
        labels: class names in the order of the logits.

    Raises:
        SourceError: the module can't be traced, or the traced program answers otherwise.
    """
    import torch

    tensors = {key: value.detach() for key, value in example_inputs.items() if isinstance(value, torch.Tensor)}
    fixed = {key: value for key, value in example_inputs.items() if key not in tensors}
    if not tensors:
        raise UsageError("example_inputs has no tensor", next_step="pass the forward's keyword arguments as a mapping")
    _must_be_plain(module)
    axes = free_axes(tensors)
    with _in_eval_mode(module), torch.no_grad(), quiet():
        named = _flat_outputs(module, tuple(tensors), fixed)
        traced = _trace_widest(named, _large_enough(tensors, axes), axes)
        outputs = _checked_outputs(named, traced, tensors, axes)
    directory.mkdir(parents=True, exist_ok=True)
    with quiet():
        torch.export.save(traced.program, directory / PROGRAM)
    (directory / FACTS).write_bytes(canonical_json({"inputs": {key: _facts(t) for key, t in tensors.items()}}))
    state = dict(traced.program.state_dict)
    return Source(
        kind="torch",
        name=short_name(name or type(module).__name__),
        location=f"{type(module).__module__}.{type(module).__qualname__}",
        path=directory / PROGRAM,
        task=task,
        digest=_digest(traced.program, task, tokenizer),
        licence="unknown",
        parameters=sum(int(t.numel()) for t in state.values()),
        weight_bytes=sum(int(t.numel() * t.element_size()) for t in state.values()),
        inputs=tuple(_input_spec(key, t, axes, traced.free) for key, t in tensors.items()),
        outputs=outputs,
        tokenizer=tokenizer,
        max_tokens=max_tokens,
        labels=labels,
        architecture=type(module).__name__,
        notes=_notes(traced, axes, fixed),
    )


def output_template(module: Any, example_inputs: Mapping[str, Any]) -> OutputTemplate:
    """The template of the answer that the module gives to these inputs, for `rebuild_output`.

    Raises:
        SourceError: the answer has parts that aren't tensors.
    """
    import torch

    with _in_eval_mode(module), torch.no_grad():
        return describe_output(module(**example_inputs))[0]


def free_axes(tensors: Mapping[str, Any]) -> dict[str, dict[int, str]]:
    """Which axes of each input may be free: {input: {axis: "batch" or "length"}}."""
    batch = next((int(t.shape[0]) for t in tensors.values() if t.ndim), None)
    whole = [t for t in tensors.values() if t.ndim >= 2 and _is_whole(t) and t.shape[0] == batch]
    length = int(whole[0].shape[1]) if whole else None
    axes: dict[str, dict[int, str]] = {}
    for name, tensor in tensors.items():
        own = {0: "batch"} if tensor.ndim and tensor.shape[0] == batch else {}
        if own and tensor.ndim >= 2 and _is_whole(tensor) and tensor.shape[1] == length:
            own[1] = "length"
        axes[name] = own
    return axes


def trace(named: Any, tensors: Mapping[str, Any], axes: Mapping[str, Mapping[int, str]]) -> Any:
    """`torch.export` of a named module with these axes free; sizes of 1 must not be used as examples.

    Returns:
        A torch.export.ExportedProgram whose outputs are a dict.
    """
    import torch

    free = torch.export.Dim.DYNAMIC
    shapes = {name: dict.fromkeys(own, free) or None for name, own in axes.items()}
    return torch.export.export(named, (), dict(tensors), dynamic_shapes=shapes)


def load_program(path: Path) -> Any:
    """The module of a program file that `from_module` wrote: forward(**tensors) → dict of tensors.

    Only for files that this user's own run has written: PyTorch may unpickle parts of a foreign one.

    Raises:
        SourceError: the file is damaged.
    """
    return load_exported(path).module()


def load_exported(path: Path) -> Any:
    """The torch.export.ExportedProgram of a file that `from_module` wrote; see `load_program`."""
    import torch

    try:
        with quiet():
            return torch.export.load(path)
    except Exception as error:
        raise SourceError(f"the traced program can't be read: {brief(error)}", where=str(path)) from error


def _must_be_plain(module: Any) -> None:
    for name, tensor in module.named_parameters():
        kind, place = str(tensor.dtype).removeprefix("torch."), tensor.device.type
        if place != "cpu" or kind in ("bfloat16", "float16"):
            raise SourceError(
                f"parameter {name} is {kind} on {place}; the original must run in float32 on the CPU",
                next_step="pass module.float().cpu()",
            )


def _is_whole(tensor: Any) -> bool:
    return not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)


@contextlib.contextmanager
def _in_eval_mode(module: Any) -> Iterator[None]:
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _flat_outputs(module: Any, names: Sequence[str], fixed: Mapping[str, Any]) -> Any:
    def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return describe_output(module(**inputs, **fixed))[1]

    # Not registered as a submodule under a changed mode: eval() of the wrapper must not outlive the call.
    named = named_module({"module": module}, compute, names)
    named.training = False
    return named


def _large_enough(tensors: Mapping[str, Any], axes: Mapping[str, Mapping[int, str]]) -> dict[str, Any]:
    """Tracing takes a size of 1 for a constant: such free axes are doubled."""
    import torch

    large = {}
    for name, tensor in tensors.items():
        for axis in axes[name]:
            if tensor.shape[axis] == 1:
                tensor = torch.cat([tensor, tensor], dim=axis)
        large[name] = tensor
    return large


def _trace_widest(named: Any, tensors: Mapping[str, Any], axes: Mapping[str, Mapping[int, str]]) -> Traced:
    reason: Exception | None = None
    for reach in _REACH:
        wanted = {name: {a: d for a, d in own.items() if d in reach} for name, own in axes.items()}
        if reach and not any(reach[-1] in own.values() for own in wanted.values()):
            continue
        try:
            return Traced(program=trace(named, tensors, wanted), free=reach)
        except SourceError:
            raise
        except Exception as error:  # torch.export raises many kinds
            reason = reason or error
    raise SourceError(
        f"the module can't be traced: {brief(reason) if reason else 'no reason given'}",
        next_step="torch.export.export(module, (), example_inputs) shows the place in the module's code",
    ) from reason


def _checked_outputs(
    named: Any, traced: Traced, tensors: Mapping[str, Any], axes: Mapping[str, Mapping[int, str]]
) -> tuple[TensorSpec, ...]:
    program = traced.program.module()
    runs = []
    for batch, length in ((2, 5), (3, 7)):
        sizes = {"batch": batch, "length": length}
        sizes = {name: size for name, size in sizes.items() if name in traced.free}
        feeds = {name: _resized(t, axes[name], sizes) for name, t in tensors.items()}
        want, got = named(**feeds), program(**feeds)
        for name, tensor in want.items():
            _must_agree(name, tensor, got[name])
        runs.append(({name: tensor.numpy() for name, tensor in want.items()}, sizes))
    try:
        return specs_of(runs[0][0], runs[1][0], runs[0][1], runs[1][1])
    except ValueError as error:
        raise SourceError(str(error)) from error


def _resized(tensor: Any, axes: Mapping[int, str], sizes: Mapping[str, int]) -> Any:
    for axis, dim in axes.items():
        if dim in sizes:
            places = [i % tensor.shape[axis] for i in range(sizes[dim])]
            tensor = tensor.index_select(axis, _index(places))
    return tensor


def _index(places: list[int]) -> Any:
    import torch

    return torch.tensor(places)


def _must_agree(name: str, want: Any, got: Any) -> None:
    import torch

    same = want.shape == got.shape and want.dtype == got.dtype
    scale = max(1.0, float(want.abs().max())) if same and want.numel() else 1.0
    if not same or not torch.allclose(want.double(), got.double(), rtol=0, atol=_TOLERANCE * scale, equal_nan=True):
        raise SourceError(
            f"the traced module answers otherwise than the module itself in {name}",
            next_step="a forward that depends on Python state or randomness can't be traced; wrap it",
        )


def _input_spec(name: str, tensor: Any, axes: Mapping[str, Mapping[int, str]], free: Sequence[str]) -> TensorSpec:
    own = axes[name]
    shape = tuple(own[i] if own.get(i) in free else int(d) for i, d in enumerate(tensor.shape))
    return TensorSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=shape)


def _facts(tensor: Any) -> dict[str, Any]:
    """The range of a whole-number example: what other valid values look like."""
    if not _is_whole(tensor) or not tensor.numel():
        return {}
    last = tensor.reshape(-1, tensor.shape[-1]) if tensor.ndim else tensor.reshape(1, 1)
    counts_up = tensor.ndim > 0 and tensor.shape[-1] > 2 and bool((last.long().diff(dim=-1) == 1).all())
    return {"low": int(tensor.min()), "high": int(tensor.max()), "counts_up": counts_up}


def _digest(program: Any, task: Task, tokenizer: Path | None) -> str:
    sha = hashlib.sha256()
    for name, tensor in sorted({**program.state_dict, **program.constants}.items()):
        if not hasattr(tensor, "detach"):
            continue
        plain = tensor.detach().contiguous().cpu()
        sha.update(json.dumps([name, str(plain.dtype), list(plain.shape)]).encode())
        sha.update(plain.reshape(-1).view(_bytes_type()).numpy().tobytes() if plain.numel() else b"")
    text = tokenizer.read_text("utf-8") if tokenizer else None
    return digest_json(
        {"task": task, "tokenizer": text, "weights": sha.hexdigest(), "graph": program.graph_module.code}
    )


def _bytes_type() -> Any:
    import torch

    return torch.uint8


def _notes(traced: Traced, axes: Mapping[str, Mapping[int, str]], fixed: Mapping[str, Any]) -> tuple[str, ...]:
    notes = []
    wanted = {dim for own in axes.values() for dim in own.values()}
    if "length" in wanted and "length" not in traced.free:
        notes.append("the module can't be traced with a free length: only the example's length will run")
    if "batch" not in traced.free:
        notes.append("the module can't be traced with a free batch: only the example's batch will run")
    notes.extend(f"{name} stays fixed at {value!r}" for name, value in fixed.items())
    return tuple(notes)
