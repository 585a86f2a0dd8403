"""Builds a model by transformers and fills in its weights, all of them, or says which don't fit."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vengine.errors import SourceError
from vengine.sources.directory_reading import Reading
from vengine.sources.metadata import read_settings
from vengine.sources.named_module import named_module
from vengine.sources.pooling import apply_layout, layout_modules
from vengine.sources.safetensors_file import Weights
from vengine.sources.silence import quiet

_TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("logits", "last_hidden_state", "pooler_output")
_MOST_PARAMETERS = 2.0  # described ÷ stored; a head or a pooler may be missing, and is named later


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model in memory: the module with named inputs and outputs, and facts that only the module knows."""

    module: Any
    input_names: tuple[str, ...]
    config: Any  # transformers' own
    positions: int | None  # how many positions the module can tell apart
    notes: tuple[str, ...]


def load(reading: Reading) -> Loaded:
    """Build the model by transformers and fill in its weights, all of them.

    Raises:
        SourceError: weights missing (they would be random), left over, or of another shape.
    """
    with quiet():
        model, info = _from_pretrained(reading)
        notes = _check_weights(reading, model, info)
        model.eval()
        names = _input_names(reading, model)
        module = _named(reading, model, names)
    return Loaded(
        module=module.eval(), input_names=names, config=model.config, positions=_positions(model), notes=notes
    )


def refuse_other_sizes(reading: Reading, weights: Weights) -> None:
    """Compare what config.json describes with what the checkpoint holds, before memory is taken for it.

    Raises:
        SourceError: more layers than the checkpoint has tensors, or over twice its parameters.
    """
    import torch
    import transformers

    for key, value in reading.config.items():
        if key.endswith("layers") and isinstance(value, int) and value > len(weights.entries):
            raise _other_sizes(reading, f"{key} is {value:,}", f"{len(weights.entries):,} tensors")
    try:
        with quiet(), torch.device("meta"):
            config = transformers.AutoConfig.from_pretrained(
                str(reading.layout.encoder), trust_remote_code=False, local_files_only=True
            )
            model = getattr(transformers, reading.factory).from_config(config, trust_remote_code=False)
    except Exception:  # `load` meets the same fault, and words it
        return
    described = sum(parameter.numel() for parameter in model.parameters())
    if described > _MOST_PARAMETERS * weights.parameters:
        raise _other_sizes(reading, f"it describes {described:,} parameters", f"{weights.parameters:,}")


def _other_sizes(reading: Reading, described: str, held: str) -> SourceError:
    return SourceError(
        f"config.json doesn't fit the checkpoint: {described}, and the checkpoint holds {held}",
        where=str(reading.layout.encoder / "config.json"),
        next_step="fetch weights and config.json from one place",
    )


def _from_pretrained(reading: Reading) -> tuple[Any, Mapping[str, Any]]:
    import torch
    import transformers

    factory = getattr(transformers, reading.factory)
    try:
        model, info = factory.from_pretrained(
            str(reading.layout.encoder),
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below with the tensor's name, and refused
        )
    except Exception as error:  # transformers raises many kinds for a model that it can't build
        raise SourceError(
            f"transformers {transformers.__version__} can't build the model: {brief(error)}",
            where=str(reading.directory),
            next_step="check that the directory is complete and that its architecture is part of transformers",
        ) from error
    return model, info


def _check_weights(reading: Reading, model: Any, info: Mapping[str, Any]) -> tuple[str, ...]:
    missing, left = sorted(info.get("missing_keys", ())), sorted(info.get("unexpected_keys", ()))
    wrong = sorted(str(item[0]) if isinstance(item, tuple) else str(item) for item in info.get("mismatched_keys", ()))
    notes = []
    if missing and reading.factory == "AutoModel" and all(key.startswith("pooler.") for key in missing):
        model.pooler = None  # a random pooler's output would be noise; the hidden states don't need it
        if not reading.layout.pooling:
            notes.append("the checkpoint has no pooler, so there is no pooler_output")
        missing = []
    if left and reading.factory == "AutoModel" and not reading.architecture.endswith("Model"):
        notes.append(f"the head of {reading.architecture} is not used")
        left = []
    for keys, what in ((missing, "has no"), (wrong, "has another shape for"), (left, "has left-over")):
        if keys:
            raise SourceError(
                f"the checkpoint {what} {keys[0]}" + (f" and {len(keys) - 1} more" if len(keys) > 1 else ""),
                where=str(reading.directory),
                next_step="weights and config.json don't belong together: fetch both from one place",
            )
    return tuple(notes)


def _input_names(reading: Reading, model: Any) -> tuple[str, ...]:
    known = inspect.signature(model.forward).parameters
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        return ("pixel_values",)
    if "input_ids" not in known:
        raise SourceError(f"{reading.architecture} takes neither texts nor images", where=str(reading.directory))
    names = [name for name in _TEXT_INPUTS if name in known]
    if "token_type_ids" in names and not _uses_types(reading, model):
        names.remove("token_type_ids")
    if reading.layout.pooling and "attention_mask" not in names:
        names.append("attention_mask")
    return tuple(names)


def _uses_types(reading: Reading, model: Any) -> bool:
    stated = read_settings(reading.layout.encoder / "tokenizer_config.json").get("model_input_names")
    if isinstance(stated, list) and "token_type_ids" not in stated:
        return False
    return int(getattr(model.config, "type_vocab_size", 2) or 0) > 1


def _named(reading: Reading, model: Any, names: tuple[str, ...]) -> Any:
    layout = reading.layout
    dense = layout_modules(layout) if layout.pooling else {}
    taken = set(inspect.signature(model.forward).parameters)

    def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
        output = model(**{name: tensor for name, tensor in inputs.items() if name in taken})
        if layout.pooling:
            hidden = output.last_hidden_state
            return {"sentence_embedding": apply_layout(layout, dense, hidden, inputs["attention_mask"])}
        found = {name: output.get(name) for name in OUTPUTS if name in output}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    return named_module({"model": model, **dense}, compute, names)


def _positions(model: Any) -> int | None:
    """How many positions the module's own table of them holds; None when it has none."""
    for name, part in model.named_modules():
        if name.endswith("position_embeddings") and hasattr(part, "num_embeddings"):
            # A table with a padding row (RoBERTa's kind) starts to count behind it.
            return int(part.num_embeddings) - (0 if part.padding_idx is None else int(part.padding_idx) + 1)
    stated = getattr(model.config, "max_position_embeddings", None)
    return int(stated) if isinstance(stated, int) and stated > 0 else None


def brief(error: BaseException) -> str:
    """The first line of an error of a library, short enough for a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
