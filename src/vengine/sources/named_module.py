"""One shape for every torch model: named tensors in, a dict of named tensors out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Compute = Callable[[Mapping[str, "torch.Tensor"]], dict[str, "torch.Tensor"]]


def named_module(parts: Mapping[str, Any], compute: Compute, names: Sequence[str]) -> Any:
    """A `torch.nn.Module` whose `forward(**{name: tensor})` returns `compute({name: tensor})`.

    Its forward has a signature with exactly `names`, so exporters name the graph's inputs after them.

    Args:
        parts: submodules that own the parameters which `compute` uses.
        compute: from named inputs to named outputs.
        names: input names, in order.
    """
    import torch

    parameter = inspect.Parameter
    signature = inspect.Signature([parameter(name, parameter.POSITIONAL_OR_KEYWORD) for name in names])

    class NamedModule(torch.nn.Module):  # type: ignore[misc]  # torch is read as Any
        def __init__(self) -> None:
            super().__init__()
            for name, part in parts.items():
                self.add_module(name, part)

            def forward(*args: Any, **kwargs: Any) -> dict[str, Any]:
                return compute(signature.bind(*args, **kwargs).arguments)

            forward.__signature__ = signature  # type: ignore[attr-defined]
            self.forward = forward

    return NamedModule()
