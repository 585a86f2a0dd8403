"""PyTorch in fp32, eager: the original as its users run it. Opens a Hugging Face folder or a .pt2."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vengine.engines.base import (
    Array,
    Availability,
    Feeds,
    Outputs,
    Session,
    arrange,
    package_availability,
    refuse_precision,
    require_file,
)
from vengine.errors import EngineError, EngineMissing
from vengine.types import RuntimeProfile, TensorSpec

INSTALL = "pip install 'vengine[optimize]'"
PRECISIONS = ("fp32", "reference")
# Two sizes that share nothing: an axis that is the same in both outputs is fixed.
_PROBES = ((2, 5), (3, 7))


class TorchEngine:
    """Opens what `sources` calls "huggingface" (a folder) and "torch" (an exported program)."""

    name = "torch"

    def availability(self) -> Availability:
        return package_availability("torch", INSTALL)

    def open(self, path: Path, precision: str, profile: RuntimeProfile) -> Session:
        refuse_precision(self.name, precision, PRECISIONS)
        require_file(self.name, path)
        try:
            import torch
        except ImportError as error:
            raise EngineMissing(f"torch can't be imported: {error}", next_step=INSTALL) from error
        torch.set_num_threads(profile.threads)
        if path.suffix == ".pt2":
            return _open_exported(torch, path)
        from vengine.sources.huggingface import load_module

        module = load_module(path)
        inputs = _text_inputs(module)
        return TorchSession(torch, module, inputs, _probe(torch, module, inputs))


class TorchSession:
    """One module in evaluation mode, run without gradients."""

    precision_run = "fp32"

    def __init__(
        self, torch: Any, module: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
    ) -> None:
        self._torch, self._module = torch, module
        self.inputs, self.outputs = inputs, outputs

    def run(self, feeds: Feeds) -> Outputs:
        arrays = arrange(self.inputs, feeds)
        tensors = {spec.name: _tensor(self._torch, array) for spec, array in zip(self.inputs, arrays, strict=True)}
        try:
            with self._torch.inference_mode():
                results = self._module(**tensors)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            raise EngineError(f"torch failed to run: {' '.join(str(error).split())[:300]}") from error
        return {name: _array(tensor) for name, tensor in named_outputs(results).items()}

    def run_many(self, many: Sequence[Feeds]) -> list[Outputs]:
        return [self.run(feeds) for feeds in many]

    def close(self) -> None:
        self._module = None


def named_outputs(results: Any) -> dict[str, Any]:
    """A module's answer as named tensors: mappings keep their keys, tuples get output_0, output_1, …"""
    if isinstance(results, Mapping):
        return {str(key): value for key, value in results.items() if hasattr(value, "shape")}
    if isinstance(results, (tuple, list)):
        tensors = [value for value in results if hasattr(value, "shape")]
        return {f"output_{index}": value for index, value in enumerate(tensors)}
    if hasattr(results, "shape"):
        return {"output": results}
    raise EngineError(f"the module returned {type(results).__name__}, which has no named tensors")


def _tensor(torch: Any, array: Array) -> Any:
    # torch warns of read-only memory, and would let an in-place operator write to it.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _array(tensor: Any) -> Array:
    tensor = tensor.detach()
    if str(tensor.dtype) == "torch.bfloat16":
        tensor = tensor.float()
    return np.ascontiguousarray(tensor.numpy())


def _text_inputs(module: Any) -> tuple[TensorSpec, ...]:
    names = inspect.signature(module.forward).parameters
    return tuple(TensorSpec(name=name, dtype="int64", shape=("batch", "length")) for name in names)


def _probe(torch: Any, module: Any, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    answers = []
    for shape in _PROBES:
        feeds = {spec.name: torch.ones(shape, dtype=torch.int64) for spec in inputs}
        feeds |= {"token_type_ids": torch.zeros(shape, dtype=torch.int64)} if "token_type_ids" in feeds else {}
        with torch.inference_mode():
            answers.append({name: _array(value) for name, value in named_outputs(module(**feeds)).items()})
    return tuple(_output_spec(name, *(answer[name] for answer in answers)) for name in answers[0])


def _output_spec(name: str, small: Array, large: Array) -> TensorSpec:
    free: dict[tuple[int, int], str] = dict(zip(zip(*_PROBES, strict=True), ("batch", "length"), strict=True))
    shape = tuple(a if a == b else free.get((a, b), f"dim{i}") for i, (a, b) in enumerate(zip(small.shape, large.shape, strict=True)))
    return TensorSpec(name=name, dtype=small.dtype.name, shape=shape)
