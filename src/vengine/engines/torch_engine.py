"""PyTorch in fp32, eager: the original as its users run it. Opens a Hugging Face folder or a .pt2."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
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
from vengine.engines.recording import WARM_CALLS, Recording
from vengine.errors import EngineError, EngineMissing
from vengine.types import RuntimeProfile, Task, TensorSpec

INSTALL = "pip install 'vengine[optimize]'"
PRECISIONS = ("fp32", "reference")

# Two sizes that share nothing: an axis that is the same in both outputs is fixed.
_PROBES = ({"batch": 2, "length": 5}, {"batch": 3, "length": 7})


class TorchEngine:
    """Opens what `sources` calls "huggingface" (a folder) and "torch" (an exported program)."""

    name = "torch"

    def availability(self) -> Availability:
        return package_availability("torch", INSTALL)

    def open(self, path: Path, precision: str, profile: RuntimeProfile, *, task: Task | None = None) -> Session:
        refuse_precision(self.name, precision, PRECISIONS)
        require_file(self.name, path)
        try:
            import torch
        except ImportError as error:
            raise EngineMissing(f"torch can't be imported: {error}", next_step=INSTALL) from error
        torch.set_num_threads(profile.threads)
        if path.suffix == ".pt2":
            return _open_exported(torch, path)
        return _open_directory(torch, path, task)


def _open_directory(torch: Any, path: Path, task: Task | None) -> Session:
    from vengine.sources.huggingface import load_module
    from vengine.sources.shapes import specs_of

    module = load_module(path, task)
    inputs = tuple(_input(module, name) for name in inspect.signature(module.forward).parameters)
    small, large = (_probe(torch, module, inputs, sizes) for sizes in _PROBES)
    return TorchSession(torch, module, inputs, specs_of(small, large, *_PROBES))


def _open_exported(torch: Any, path: Path) -> Session:
    from vengine.engines.exported_program import exported_specs, load_exported

    program = load_exported(torch, path)
    inputs, outputs = exported_specs(torch, program)
    return TorchSession(torch, program.module(), inputs, outputs)


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

    def record(self, many: Sequence[Feeds]) -> list[Recording]:
        from vengine.engines.torch_trace import read_events, watched

        warm = many[:WARM_CALLS]
        events = watched(self._torch, self._module, [partial(self.run, feeds) for feeds in (*warm, *many)])
        return read_events(events)[len(warm) :]

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


def _input(module: Any, name: str) -> TensorSpec:
    if name != "pixel_values":
        return TensorSpec(name=name, dtype="int64", shape=("batch", "length"))
    config = module.model.config
    sides = (config.image_size,) * 2 if isinstance(config.image_size, int) else tuple(config.image_size)
    return TensorSpec(name=name, dtype="float32", shape=("batch", int(getattr(config, "num_channels", 3)), *sides))


def _probe(torch: Any, module: Any, inputs: tuple[TensorSpec, ...], sizes: Mapping[str, int]) -> Outputs:
    """One run at these sizes, to learn which axes of the outputs follow them."""
    shapes = {spec.name: [sizes[d] if isinstance(d, str) else d for d in spec.shape] for spec in inputs}
    feeds = {
        spec.name: torch.full(shapes[spec.name], int(spec.name != "token_type_ids"), dtype=getattr(torch, spec.dtype))
        for spec in inputs
    }
    with torch.inference_mode():
        return {name: _array(value) for name, value in named_outputs(module(**feeds)).items()}
