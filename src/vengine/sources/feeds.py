"""Valid random inputs for any source: what an export is checked with and an engine is tried with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from vengine.sources.metadata import read_settings
from vengine.sources.tokenizer_files import load_tokenizer, pad_id
from vengine.sources.torch_module import FACTS
from vengine.types import Source, TensorSpec

Array = np.ndarray[Any, Any]
Padding = Literal["none", "left", "right"]
# Free dimensions that are neither batch nor length are heights and widths in nearly all vision models.
_OTHER_FREE = 224
_MASKS = ("attention_mask", "input_mask", "mask")
_IDS = ("input_ids", "input_ids_0", "ids", "tokens")


def example_feeds(
    source: Source,
    batch: int,
    length: int,
    *,
    seed: int = 0,
    padding: Padding = "none",
    masked_row: int | None = None,
) -> dict[str, Array]:
    """Random inputs that the model accepts.

    Args:
        source: a source of any kind.
        batch: size of every dimension named "batch".
        length: size of every dimension named "length".
        seed: the same seed gives the same inputs.
        padding: "left" or "right" pads row 0 over a third of its length (nothing at length 1).
        masked_row: this row is padding from end to end; its mask is all 0.

    Returns:
        {input name: array}, dtypes and shapes as `source.inputs` says.
    """
    random = np.random.default_rng(seed)
    sizes = {"batch": batch, "length": length}
    visible = _visible(batch, length, padding, masked_row)
    ranges, padded = _ranges(source), pad_id(source)
    feeds: dict[str, Array] = {}
    for spec in source.inputs:
        shape = tuple(sizes.get(d, _OTHER_FREE) if isinstance(d, str) else d for d in spec.shape)
        if np.dtype(spec.dtype).kind == "f":
            feeds[spec.name] = random.standard_normal(shape).astype(spec.dtype)
        else:
            values = _whole(spec, shape, ranges.get(spec.name, {}), random, padded)
            feeds[spec.name] = _masked(spec, values, visible, padded)
    return feeds


def _visible(batch: int, length: int, padding: Padding, masked_row: int | None) -> Array:
    """[batch, length] of bool: True where a token is."""
    visible = np.ones((batch, length), dtype=bool)
    cut = length // 3
    if padding == "left" and cut:
        visible[0, :cut] = False
    if padding == "right" and cut:
        visible[0, length - cut :] = False
    if masked_row is not None:
        visible[masked_row] = False
    return visible


def _ranges(source: Source) -> Mapping[str, Mapping[str, Any]]:
    """Known ranges of whole-number inputs: of the user's examples, or of the vocabulary."""
    beside = source.path if source.path.is_dir() else source.path.parent
    if source.kind == "torch":
        facts: Mapping[str, Mapping[str, Any]] = read_settings(beside / FACTS).get("inputs", {})
        return facts
    config = read_settings(beside / "config.json") or read_settings(beside.parent / "config.json")
    rows = config.get("vocab_size")
    known = [rows] if isinstance(rows, int) and rows > 0 else []
    if source.tokenizer is not None:
        known.append(int(load_tokenizer(source.tokenizer).get_vocab_size()))
    high = min(known, default=2) - 1
    return {name: {"low": 0, "high": max(high, 0)} for name in _IDS}


def _whole(
    spec: TensorSpec, shape: tuple[int, ...], known: Mapping[str, Any], random: np.random.Generator, padded: int
) -> Array:
    if spec.name in _MASKS:
        return np.ones(shape, dtype=spec.dtype)
    if known.get("counts_up") or spec.name == "position_ids":
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(spec.dtype)
    low, high = int(known.get("low", 0)), int(known.get("high", 0))
    values = random.integers(low, high + 1, size=shape)
    if spec.name in _IDS and high > low:  # a padding id inside a text would be a position of its own
        values = np.where(values == padded, low if low != padded else low + 1, values)
    return values.astype(spec.dtype)


def _masked(spec: TensorSpec, values: Array, visible: Array, padded: int) -> Array:
    if values.shape != visible.shape:
        return values
    if spec.name in _MASKS:
        return np.where(visible, values, 0).astype(spec.dtype)
    if spec.name in _IDS:
        return np.where(visible, values, padded).astype(spec.dtype)
    return values
