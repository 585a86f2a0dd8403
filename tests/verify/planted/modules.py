"""Where things are in a model of transformers, whatever its architecture, and ways to change them in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Edit = Callable[[Any], None]


def blocks(model: Any) -> Any:
    """The list of layers."""
    import torch

    return next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList) and len(m) > 1)


def linears(part: Any) -> list[Any]:
    """All linear layers below."""
    import torch

    return [m for m in part.modules() if isinstance(m, torch.nn.Linear)]


def norms(part: Any) -> list[Any]:
    """All layer norms below."""
    import torch

    return [m for m in part.modules() if isinstance(m, torch.nn.LayerNorm)]


def table(model: Any, words: str) -> Any:
    """The weight of an embedding table by a part of its name."""
    import torch

    return next(m.weight for n, m in model.named_modules() if words in n and isinstance(m, torch.nn.Embedding))


def words(model: Any) -> Any:
    """The table of token embeddings."""
    return model.get_input_embeddings().weight


def heads(model: Any) -> int:
    """Attention heads of a layer."""
    return int(model.config.num_attention_heads)


def queries_keys_values(block: Any) -> list[Any]:
    """[3] weights [width, width] that make queries, keys and values; views where they lie in one matrix."""
    import torch

    named = [(n.rsplit(".", 1)[-1].lower(), m) for n, m in block.named_modules() if isinstance(m, torch.nn.Linear)]
    joint = next((m for n, m in named if n == "wqkv"), None)
    if joint is not None:
        return list(joint.weight.data.chunk(3))
    return [next(m for n, m in named if n[0] == letter).weight.data for letter in "qkv"]


def mixing(block: Any) -> Any:
    """The square layer behind the attention's heads."""
    square = [m for m in linears(block) if m.in_features == m.out_features]
    return square[-1]


def narrowing(block: Any) -> Any:
    """The feed-forward part's second layer."""
    return [m for m in linears(block) if m.in_features > m.out_features][-1]


def swap(first: Any, second: Any) -> None:
    """Exchange the values of two tensors."""
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def each(find: Callable[[Any], Any], edit: Edit, only: slice = slice(None)) -> Edit:
    """Apply an edit to one part of each layer."""

    def run(model: Any) -> None:
        for block in blocks(model)[only]:
            edit(find(block))

    return run


def replace_modules(model: Any, wanted: Callable[[Any], bool], make: Callable[[Any], Any]) -> None:
    """Put another module in place of each one that is wanted; at least one has to be found."""
    found = [(parent, name, m) for parent in model.modules() for name, m in parent.named_children() if wanted(m)]
    assert found, "nothing to replace"
    for parent, name, module in found:
        setattr(parent, name, make(module))


def gelus(make: Callable[[], Any]) -> Edit:
    """Another activation in every layer."""
    return lambda model: replace_modules(
        model, lambda m: type(m).__name__ in ("GELUActivation", "GELU"), lambda _: make()
    )


def encoder_mask(spoil: Callable[[Any, Any], Any]) -> Edit:
    """The layers see another mask (of ids and mask); pooling and head see the true one."""

    def hook(_: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
        ids = arguments[0] if arguments else keywords["input_ids"]
        return arguments, {**keywords, "attention_mask": spoil(ids, keywords["attention_mask"])}

    return lambda model: model.base_model.register_forward_pre_hook(hook, with_kwargs=True) and None


def rounded(tensor: Any, bits: int, axis: int | None = 0) -> Any:
    """Symmetric rounding to so many bits; one scale for each index of `axis`, or one for all."""
    import torch

    most = 2 ** (bits - 1) - 1
    if axis is None:
        scale = tensor.abs().max()
    else:
        others = [i for i in range(tensor.ndim) if i != axis % tensor.ndim]
        scale = tensor.abs().amax(dim=others, keepdim=True)
    scale = torch.clamp(scale, min=1e-12) / most
    return torch.clamp(torch.round(tensor / scale), -most, most) * scale


def round_weights(bits: int, axis: int | None = 0) -> Edit:
    """Integer weights in every linear layer."""

    def run(model: Any) -> None:
        for layer in linears(model):
            layer.weight.copy_(rounded(layer.weight, bits, axis))

    return run


def round_activations(bits: int, *, by_token: bool) -> Edit:
    """Dynamic quantisation: what enters a linear layer is rounded with a scale a token, or with one a batch."""

    def hook(_: Any, arguments: Any) -> Any:
        x = arguments[0]
        flat = x.reshape(-1, x.shape[-1])
        return (rounded(flat, bits, 0 if by_token else None).reshape(x.shape),)

    def run(model: Any) -> None:
        for layer in linears(model):
            layer.register_forward_pre_hook(hook)

    return run


def cast_weights(dtype: str) -> Edit:
    """Weights that lost digits; arithmetic stays in float32."""

    def run(model: Any) -> None:
        import torch

        for weight in model.parameters():
            weight.copy_(weight.to(getattr(torch, dtype)).float())

    return run


def compute_in(dtype: str) -> Edit:
    """All arithmetic in another precision."""

    def run(model: Any) -> None:
        import torch

        model.to(getattr(torch, dtype))

    return run


def both(*edits: Edit) -> Edit:
    """One edit after the other."""

    def run(model: Any) -> None:
        for edit in edits:
            edit(model)

    return run
