"""The user's samples, made ready: what is verified, what is calibrated on, and what is timed.

Texts are tokenised once here. Verification runs them in batches of similar length; the `workload` load draws texts by
length quantiles and hands them over as they would arrive.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vengine.digests import digest_json
from vengine.errors import DataError
from vengine.graph.export_packed import packable
from vengine.packing import RAGGED_TOKENS
from vengine.sources import example_feeds
from vengine.text import Encoding, Tokenizer, batches, feeds, padded_length
from vengine.tune.profiles import ROW_TOKENS
from vengine.tune.race import Load
from vengine.types import Recipe, Sample, Settings, Source, Workload
from vengine.verify.arrange import Index, texts_of
from vengine.workload import fit_tensors

if TYPE_CHECKING:
    import numpy as np

Feeds = dict[str, "np.ndarray"]

WORKLOAD = Load(name="workload")
ARRIVING = 32  # texts in a batch of the original, when throughput is the objective and no concurrency is stated
_DRAWN = {"latency": 24, "throughput": 128, "memory": 24}
_LEAST_BURSTS, _LEAST_DRAWN = 3, 8
_BATCH_TOKENS = 1024  # verification and the default cut of a list


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A workload that can be run."""

    source: Source
    workload: Workload
    samples: tuple[Sample, ...]  # those that are verified
    tokenizer: Tokenizer | None
    encodings: tuple[Encoding, ...]  # of the texts to run, each once
    texts: tuple[Any, ...]
    index: Index | None
    drawn: tuple[int, ...]  # places in `encodings` (or `samples`) that the workload load runs, in arrival order
    arriving: tuple[Encoding, ...]  # the drawn texts, cut or repeated to the lengths that arrive; () for tensors
    cells: tuple[Load, ...]  # the (batch, length) table that is measured
    seed: int = 0
    pass_tokens: float = math.inf  # one pass over the drawn texts, or over the cells, is cut down to about so many

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.source.inputs)

    def places(self, most: int) -> list[int]:
        """Where the samples of `cut(most)` stand among these."""
        return _places(len(self.samples), most)

    def cut(self, most: int) -> Prepared:
        """The same workload, verified on at most so many samples."""
        chosen = _chosen(self.samples, most)
        return _prepared(self.source, self.workload, chosen, self.tokenizer, self.seed, self.pass_tokens)

    def thinned(self, tokens: float) -> Prepared:
        """The same workload for a slow model: fewer drawn texts, and without the largest cells."""
        return _prepared(self.source, self.workload, self.samples, self.tokenizer, self.seed, tokens)

    @property
    def row_tokens(self) -> tuple[int, ...]:
        """Widths of packed rows that are worth a try: none where texts come alone, or can't be packed."""
        return ROW_TOKENS if self._together(None) > 1 and not packable(self.source) else ()

    @property
    def tokens(self) -> int:
        """Tokens of all texts to run; a tensor sample counts as one."""
        return sum(e.length for e in self.encodings) or len(self.samples)

    def call(self, texts: Sequence[Encoding], *, stepped: bool = False) -> Feeds:
        """One padded call with these texts, in this order; `stepped` pads as the bundle's runner does."""
        assert self.tokenizer is not None
        width = padded_length(max(e.length for e in texts), self.source.max_tokens) if stepped else None
        return feeds(texts, self.names, self.tokenizer.pad_id, length=width)

    def tensors(self) -> list[Feeds]:
        """A tensor model's samples, each as one call."""
        return [_tensors([s]) for s in self.samples]

    def tensors_together(self, size: int) -> list[Feeds]:
        """A tensor model's samples, so many in a call where its batch is free."""
        starts = range(0, len(self.samples), size)
        return [call for i in starts for call in self._stack(self.samples[i : i + size])]

    def calibration(self, count: int) -> list[Feeds]:
        """Up to `count` single calls, spread evenly over the lengths."""
        if self.tokenizer is None:
            return [_tensors([s]) for s in self.samples[:count]]
        return [self.call([self.encodings[i]]) for i in self.spread(count)]

    def spread(self, count: int) -> list[int]:
        """Places of `count` texts, spread evenly over the lengths."""
        return _spread([e.length for e in self.encodings], count)

    def work(self, load: Load, recipe: Recipe | None) -> list[list[Feeds]]:
        """The load as bursts of calls. `recipe` None is the original, which gets what arrives as it arrives."""
        if load.batch:
            return [[example_feeds(self.source, load.batch, load.length, seed=self.seed)]]
        together = self._together(recipe)
        bursts = [slice(i, i + together) for i in range(0, len(self.drawn), together)]
        if self.tokenizer is None:
            return [self._stack([self.samples[i] for i in self.drawn[burst]]) for burst in bursts]
        if recipe is None:
            return [[self.call(self.arriving[burst])] for burst in bursts]
        packs = recipe.profile.row_tokens is not None
        cut = RAGGED_TOKENS if packs else recipe.profile.chunk_tokens or _BATCH_TOKENS
        return [self._packed(self.arriving[burst], cut) for burst in bursts]

    def _together(self, recipe: Recipe | None) -> int:
        """How many texts are there at once: as many as arrive together; for throughput, the whole list."""
        if self.workload.concurrency > 1 or self.workload.objective != "throughput":
            return self.workload.concurrency
        return ARRIVING if recipe is None else len(self.drawn)

    def _packed(self, texts: Sequence[Encoding], cut: int) -> list[Feeds]:
        groups = batches([text.length for text in texts], cut)
        return [self.call([texts[i] for i in group], stepped=True) for group in groups]

    def _stack(self, samples: Sequence[Sample]) -> list[Feeds]:
        """One call where the batch is free, else one a sample."""
        free = all(spec.shape and isinstance(spec.shape[0], str) for spec in self.source.inputs)
        return [_tensors(samples)] if free else [_tensors([s]) for s in samples]


def prepare(source: Source, workload: Workload, settings: Settings) -> Prepared:
    """Tokenise, choose what is verified and what is timed.

    Raises:
        DataError: the samples don't fit the model: texts for a tensor model, or the other way round.
    """
    samples = _chosen(workload.samples, settings.verify_samples)
    tokenizer = None
    if source.tokenizer is None:
        if workload.lengths:
            raise DataError("lengths were given, and the model reads tensors", next_step="leave the lengths out")
        samples = fit_tensors(samples, source.inputs)
    else:
        if any(s.tensors for s in samples):
            raise DataError("the model reads texts and the data holds tensors", where=workload.origin)
        tokenizer = Tokenizer.from_file(source.tokenizer, source.max_tokens)
    return _prepared(source, workload, samples, tokenizer, settings.seed, math.inf)


def _prepared(
    source: Source,
    workload: Workload,
    samples: tuple[Sample, ...],
    tokenizer: Tokenizer | None,
    seed: int,
    pass_tokens: float,
) -> Prepared:
    texts: list[Any] = []
    index, encodings, lengths = None, [], [1] * len(samples)
    if tokenizer is not None:
        texts, index = texts_of(samples, source.task)
        encodings = tokenizer.encode(texts)
        lengths = [e.length for e in encodings]
    arriving = workload.lengths or tuple(lengths)
    workload = replace(workload, lengths=arriving)
    possible = _possible(arriving, source)
    drawn = _drawn(lengths, possible, _count(workload, sum(possible) / len(possible), pass_tokens), seed)
    return Prepared(
        source=source,
        workload=workload,
        samples=samples,
        tokenizer=tokenizer,
        encodings=tuple(encodings),
        texts=tuple(texts),
        index=index,
        drawn=tuple(place for place, _ in drawn),
        arriving=tuple(_fitted(encodings[place], length) for place, length in drawn) if encodings else (),
        cells=_cells(source, workload, pass_tokens),
        seed=seed,
        pass_tokens=pass_tokens,
    )


def _count(workload: Workload, mean_tokens: float, pass_tokens: float) -> int:
    """How many texts are drawn: whole bursts, fewer where a pass over them would take too long."""
    usual, least = _DRAWN[workload.objective], max(_LEAST_DRAWN, _LEAST_BURSTS * workload.concurrency)
    count = max(least, int(min(usual, pass_tokens / mean_tokens)))
    return count - count % workload.concurrency


def _cells(source: Source, workload: Workload, pass_tokens: float) -> tuple[Load, ...]:
    """The (batch, length) table, from what the model and the workload allow.

    Where a pass over it would take too long the largest cells are left out, down to two for single calls and two for
    batches: who serves the largest cell that is left serves what is larger, too.
    """
    cells = _all_cells(source, workload)
    while sum(c.batch * c.length for c in cells) > pass_tokens:
        many, single = ([c for c in cells if (c.batch > 1) is wanted] for wanted in (True, False))
        spare = [c for ladder in (many, single) if len(ladder) > 2 for c in ladder]
        if not spare:
            break
        cells.remove(max(spare, key=lambda c: c.batch * c.length))
    return tuple(cells)


def _all_cells(source: Source, workload: Workload) -> list[Load]:
    shapes = [spec.shape for spec in source.inputs if spec.shape]
    batches_here = (1, 8) if all(isinstance(shape[0], str) for shape in shapes) else (1,)
    if not any(len(shape) > 1 and isinstance(shape[1], str) for shape in shapes):
        return [_cell(b, 1) for b in batches_here]
    longest = min(source.max_tokens or 512, max(256, max(workload.lengths, default=0)))
    lengths = sorted({n for n in (16, 64, 128, 256, 512) if n <= longest} or {longest})
    return [_cell(b, n) for b in batches_here for n in lengths if b == 1 or n <= 256]


def synthetic(source: Source, settings: Settings) -> Workload:
    """Samples for a tensor model when the user brings none: noise, and said to be noise."""
    count = min(32, settings.verify_samples)
    samples = []
    for i in range(count):
        made = example_feeds(source, 1, 1, seed=settings.seed + i)
        samples.append(Sample(tensors={name: value[0] for name, value in made.items()}))
    return Workload(
        samples=tuple(samples), origin="synthetic noise", synthetic=True, digest=digest_json([source.digest, count])
    )


def _cell(batch: int, length: int) -> Load:
    return Load(name=f"{batch}x{length}", batch=batch, length=length)


def _chosen(samples: tuple[Sample, ...], most: int) -> tuple[Sample, ...]:
    return tuple(samples[i] for i in _places(len(samples), most))


def _places(count: int, most: int) -> list[int]:
    """Evenly spaced over the file, so that sorted files keep all their classes."""
    return list(range(count)) if count <= most else [i * count // most for i in range(most)]


def _spread(lengths: Sequence[int], count: int) -> list[int]:
    """Places of `count` items, evenly spaced in the order of length."""
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    if len(order) <= count:
        return order
    return [order[(2 * i + 1) * len(order) // (2 * count)] for i in range(count)]


def _possible(arriving: Sequence[int], source: Source) -> list[int]:
    """What arrives, as the tokenizer cuts it."""
    return [min(n, source.max_tokens or n) for n in arriving]


def _drawn(lengths: Sequence[int], arriving: Sequence[int], count: int, seed: int) -> list[tuple[int, int]]:
    """(place, length): the arriving lengths' quantiles and for each a sample of about that length, in arrival order."""
    import random

    wanted = sorted(arriving)
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i], i))
    drawn = []
    for i in range(count):
        want = wanted[(2 * i + 1) * len(wanted) // (2 * count)]
        drawn.append((min(order, key=lambda place: (abs(lengths[place] - want), (place * 2654435761) % 1000)), want))
    random.Random(seed).shuffle(drawn)
    return drawn


def _fitted(text: Encoding, length: int) -> Encoding:
    """The text with exactly so many tokens: time depends on their number, whatever they say."""
    import numpy as np

    if text.length == length:
        return text
    return Encoding(ids=np.resize(text.ids, length), type_ids=np.resize(text.type_ids, length), truncated=True)


def _tensors(samples: Sequence[Sample]) -> Feeds:
    import numpy as np

    rows = [s.tensors for s in samples if s.tensors]
    return {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
