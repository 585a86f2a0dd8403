"""Small bundles for the tests: variants of the fake engine, with golden outputs that the honest toy gives."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vengine.bundle.golden import Golden
from vengine.bundle.read import Bundle, open_bundle
from vengine.bundle.write import Parts, prepare, write_bundle
from vengine.digests import digest_json
from vengine.engines.base import Outputs, get_engine
from vengine.types import (
    Machine,
    Plan,
    PlanEntry,
    Recipe,
    RuntimeProfile,
    Source,
    TensorSpec,
    Variant,
)

INPUTS = (
    TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length")),
    TensorSpec(name="attention_mask", dtype="int64", shape=("batch", "length")),
)
OUTPUTS = (TensorSpec(name="sentence_embedding", dtype="float32", shape=("batch", 8)),)
BUILDER = Machine(
    cpu="A CPU that nobody has",
    isa=("avx2", "avx512f"),
    physical_cores=2,
    cores_allowed=2.0,
    memory_bytes=1 << 30,
    memory_available_bytes=1 << 29,
    os="Linux",
    python="3.11",
    versions={"fake": "1"},
)
FEEDS = {
    "input_ids": np.array([[5, 6, 7, 0], [8, 9, 10, 11]], dtype=np.int64),
    "attention_mask": np.array([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=np.int64),
}


@dataclass(frozen=True, kw_only=True)
class Toy:
    """One variant of a test bundle: what the fake does, against what its golden outputs say."""

    precision: str = "fp32"
    behaviour: Mapping[str, Any] | None = None  # of the file that ships; the golden outputs are the honest toy's
    isa: tuple[str, ...] = ()
    engine: str = "fake"
    chunk_tokens: int | None = None


def variant(folder: Path, toy: Toy) -> Variant:
    """Write a fake's file and describe it."""
    folder.mkdir(parents=True, exist_ok=True)
    behaviour = dict(toy.behaviour or {})
    (folder / "model.json").write_text(json.dumps(behaviour, sort_keys=True))
    profile = RuntimeProfile(threads=1, chunk_tokens=toy.chunk_tokens)
    recipe = Recipe(engine=toy.engine, precision=toy.precision, profile=profile)
    return Variant(
        recipe=recipe,
        directory=folder,
        entry="model.json",
        digest=digest_json({"recipe": recipe, "behaviour": behaviour}),
        size_bytes=(folder / "model.json").stat().st_size,
        required_isa=toy.isa,
    )


def honest(feeds: Mapping[str, np.ndarray]) -> Outputs:
    """What the fake answers when nothing is wrong with it."""
    file = Path(__file__).with_name("honest.json")
    return get_engine("fake").open(file, "fp32", RuntimeProfile(threads=1)).run(feeds)


def tokenizer(folder: Path) -> Path:
    """A tokenizer of a few words and letters, written in the library's own form."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["[PAD]", "[UNK]", "hello", "the", "invoice", "pump", "valve", "great", "service", "how", "do", "i"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    path.write_text(backend.to_str())
    return path


def parts(
    folder: Path,
    toys: Sequence[Toy] = (Toy(),),
    *,
    plan: Sequence[tuple[int, int, int | None]] = ((0, 1, None),),
    fallback: int = -1,
    feeds: Mapping[str, np.ndarray] = FEEDS,
    texts: tuple[tuple[str, ...], ...] = (),
    tokenizer: Path | None = None,
    machine: Machine = BUILDER,
    name: str = "toy",
    **source: Any,
) -> Parts:
    """Parts of a test bundle; `plan` holds (index of the toy, tokens_min, tokens_max)."""
    variants = tuple(variant(folder / f"v{i}", toy) for i, toy in enumerate(toys))
    facts = {"task": "embedding", "inputs": INPUTS, "outputs": OUTPUTS, "max_tokens": 64, **source}
    return Parts(
        source=Source(
            kind="onnx",
            name=name,
            location="a/model.onnx",
            path=folder,
            digest="sha256:" + "1" * 64,
            licence="Apache-2.0",
            parameters=8,
            weight_bytes=32,
            tokenizer=tokenizer,
            **facts,
        ),
        variants=variants,
        plan=Plan(entries=tuple(PlanEntry(variant=variants[i].digest, tokens_min=a, tokens_max=b) for i, a, b in plan)),
        fallback=variants[fallback].digest,
        golden=Golden(inputs=feeds, outputs={v.digest: honest(feeds) for v in variants}, texts=texts),
        machine=machine,
        created="2026-01-02T03:04:05Z",
        vengine="0.1.0",
        met=True,
    )


def bundle(folder: Path, toys: Sequence[Toy] = (Toy(),), **more: Any) -> Bundle:
    """Write a test bundle at `folder`/toy.vengine and open it."""
    target = folder / "toy.vengine"
    write_bundle(target, prepare(parts(folder / "build", toys, **more)), report={"format": 1}, page="<p>report</p>")
    return open_bundle(target)
