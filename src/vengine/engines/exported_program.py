"""Load a `.pt2` without unpickling: torch's own loader falls back to real pickles, so the archive is checked first.

`torch.export.load` reads weights marked `use_pickle`, custom objects and odd sample inputs with the
unrestricted unpickler, and AOTInductor members as native code. An archive that needs any of these
is refused before torch's loader sees it.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vengine.errors import EngineError
from vengine.types import TensorSpec

_HARMLESS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/[a-z_]+|models/model\.json|extra/.+"
    r"|data/weights/(weight_\d+|model_weights_config\.json)"
    r"|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt"
)
_CONFIGS = ("data/weights/model_weights_config.json", "data/constants/model_constants_config.json")
_SAMPLES = "data/sample_inputs/model.pt"


def load_exported(torch: Any, path: Path) -> Any:
    """A `torch.export.ExportedProgram` from an archive that holds nothing but numbers and a graph.

    Raises:
        EngineError: the file is damaged, too old, or wants objects unpickled or native code loaded.
    """
    try:
        archive = torch._C.PyTorchFileReader(str(path))  # torch's own parser, so both see the same members
        names = archive.get_all_records()
        _check_members(path, names)
        for config in _CONFIGS:
            _check_config(path, json.loads(archive.get_record(config)))
        _check_samples(torch, path, archive.get_record(_SAMPLES))
        return torch.export.load(path)
    except EngineError:
        raise
    except Exception as error:
        raise EngineError(
            f"the exported program can't be read: {' '.join(str(error).split())[:200]}",
            where=str(path),
            next_step="export the module again with this version of torch",
        ) from error


def _check_members(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if not _HARMLESS.fullmatch(name):
            _refuse(path, f"the archive's member {name!r} may hold code")


def _check_config(path: Path, config: dict[str, Any]) -> None:
    for name, payload in config["config"].items():
        file = str(payload["path_name"])
        if payload.get("use_pickle") or not re.fullmatch(r"(weight|tensor)_\d+", file):
            _refuse(path, f"the tensor {name!r} is stored as a pickle")


def _check_samples(torch: Any, path: Path, record: bytes) -> None:
    if not record:
        return
    try:
        torch.load(io.BytesIO(record), weights_only=True)
    except Exception:
        _refuse(path, "the sample inputs hold more than tensors")


def _refuse(path: Path, what: str) -> None:
    raise EngineError(
        f"{what}, which is never loaded",
        where=str(path),
        next_step="export the module with plain tensors as parameters, buffers and sample inputs",
    )


def exported_specs(torch: Any, program: Any) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Inputs and outputs, with the free axes named: batch, length where the second one is free, else the symbol."""
    metas = {node.name: node.meta.get("val") for node in program.graph.nodes}
    signature = program.graph_signature
    axes: dict[str, str] = {}
    inputs = tuple(_spec(name, metas[name], axes) for name in signature.user_inputs)
    flat = [metas.get(name) for name in signature.user_outputs]
    tree = torch.utils._pytree.tree_unflatten(flat, program.call_spec.out_spec)
    from vengine.engines.torch_engine import named_outputs

    outputs = tuple(_spec(name, meta, axes) for name, meta in named_outputs(tree).items())
    return inputs, outputs


def _spec(name: str, meta: Any, axes: dict[str, str]) -> TensorSpec:
    if not hasattr(meta, "shape"):
        raise EngineError(f"the exported program's {name!r} is no tensor")
    shape: list[int | str] = []
    for axis, size in enumerate(meta.shape):
        if isinstance(size, int):
            shape.append(size)
            continue
        wished = ("batch", "length")[axis] if axis < 2 else str(size)
        shape.append(axes.setdefault(str(size), wished if wished not in axes.values() else str(size)))
    return TensorSpec(name=name, dtype=str(meta.dtype).removeprefix("torch."), shape=tuple(shape))
