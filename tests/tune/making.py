"""A world for the tuner's tests: the fake engine plays the original and every candidate, all else is real.

`optimize` runs as always: worker processes, comparison, races, plan, bundle. Only the table of candidates names the
fake, and the exporter copies the fake's file.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vengine.digests import digest_file, digest_json
from vengine.tune.candidates import Row
from vengine.types import Sample, Source, TensorSpec, Workload

WORDS = ("the", "a", "engine", "car", "fast", "slow", "turns", "stops", "red", "blue", "ship", "sails", "quickly")
INPUTS = tuple(TensorSpec(name=n, dtype="int64", shape=("batch", "length")) for n in ("input_ids", "attention_mask"))
OUTPUTS = (TensorSpec(name="sentence_embedding", dtype="float32", shape=("batch", 8)),)


def tokenizer(folder: Path) -> Path:
    """A word a token, nothing added."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(("[PAD]", "[UNK]", *WORDS))}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    path = folder / "tokenizer.json"
    path.write_text(backend.to_str())
    return path


def texts(count: int = 60, *, longest: int = 24, seed: int = 0) -> list[str]:
    """Random sentences of 2 to `longest` words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, longest))) for _ in range(count)]


def workload(samples: list[str] | None = None, **facts: Any) -> Workload:
    """Unlabelled texts as a workload."""
    chosen = samples or texts()
    digest = digest_json([chosen, sorted(facts.items())])
    return Workload(samples=tuple(Sample(text=t) for t in chosen), origin="test", digest=digest, **facts)


def toy(folder: Path, variants: Mapping[str, Mapping[str, Any]], **original: Any) -> Source:
    """A source for the fake engine: how the original behaves, and how each candidate differs from it."""
    path = folder / "toy.json"
    path.write_text(json.dumps({"delay_ms": 1.5, **original, "precisions": variants}))
    return Source(
        kind="onnx",
        name="toy",
        location="toy.json",
        path=path,
        task="embedding",
        digest=digest_file(path),
        licence="Apache-2.0",
        parameters=1,
        weight_bytes=path.stat().st_size,
        inputs=INPUTS,
        outputs=OUTPUTS,
        tokenizer=tokenizer(folder),
        max_tokens=64,
    )


def play(monkeypatch: pytest.MonkeyPatch, *precisions: str) -> None:
    """Let the fake play the original, and a candidate for each precision; "lossy…" are lossy, others are not."""
    rows = tuple(
        Row(engine="fake", precision=p, exactness="lossy" if p.startswith("lossy") else "reassociates")
        for p in precisions
    )
    monkeypatch.setattr("vengine.tune.candidates.ROWS", rows)
    monkeypatch.setattr("vengine.api.optimize.ENGINES", ("fake",))
    monkeypatch.setitem(_engines(), "onnx", ("fake", "original"))
    monkeypatch.setattr("vengine.graph.export.export", _copied)


def _engines() -> dict[str, tuple[str, str]]:
    from vengine.tune import original

    return original._ENGINES  # type: ignore[return-value]


def _copied(source: Source, directory: Path) -> SimpleNamespace:
    directory.mkdir(parents=True, exist_ok=True)
    return SimpleNamespace(path=Path(shutil.copy(source.path, directory)))
