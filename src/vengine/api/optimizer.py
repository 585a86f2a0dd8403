"""`VectorizationOptimizer`: the same as the command line, for a module that is in memory.

    fast = VectorizationOptimizer(optimization_level="balanced").optimize(model, data=texts)
    fast(**inputs)          # same call, same output class and field names as the module
    fast.report, fast.save("intent.vengine")

The module is not changed. Where no variant keeps the promises, `fast` calls the module itself and says so.
"""

from __future__ import annotations

import inspect
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vengine.api.conflicts import refuse_conflicts
from vengine.api.optimize import optimize
from vengine.errors import DataError, UsageError
from vengine.types import Budget, Level, Objective, Sample, Settings, Source, Task, Workload
from vengine.workload.identity import digest_samples

_FILLED = {"attention_mask": 1, "token_type_ids": 0}  # what transformers assumes when they are left out
_EXAMPLE_TEXTS = ("A first example text.", "And a second one, a little longer than the first.")


class VectorizationOptimizer:
    """Settings for any number of models; each argument is one of `Settings` or `Budget`.

    Args:
        target_hardware: "cpu": this machine's processor.
        optimization_level: "safe" (bitwise or reassociating changes), "balanced" (lossy within the budget) or
            "aggressive" (a longer search).
        precision: None for all, or "mixed", "fp32", "bf16", "fp16", "int8", "int4".
        keep_io_types: inputs and outputs keep their types; False, with the precision "fp16", makes them fp16.
        op_types_to_quantize: operator types that are converted; () = all that can be. (The name is
            customary; bf16 isn't quantisation.)
        force_fp32: operator types or node names that stay in fp32.
        budget: a Budget, or the largest relative drop: 0.01.
        objective: "latency", "throughput" or "memory".
        time: seconds for trials and race together.
        threads: for every contender; None takes this machine's.
        memory_limit: bytes of a process that runs the model.
        progress: called with events (see `vengine.report.progress`).
    """

    def __init__(
        self,
        *,
        target_hardware: str = "cpu",
        optimization_level: Level = "balanced",
        precision: str | None = None,
        keep_io_types: bool = True,
        op_types_to_quantize: Sequence[str] = (),
        force_fp32: Sequence[str] = (),
        budget: Budget | float = 0.01,
        objective: Objective = "latency",
        time: float = Settings.time_seconds,
        threads: int | None = None,
        memory_limit: int | None = None,
        progress: Callable[[dict[str, Any]], None] | None = None,
        cache: Path | None = None,
    ) -> None:
        if target_hardware != "cpu":
            raise UsageError(
                f"target_hardware={target_hardware!r}: no engine here runs on it", next_step="use target_hardware='cpu'"
            )
        whole = budget if isinstance(budget, Budget) else Budget(max_drop=float(budget))
        self.budget = whole if memory_limit is None else replace(whole, memory_limit_bytes=memory_limit)
        self.objective: Objective = objective
        self.settings = Settings(
            level=optimization_level,
            precision=precision,
            time_seconds=float(time),
            threads=threads,
            keep_io_types=keep_io_types,
            op_types_to_quantize=tuple(op_types_to_quantize),
            force_fp32=tuple(force_fp32),
        )
        refuse_conflicts(self.settings)
        self.progress, self.cache = progress, cache

    def optimize(
        self,
        model: Any,
        data: Sequence[Any] | str | Path | Workload | None = None,
        *,
        tokenizer: Any = None,
        example_inputs: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> OptimizedModel:
        """Optimise a `torch.nn.Module`; for files and names use `vengine.optimize`.

        Args:
            data: texts, or feeds (mappings of tensors with a batch axis of 1), a data file, or a Workload.
            tokenizer: a tokenizer.json, its folder, or a transformers tokenizer; by default the one beside the
                weights that the module was loaded from.
            example_inputs: the forward's keyword arguments; needed when there is no tokenizer and data are no feeds.

        Raises:
            VengineError: the module can't be traced, or the data don't fit it.
        """
        from vengine.sources import from_module, output_template

        folder = Path(tempfile.mkdtemp(prefix="vengine-"))
        try:
            found = _tokenizer_file(model, tokenizer, folder)
            examples = dict(example_inputs or _examples(model, data, found, max_tokens))
            source = from_module(
                model,
                examples,
                directory=folder / "module",
                tokenizer=found,
                max_tokens=max_tokens or _max_tokens(model),
                labels=_labels(model),
                task=_task(model, examples, found is not None),
            )
            report = optimize(
                source,
                data=_workload(data, source, self.objective),
                objective=self.objective,
                budget=self.budget,
                settings=self.settings,
                out=folder / "model.vengine",
                progress=self.progress,
                cache=self.cache,
            )
            return OptimizedModel(model, output_template(model, examples), report, folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


class OptimizedModel:
    """The optimised model behind the module's own call."""

    def __init__(self, module: Any, template: Any, report: dict[str, Any], folder: Path) -> None:
        from vengine.bundle.read import open_bundle

        self.module, self.report = module, report
        self._template, self._folder = template, folder
        self._parameters = list(inspect.signature(module.forward).parameters)
        self._bundle = open_bundle(folder / "model.vengine")
        self._session = self._bundle.session() if report["met"] else None
        self._finalizer = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The forward's own arguments; the forward's own output class, on the CPU.

        Raises:
            UsageError: an argument that was fixed when the module was traced has another value now.
        """
        if self._session is None:
            return self._original(*args, **kwargs)
        import torch

        from vengine.sources import rebuild_output

        named = dict(zip(self._parameters, args, strict=False)) | kwargs
        outputs = self._session.run(self._feeds(named))
        tensors = {name: torch.from_numpy(array) for name, array in outputs.items()}
        return rebuild_output(self._template, tensors)

    def save(self, path: str | Path) -> Path:
        """Write the bundle to `path` (a folder); what lay there is kept until the new one is complete."""
        from vengine.bundle.place import copy_bundle

        return copy_bundle(self._bundle.root, Path(path))

    def _original(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.inference_mode():
            return self.module(*args, **kwargs)

    def _feeds(self, named: Mapping[str, Any]) -> dict[str, Any]:
        import numpy as np
        import torch

        assert self._session is not None
        feeds = {}
        for spec in self._session.inputs:
            value = named.get(spec.name)
            if value is None and spec.name in _FILLED:
                like = named.get("input_ids")
                value = None if like is None else torch.full_like(torch.as_tensor(like), _FILLED[spec.name])
            if value is None:
                raise UsageError(f"the argument {spec.name!r} is missing")
            feeds[spec.name] = np.ascontiguousarray(torch.as_tensor(value).detach().cpu().numpy())
        extra = [k for k, v in named.items() if v is not None and k not in feeds and k != "return_dict"]
        if extra:
            raise UsageError(
                f"the argument {extra[0]!r} was not there when the module was traced",
                next_step="pass it in example_inputs when optimising, or call the module itself",
            )
        return feeds


def _tokenizer_file(model: Any, tokenizer: Any, folder: Path) -> Path | None:
    """A tokenizer.json for whatever the user has; None when there is none."""
    if tokenizer is None:
        beside = Path(str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")) / "tokenizer.json"
        return beside if beside.is_file() else None
    if isinstance(tokenizer, (str, Path)):
        path = Path(tokenizer)
        path = path / "tokenizer.json" if path.is_dir() else path
        if not path.is_file():
            raise UsageError("there is no tokenizer.json", where=str(path))
        return path
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not hasattr(backend, "to_str"):
        raise UsageError("this tokenizer has no fast form", next_step="load it with use_fast=True")
    path = folder / "tokenizer.json"
    path.write_text(backend.to_str(), encoding="utf-8")
    return path


def _examples(model: Any, data: Any, tokenizer: Path | None, max_tokens: int | None) -> dict[str, Any]:
    import torch

    from vengine.text import Tokenizer, feeds

    if isinstance(data, Sequence) and data and isinstance(data[0], Mapping):
        return {name: torch.as_tensor(value) for name, value in data[0].items()}
    if tokenizer is None:
        raise UsageError(
            "there is nothing to trace the module with",
            next_step="pass example_inputs={…} (the forward's keyword arguments), or tokenizer=…",
        )
    known = inspect.signature(model.forward).parameters
    names = [n for n in ("input_ids", "attention_mask", "token_type_ids") if n in known]
    reader = Tokenizer.from_file(tokenizer, max_tokens)
    made = feeds(reader.encode(_EXAMPLE_TEXTS), names, reader.pad_id)
    return {name: torch.from_numpy(value) for name, value in made.items()}


def _workload(data: Any, source: Source, objective: Objective) -> str | Path | Workload | None:
    if data is None or isinstance(data, (str, Path, Workload)):
        return data
    if not data:
        raise DataError("data is empty", next_step="give texts or feeds")
    samples = tuple(_sample(item, i, source) for i, item in enumerate(data))
    return Workload(
        samples=samples,
        objective=objective,
        origin="data given in Python",
        digest=digest_samples(samples),
    )


def _sample(item: Any, place: int, source: Source) -> Sample:
    import torch

    if isinstance(item, str):
        return Sample(text=item)
    if isinstance(item, Mapping):
        arrays = {name: torch.as_tensor(value).detach().cpu().numpy() for name, value in item.items()}
        if any(len(a) != 1 for a in arrays.values()):
            raise DataError(f"item {place} of data has a batch axis that is not 1", next_step="give one sample an item")
        return Sample(tensors={name: a[0] for name, a in arrays.items()})
    if isinstance(item, Sample):
        return item
    raise DataError(f"item {place} of data is a {type(item).__name__}", next_step="give texts, feeds or Samples")


def _task(model: Any, examples: Mapping[str, Any], texts: bool) -> Task:
    """What the outputs mean, from their names and shapes; only a text model has a task beside "tensor"."""
    import torch

    from vengine.sources import describe_output

    if not texts:
        return "tensor"
    with torch.inference_mode():
        tensors = describe_output(model(**examples))[1]
    logits = tensors.get("logits")
    if logits is not None and logits.ndim == 2:
        return "classification" if logits.shape[1] > 1 else "scoring"
    if logits is not None and logits.ndim == 3:
        return "token-classification"
    if "sentence_embedding" in tensors:
        return "embedding"
    return "features" if "last_hidden_state" in tensors else "tensor"


def _labels(model: Any) -> tuple[str, ...]:
    names = getattr(getattr(model, "config", None), "id2label", None) or {}
    return tuple(str(names[i]) for i in sorted(names)) if isinstance(names, dict) else ()


def _max_tokens(model: Any) -> int | None:
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None
