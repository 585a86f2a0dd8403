"""Decides what a Hugging Face directory is, from its JSON alone: which factory, which task, which pooling.

The model's class comes from transformers itself (never from the directory's own code), chosen by the head
that `architectures` names. There is no table of architectures.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vengine.errors import SourceError
from vengine.sources.metadata import read_settings
from vengine.sources.sentence_layout import Layout, read_layout
from vengine.types import Task

# Head → (transformers' factory, task). Heads are a property of the task, not of an architecture.
_HEADS: dict[str, tuple[str, Task]] = {
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "classification"),
    "ForTokenClassification": ("AutoModelForTokenClassification", "token-classification"),
    "ForImageClassification": ("AutoModelForImageClassification", "tensor"),
}
_WRITING_HEADS = ("LMHeadModel", "HeadsModel")  # older names of models that write text
_BARE_HEADS = ("Model", "ForMaskedLM", "ForPreTraining", "ForMaskedImageModeling")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the directory's JSON says, before any weight is read."""

    directory: Path
    layout: Layout
    config: Mapping[str, Any]
    factory: str  # a class of transformers: "AutoModel", "AutoModelForSequenceClassification"
    task: Task
    architecture: str
    notes: tuple[str, ...]


def read_directory(directory: Path, task: Task | None = None) -> Reading:
    """Read the JSON of a model directory and decide what it is.

    Raises:
        SourceError: no configuration, code of its own, or a kind that isn't supported.
    """
    layout = read_layout(directory)
    config = read_settings(layout.encoder / "config.json")
    if not config:
        raise SourceError("config.json is missing", where=str(layout.encoder), next_step="give a model directory")
    notes = list(layout.notes)
    if "auto_map" in config:
        notes.append("the directory brings code of its own (auto_map); it is not run, transformers' own class is used")
    if (layout.encoder / "adapter_config.json").is_file():
        raise SourceError(
            "this is an adapter for another model, not a model",
            where=str(directory),
            next_step="merge it first: model.merge_and_unload() of peft, then save_pretrained(DIR)",
        )
    stated = config.get("architectures")
    architecture = str(stated[0]) if isinstance(stated, list) and stated else "AutoModel"
    factory, found = _factory(architecture, layout, config, directory)
    if task is not None and task != found:
        factory, found, layout, more = _override(task, found, layout, directory, factory)
        notes.append(more)
    return Reading(
        directory=directory,
        layout=layout,
        config=config,
        factory=factory,
        task=found,
        architecture=architecture,
        notes=tuple(notes),
    )


def _factory(architecture: str, layout: Layout, config: Mapping[str, Any], directory: Path) -> tuple[str, Task]:
    if layout.pooling:
        return "AutoModel", "embedding"
    for head, (factory, task) in _HEADS.items():
        if architecture.endswith(head):
            return factory, "scoring" if task == "classification" and _classes(config) == 1 else task
    if architecture.endswith(_BARE_HEADS) and not architecture.endswith(_WRITING_HEADS):
        return "AutoModel", "features"
    raise SourceError(
        f"{architecture} is a kind of model that isn't supported yet",
        where=str(directory),
        next_step="supported are encoders, sequence and token classifiers, cross-encoders and image classifiers",
    )


def _classes(config: Mapping[str, Any]) -> int:
    table = config.get("id2label")
    if isinstance(table, Mapping):
        return len(table)
    stated = config.get("num_labels", 2)  # transformers leaves the default of two classes out of the file
    return stated if isinstance(stated, int) else 2


def _override(task: Task, found: Task, layout: Layout, directory: Path, factory: str) -> tuple[str, Task, Layout, str]:
    if task == "features" and found != "tensor":
        bare = dataclasses.replace(layout, pooling=(), steps=())
        return "AutoModel", "features", bare, f"used as a bare encoder, as asked; the directory says {found}"
    if task == "embedding" and found != "tensor":
        mean = dataclasses.replace(layout, pooling=("mean",), steps=())
        return "AutoModel", "embedding", mean, "the directory names no pooling: the mean over the tokens is used"
    if {task, found} <= {"classification", "scoring"}:
        return factory, task, layout, f"used for {task}, as asked; the directory says {found}"
    raise SourceError(
        f"this model can't be used for {task}: it is made for {found}",
        where=str(directory),
        next_step="leave --task out, or name a model that has the head for it",
    )
