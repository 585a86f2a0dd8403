"""An encoder as a module that reads packed rows: several texts a row, each seeing only itself.

Nothing in it knows an architecture. transformers' encoders take a mask of four axes as it is; positions go in by
`position_ids`, or into the model's table of positions where its forward doesn't take them; models with relative
positions need none, because a text's tokens lie side by side. What follows the encoder (pooler, head) reads the first
token of each text. Whether all that was true for this model is checked on the exported graph, against the original.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vengine.errors import ExportError
from vengine.packing import BY_SLOT
from vengine.sources.checkpoint import Loaded, brief, load
from vengine.sources.directory_reading import Reading, read_directory
from vengine.sources.named_module import named_module
from vengine.sources.pooling import apply_steps
from vengine.sources.silence import quiet
from vengine.types import Task

MASKS = ("bool", "additive")
"""Forms of the mask: true where a token is seen, for most; added to the scores, for attention written out."""
_POOLINGS = ("mean", "cls", "mean_sqrt_len", "lasttoken")


@dataclass(frozen=True, kw_only=True)
class PackedModule:
    """The module with its inputs' and outputs' names; see `packing` for what they hold."""

    module: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(kw_only=True)
class _Rows:
    """What the hooks need to know of the call that is being computed."""

    segments: Any = None  # [rows, tokens]
    positions: Any = None  # [rows, tokens], from 0 in each text
    slots: Any = None  # [slots]

    def of_slot(self) -> Any:
        """[rows, slots, tokens] of bool: which token is of which text."""
        return self.segments[:, None, :] == self.slots[None, :, None]

    def first_tokens(self, hidden: Any) -> Any:
        """[rows, tokens, width] → [rows × slots, 1, width]."""
        first = self.of_slot() & (self.positions == 0)[:, None, :]
        return _summed(first, hidden).flatten(0, 1).unsqueeze(1)


def load_packed(path: Path, task: Task | None = None, mask: str = MASKS[0]) -> PackedModule:
    """The model of a directory, made to read packed rows.

    Args:
        mask: the form, of `MASKS`, that its attention understands: the check of the exported graph tells.

    Raises:
        ExportError: it can't: it has no mask, or pools in a way that isn't a weighted sum.
    """
    reading = read_directory(path, task)
    loaded = load(reading)
    if "attention_mask" not in loaded.input_names:
        raise ExportError("texts can't be packed: the model reads no attention mask", where=str(path))
    if strange := [mode for mode in reading.layout.pooling if mode not in _POOLINGS]:
        raise ExportError(f"texts can't be packed: {strange[0]} pooling isn't a weighted sum", where=str(path))
    with quiet():
        return _packed(reading, loaded, mask)


def _packed(reading: Reading, loaded: Loaded, mask: str) -> PackedModule:
    model, rows = loaded.module.model, _Rows()
    known = inspect.signature(model.forward).parameters
    ids = tuple(name for name in loaded.input_names if name != "attention_mask")
    first_position = _first_position(model)
    if "position_ids" not in known:
        _fill_position_table(model, rows, first_position)
    heads = _attach_heads(model, loaded, rows) if not reading.layout.pooling else ()
    dense = {name: part for name, part in loaded.module.named_children() if name != "model"}

    def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
        rows.segments, rows.positions, rows.slots = (inputs[n] for n in ("segment_ids", "position_ids", "slots"))
        feeds = {name: inputs[name] for name in ids if name in known}
        if "position_ids" in known:
            feeds["position_ids"] = rows.positions + first_position
        output = model(**feeds, attention_mask=_masks(model, rows, mask))
        if reading.layout.pooling:
            vectors = _pooled(output.last_hidden_state, rows, reading.layout.pooling)
            shaped = apply_steps(reading.layout, dense, vectors.flatten(0, 1)).unflatten(0, vectors.shape[:2])
            return {f"sentence_embedding{BY_SLOT}": shaped}
        return _named(output, rows, heads)

    names = (*ids, "position_ids", "segment_ids", "slots")
    module = named_module({"model": model, **dense}, compute, names).eval()
    return PackedModule(module=module, inputs=names, outputs=_output_names(module, names))


def _output_names(module: Any, names: tuple[str, ...]) -> tuple[str, ...]:
    import torch

    with torch.no_grad():
        try:
            return tuple(module(**example(names)))
        except Exception as error:  # whatever the model's code thinks of such masks
            raise ExportError(f"texts can't be packed: the model's code refuses the mask ({brief(error)})") from error


def example(names: tuple[str, ...]) -> dict[str, Any]:
    """Two rows of nine tokens that hold three texts: what a packed module is tried and traced with."""
    import torch

    made = {name: torch.ones((2, 9), dtype=torch.int64) for name in names}
    made["segment_ids"] = torch.tensor([[1, 1, 1, 1, 2, 2, 2, 0, 0], [1] * 9])
    made["position_ids"] = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 0, 0], list(range(9))])
    made["slots"] = torch.tensor([1, 2, 3])
    return made


def _masks(model: Any, rows: _Rows, form: str) -> Any:
    """[rows, 1, tokens, tokens]; one a kind of layer where a model has layers that see only what is near."""
    same = rows.segments[:, None, :, None] == rows.segments[:, None, None, :]
    kinds = set(getattr(model.config, "layer_types", None) or ())
    window = getattr(model.config, "sliding_window", None)
    if "sliding_attention" not in kinds or not isinstance(window, int):
        return _formed(same, form)
    near = (rows.positions[:, None, :, None] - rows.positions[:, None, None, :]).abs() <= window
    return {kind: _formed(same & near if kind == "sliding_attention" else same, form) for kind in kinds}


def _formed(seen: Any, form: str) -> Any:
    import torch

    return seen if form == "bool" else torch.where(seen, 0.0, torch.finfo(torch.float32).min)


def _first_position(model: Any) -> int:
    """A table of positions with a padding row (RoBERTa's kind) counts from the row behind it."""
    table = _position_table(model)
    return 0 if table is None or table.padding_idx is None else int(table.padding_idx) + 1


def _position_table(model: Any) -> Any:
    tables = (part for name, part in model.named_modules() if name.endswith("position_embeddings"))
    return next((part for part in tables if hasattr(part, "num_embeddings")), None)


def _fill_position_table(model: Any, rows: _Rows, first: int) -> None:
    """Look positions up by `rows`, whatever the model asks its table for."""
    table = _position_table(model)
    if table is not None:
        table.register_forward_pre_hook(lambda _, __: (rows.positions + first,))


def _attach_heads(model: Any, loaded: Loaded, rows: _Rows) -> tuple[str, ...]:
    """Hand the first token of each text to what follows the encoder; the outputs that have a place a text for it."""
    outputs = _probe(loaded)
    pooled = tuple(name for name, tensor in outputs.items() if tensor.ndim < 3)
    if not pooled:
        return ()
    if "last_hidden_state" in outputs:  # a bare encoder with a pooler beside its hidden states
        model.pooler.register_forward_pre_hook(lambda _, args: (rows.first_tokens(args[0]), *args[1:]))
        return pooled
    _encoder(model, loaded).register_forward_hook(lambda _, __, output: _replaced(output, rows.first_tokens))
    return pooled


def _probe(loaded: Loaded) -> dict[str, Any]:
    import torch

    feeds = {name: torch.ones((2, 5), dtype=torch.int64) for name in loaded.input_names}
    with torch.no_grad():
        found: dict[str, Any] = loaded.module(**feeds)
    return found


def _encoder(model: Any, loaded: Loaded) -> Any:
    """The outermost part below the base model whose output is the hidden states that the base model returns."""
    base, seen = model.base_model, []
    hooks = [
        part.register_forward_hook(lambda part, _, output: seen.append((part, _hidden(output))))
        for part in base.modules()
    ]
    try:
        _probe(loaded)
    finally:
        for hook in hooks:
            hook.remove()
    final = next(tensor for part, tensor in reversed(seen) if part is base)
    giving = [part for part, tensor in seen if tensor is final]
    return giving[-2] if len(giving) > 1 else base


def _hidden(output: Any) -> Any:
    return output if hasattr(output, "ndim") else output[0]


def _replaced(output: Any, change: Any) -> Any:
    if hasattr(output, "ndim"):
        return change(output)
    if hasattr(output, "last_hidden_state"):
        output["last_hidden_state"] = change(output.last_hidden_state)
        return output
    return (change(output[0]), *output[1:])


def _named(output: Any, rows: _Rows, heads: tuple[str, ...]) -> dict[str, Any]:
    from vengine.sources.checkpoint import OUTPUTS

    found = {name: output.get(name) for name in OUTPUTS if name in output}
    shape = rows.segments.shape[0], rows.slots.shape[0]
    return {
        name + BY_SLOT if name in heads else name: tensor.unflatten(0, shape) if name in heads else tensor
        for name, tensor in found.items()
        if tensor is not None
    }


def _pooled(hidden: Any, rows: _Rows, modes: tuple[str, ...]) -> Any:
    """[rows, tokens, width] → [rows, slots, width × modes]: a text's pooling is a weighted sum of its tokens."""
    import torch

    of_slot = rows.of_slot()
    count = of_slot.sum(dim=-1, keepdim=True)
    last = of_slot & (rows.positions[:, None, :] == count - 1)
    sums = {
        "mean": lambda: _summed(of_slot, hidden) / count.clamp(min=1e-9),
        "mean_sqrt_len": lambda: _summed(of_slot, hidden) / count.clamp(min=1e-9).sqrt(),
        "cls": lambda: _summed(of_slot & (rows.positions == 0)[:, None, :], hidden),
        "lasttoken": lambda: _summed(last, hidden),
    }
    return torch.cat([sums[mode]() for mode in modes], dim=-1)


def _summed(chosen: Any, hidden: Any) -> Any:
    import torch

    return torch.matmul(chosen.to(hidden.dtype), hidden)
