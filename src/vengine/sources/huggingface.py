"""A Hugging Face directory: config.json, safetensors, tokenizer, perhaps the sentence-transformers layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vengine.digests import digest_json
from vengine.errors import SourceError
from vengine.sources.checkpoint import Loaded, brief, load, refuse_other_sizes
from vengine.sources.directory_reading import Reading, read_directory
from vengine.sources.metadata import class_names, licence, meaning, read_settings, several_labels, short_name
from vengine.sources.safetensors_file import Weights, read_weights, weight_files
from vengine.sources.sentence_layout import DenseStep, dense_weights
from vengine.sources.shapes import specs_of
from vengine.sources.silence import quiet
from vengine.sources.tokenizer_files import FoundTokenizer, find_tokenizer, load_tokenizer
from vengine.types import Source, Task, TensorSpec


def is_model_directory(path: Path) -> bool:
    """True for a directory that `inspect` can try: it has config.json or modules.json."""
    return path.is_dir() and any((path / name).is_file() for name in ("config.json", "modules.json"))


def inspect(
    directory: Path,
    *,
    cache: Path,
    location: str | None = None,
    task: Task | None = None,
    name: str | None = None,
    stated_licence: str = "unknown",
    notes: tuple[str, ...] = (),
) -> Source:
    """Read a model directory and load it once, to be sure that its weights fit its configuration.

    Args:
        directory: the directory.
        cache: where a converted tokenizer may be kept.
        location: how the user named the source; the directory by default.
        task: overrides what the directory says, where that is possible.
        name: a short name; from the directory by default.
        stated_licence: what the distribution says, for models without a card.
        notes: what is known already.

    Raises:
        SourceError: damaged, unsafe, incomplete or not supported; the message has the next step.
    """
    reading = read_directory(directory, task)
    weights = read_weights(weight_files(reading.layout.encoder))
    tokenizer = _tokenizer(reading, cache)
    refuse_other_sizes(reading, weights)
    loaded = load(reading)
    inputs, outputs = _signature(reading, loaded)
    return Source(
        kind="huggingface",
        name=short_name(name or directory.resolve().name),
        location=location or str(directory),
        path=directory,
        task=reading.task,
        digest=_digest(reading, weights, tokenizer),
        licence=_licence(directory, stated_licence),
        parameters=weights.parameters,
        weight_bytes=weights.weight_bytes,
        inputs=inputs,
        outputs=outputs,
        tokenizer=tokenizer.path if tokenizer else None,
        max_tokens=_max_tokens(reading, loaded) if tokenizer else None,
        labels=class_names(loaded.config.to_dict()) if _has_labels(reading) else (),
        several_labels=several_labels(reading.config),
        pooling=reading.layout.label,
        normalize=reading.layout.normalize,
        architecture=reading.architecture,
        notes=_all_notes(notes, reading, weights, tokenizer, loaded),
    )


def load_module(path: Path, task: Task | None = None) -> Any:
    """The untouched model as a `torch.nn.Module` in float32 and eval mode.

    Its forward takes the tensors that `Source.inputs` names (int64 [batch, length] for texts) and returns
    a dict of float32 tensors as `Source.outputs` names them; pooling and normalisation are inside.

    Raises:
        SourceError: see `inspect`.
    """
    return load(read_directory(path, task)).module


def _max_tokens(reading: Reading, loaded: Loaded) -> int | None:
    stated = read_settings(reading.layout.encoder / "tokenizer_config.json").get("model_max_length")
    limits = [
        reading.layout.max_tokens,
        int(stated) if isinstance(stated, (int, float)) and 0 < stated < 1e7 else None,
        loaded.positions,
    ]
    return min((limit for limit in limits if limit), default=None)


def _signature(reading: Reading, loaded: Loaded) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    import torch

    inputs: tuple[TensorSpec, ...]
    if loaded.input_names == ("pixel_values",):
        size = loaded.config.image_size
        height, width = (size, size) if isinstance(size, int) else size
        channels = int(getattr(loaded.config, "num_channels", 3))
        fixed = (channels, int(height), int(width))
        inputs = (TensorSpec(name="pixel_values", dtype="float32", shape=("batch", *fixed)),)
        shapes = [{"batch": 2}, {"batch": 3}]
    else:
        inputs = tuple(TensorSpec(name=n, dtype="int64", shape=("batch", "length")) for n in loaded.input_names)
        shapes = [{"batch": 2, "length": 5}, {"batch": 3, "length": 7}]

    def run(sizes: Mapping[str, int]) -> Mapping[str, Any]:
        feeds = {
            spec.name: torch.ones([sizes[d] if isinstance(d, str) else d for d in spec.shape], dtype=_dtype(spec))
            for spec in inputs
        }
        with torch.no_grad(), quiet():
            return {name: tensor.numpy() for name, tensor in loaded.module(**feeds).items()}

    try:
        return inputs, specs_of(run(shapes[0]), run(shapes[1]), *shapes)
    except Exception as error:
        raise SourceError(f"the model doesn't run: {brief(error)}", where=str(reading.directory)) from error


def _dtype(spec: TensorSpec) -> Any:
    import torch

    return getattr(torch, spec.dtype)


def _tokenizer(reading: Reading, cache: Path) -> FoundTokenizer | None:
    for directory in dict.fromkeys((reading.layout.encoder, reading.directory)):
        found = find_tokenizer(directory, cache=cache)
        if found is not None:
            return found
    if reading.task == "tensor":
        return None
    raise SourceError(
        "the tokenizer is missing",
        where=str(reading.directory),
        next_step="put tokenizer.json (or the vocabulary that it is made from) beside config.json",
    )


def _digest(reading: Reading, weights: Weights, tokenizer: FoundTokenizer | None) -> str:
    dense = [dense_weights(step).digest for step in reading.layout.steps if isinstance(step, DenseStep)]
    return digest_json(
        {
            "task": reading.task,
            "config": meaning(reading.config),
            "layout": reading.layout.meaning(),
            "max_tokens": reading.layout.max_tokens,
            "tokenizer": tokenizer.digest if tokenizer else None,
            "weights": [weights.digest, *dense],
        }
    )


def _has_labels(reading: Reading) -> bool:
    return reading.task in ("classification", "token-classification") or reading.factory.endswith("ImageClassification")


def _licence(directory: Path, stated: str) -> str:
    own = licence(directory)
    return stated if own == "unknown" else own


def _all_notes(
    notes: tuple[str, ...], reading: Reading, weights: Weights, tokenizer: FoundTokenizer | None, loaded: Loaded
) -> tuple[str, ...]:
    extra = []
    kinds = {entry.dtype for entry in weights.entries.values()} & {"F16", "BF16", "F64"}
    if kinds:
        extra.append(f"weights stored as {'/'.join(sorted(kinds))} are computed in float32")
    if several_labels(reading.config):
        extra.append("a text may have several labels: each logit stands for itself")
    if tokenizer is not None:
        known = load_tokenizer(tokenizer.path).get_vocab_size(with_added_tokens=True)
        rows = getattr(loaded.config, "vocab_size", None)
        if isinstance(rows, int) and known > rows:
            extra.append(f"the tokenizer knows {known} tokens and the model {rows}: a text with the others fails")
    return (*notes, *reading.notes, *loaded.notes, *(tokenizer.notes if tokenizer else ()), *weights.notes, *extra)
