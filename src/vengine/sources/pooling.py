"""Poolings over a text's tokens, as functions of hidden states and mask; see `sentence_layout` for the source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vengine.sources.safetensors_file import read_tensor
from vengine.sources.sentence_layout import DenseStep, Layout, dense_weights


def pool(hidden: Any, mask: Any, modes: Sequence[str]) -> Any:
    """Vectors of whole texts.

    Args:
        hidden: [batch, length, width] float tensor.
        mask: [batch, length], 1 for a token and 0 for padding.
        modes: names of `sentence_layout.POOLINGS`.

    Returns:
        [batch, width × number of modes]; a text without tokens gives zeros (the lowest number for "max").
    """
    import torch

    weights = mask.unsqueeze(-1).to(hidden.dtype)
    vectors = [_ONE[mode](hidden, weights) for mode in modes]
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=1)


def _cls(hidden: Any, weights: Any) -> Any:
    return hidden[:, 0]


def _max(hidden: Any, weights: Any) -> Any:
    return hidden.masked_fill(weights == 0, -1e9).amax(dim=1)


def _mean(hidden: Any, weights: Any) -> Any:
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9)


def _mean_sqrt_len(hidden: Any, weights: Any) -> Any:
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-9).sqrt()


def _weightedmean(hidden: Any, weights: Any) -> Any:
    import torch

    places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device).to(hidden.dtype)
    return _mean(hidden, weights * places.view(1, -1, 1))


def _lasttoken(hidden: Any, weights: Any) -> Any:
    import torch

    places = torch.arange(hidden.shape[1], device=hidden.device).view(1, -1, 1)
    last = (places * weights.to(torch.int64)).amax(dim=1, keepdim=True)  # [batch, 1, 1]
    return torch.gather(hidden * weights, 1, last.expand(-1, -1, hidden.shape[2])).squeeze(1)


_ONE: Mapping[str, Any] = {
    "cls": _cls,
    "max": _max,
    "mean": _mean,
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weightedmean,
    "lasttoken": _lasttoken,
}


def layout_modules(layout: Layout) -> dict[str, Any]:
    """The layout's Dense steps as torch modules with their weights, by the name of their place.

    Raises:
        SourceError: weights that don't fit.
    """
    steps = enumerate(layout.steps)
    return {f"dense_{i}": _dense_module(step) for i, step in steps if isinstance(step, DenseStep)}


def _dense_module(step: DenseStep) -> Any:
    import torch

    linear = torch.nn.Linear(step.in_features, step.out_features, bias=step.bias)
    tensors = {
        name.removeprefix("linear."): torch.from_numpy(read_tensor(entry).copy()).float()
        for name, entry in dense_weights(step).entries.items()
    }
    linear.load_state_dict(tensors)
    return torch.nn.Sequential(linear, getattr(torch.nn, step.activation)())


def apply_layout(layout: Layout, modules: Mapping[str, Any], hidden: Any, mask: Any) -> Any:
    """Pooling and what follows it: [batch, length, width] → [batch, width of the embedding]."""
    return apply_steps(layout, modules, pool(hidden, mask, layout.pooling))


def apply_steps(layout: Layout, modules: Mapping[str, Any], vectors: Any) -> Any:
    """What follows the pooling: [batch, width × poolings] → [batch, width of the embedding]."""
    import torch

    for i, step in enumerate(layout.steps):
        if step == "normalize":
            vectors = torch.nn.functional.normalize(vectors, p=2.0, dim=1)
        else:
            vectors = modules[f"dense_{i}"](vectors)
    return vectors
