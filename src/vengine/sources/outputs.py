"""The shape of a forward's answer: tensors with names inside tuples, dicts or a library's output class.

`describe_output` turns an answer into a template and flat named tensors, `rebuild_output` puts other
tensors of the same names back into an answer of the same class with the same fields.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vengine.errors import SourceError

_CONSTANTS = (type(None), bool, int, float, str)


@dataclass(frozen=True, kw_only=True)
class OutputTemplate:
    """One node of an answer: a named tensor, a constant, or a container with children in order."""

    kind: Literal["tensor", "constant", "sequence", "mapping", "fields"]
    name: str = ""  # of a tensor: "logits", "hidden_states_0"
    value: Any = None  # of a constant
    cls: type | None = None  # of a container
    children: tuple[tuple[str, OutputTemplate], ...] = ()  # (key or field or place, child)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors, in order."""
        if self.kind == "tensor":
            return (self.name,)
        return tuple(name for _, child in self.children for name in child.names)


def describe_output(output: Any, name: str = "") -> tuple[OutputTemplate, dict[str, Any]]:
    """Take an answer apart.

    Args:
        output: a tensor, tuple, list, named tuple, mapping, dataclass, or transformers' `ModelOutput`.
        name: prefix for the names below; the top is called "output" when it is a tensor itself.

    Returns:
        The template, and the tensors by name. Fields keep their names; places in tuples become
        "output_0", "hidden_states_1".

    Raises:
        SourceError: a part is neither a tensor nor something that holds tensors (a cache, say).
    """
    import torch

    if isinstance(output, torch.Tensor):
        own = name or "output"
        return OutputTemplate(kind="tensor", name=own), {own: output}
    if isinstance(output, _CONSTANTS):
        return OutputTemplate(kind="constant", value=output), {}
    kind, items = _items(output, name)
    children: list[tuple[str, OutputTemplate]] = []
    tensors: dict[str, Any] = {}
    for key, value in items:
        child, inner = describe_output(value, _join(kind, name, key))
        children.append((key, child))
        tensors.update(inner)
    return OutputTemplate(kind=kind, cls=type(output), children=tuple(children)), tensors


def _items(output: Any, name: str) -> tuple[Literal["sequence", "mapping", "fields"], list[tuple[str, Any]]]:
    if isinstance(output, Mapping):  # transformers' ModelOutput is one, with its None fields left out
        kind: Literal["mapping", "fields"] = "fields" if dataclasses.is_dataclass(output) else "mapping"
        return kind, [(str(key), value) for key, value in output.items()]
    if dataclasses.is_dataclass(output):
        return "fields", [(f.name, getattr(output, f.name)) for f in dataclasses.fields(output)]
    if isinstance(output, (tuple, list)):
        fields = getattr(output, "_fields", None) or [str(i) for i in range(len(output))]
        return "sequence", list(zip(fields, output, strict=True))
    raise SourceError(
        f"the forward's answer has a part of class {type(output).__name__}"
        + (f" in {name}" if name else "")
        + ", which is neither a tensor nor made of tensors",
        next_step="for transformers' models pass use_cache=False, or wrap the module so that it returns tensors",
    )


def _join(kind: str, name: str, key: str) -> str:
    if kind == "sequence" and key.isdigit():
        return f"{name or 'output'}_{key}"
    return f"{name}_{key}" if name else key


def rebuild_output(template: OutputTemplate, tensors: Mapping[str, Any]) -> Any:
    """An answer of the template's class from other tensors.

    Args:
        template: from `describe_output`.
        tensors: a value for each of `template.names`.

    Raises:
        KeyError: a tensor is missing.
    """
    if template.kind == "tensor":
        return tensors[template.name]
    if template.kind == "constant":
        return template.value
    built = {key: rebuild_output(child, tensors) for key, child in template.children}
    assert template.cls is not None
    if template.kind == "fields":
        return template.cls(**built)
    if template.kind == "mapping":
        return template.cls(built)
    if hasattr(template.cls, "_fields"):
        return template.cls(**built)
    return template.cls(built.values())
