"""Small models of eight architectures and six tasks, made sensitive to what they read, with samples and originals.

The weights are random. Those that transformers draws make a model that hardly looks at its input; here they are drawn
at the size that trained ones have, and the heads of classifiers are fitted, so that answers have margins.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from tests.verify.planted import texts

from vengine.engines.base import Session
from vengine.engines.process import WorkerSession
from vengine.engines.torch_engine import TorchEngine
from vengine.sources import open_source
from vengine.sources.pooling import pool
from vengine.sources.silence import quiet
from vengine.text import Tokenizer, batches, feeds
from vengine.tune.original import original_variant
from vengine.tune.prepare import Prepared, prepare
from vengine.tune.trial import Original, answers
from vengine.types import Budget, RuntimeProfile, Sample, Settings, Source, Workload
from vengine.verify.compare import Judge
from vengine.verify.soundness import cosine_rows

BUDGET = Budget()  # the default, as a user meets it
SIDE = 32  # pixels of a picture
_WIDTH, _LAYERS, _HEADS, _INNER = 64, 3, 4, 128
_TOKENS_OF_A_CALL = 400  # enough to fit a head
_USUAL = {
    "hidden_size": _WIDTH,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "intermediate_size": _INNER,
    "max_position_embeddings": 2 * texts.WINDOW,
}
_IDS = {"pad_token_id": texts.PAD, "cls_token_id": texts.FIRST, "sep_token_id": texts.LAST}
_ENDS = {"bos_token_id": texts.FIRST, "eos_token_id": texts.LAST}


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that can be damaged: its files, the samples that it is judged on, and the untouched original."""

    name: str
    source: Source
    prepared: Prepared
    original: Original
    session: Session  # the untouched original, in this process

    @property
    def path(self) -> Path:
        return self.source.path


@dataclass(frozen=True, kw_only=True)
class _Made:
    """How one subject is made."""

    config: dict[str, Any]
    samples: Callable[[], list[Sample]]
    factory: str = "AutoModel"
    pooling: str = ""  # of a sentence-transformers layout
    head: tuple[str, ...] = ()  # classes that the last layer is fitted to
    scored: bool = False  # pairs get scores that the original nearly reaches


def _plain(count: int, seed: int) -> Callable[[], list[Sample]]:
    return lambda: [Sample(text=text) for text, _ in texts.written(count, seed=seed)]


def _labelled(count: int, seed: int) -> Callable[[], list[Sample]]:
    return lambda: [Sample(text=text, label=topic) for text, topic in texts.written(count, seed=seed)]


def _pairs(count: int, seed: int) -> Callable[[], list[Sample]]:
    """Every other pair speaks of one topic."""

    def made() -> list[Sample]:
        found = texts.written(2 * count, seed=seed, most=6)  # six topics in turn
        return [
            Sample(text=found[2 * i][0], pair=found[(2 * i + (6 if i % 2 else 7)) % len(found)][0])
            for i in range(count)
        ]

    return made


def _pictures(count: int) -> Callable[[], list[Sample]]:
    return lambda: [Sample(tensors={"pixel_values": p}) for p in texts.pictures(count, SIDE)]


SUBJECTS: dict[str, _Made] = {
    "bert": _Made(config={"model_type": "bert", **_USUAL}, samples=_plain(240, 1), pooling="mean"),
    "distilbert": _Made(
        config={
            "model_type": "distilbert",
            "dim": _WIDTH,
            "n_layers": _LAYERS,
            "n_heads": _HEADS,
            "hidden_dim": _INNER,
            "max_position_embeddings": 2 * texts.WINDOW,
        },
        samples=_labelled(600, 2),
        factory="AutoModelForSequenceClassification",
        head=tuple(texts.TOPICS),
    ),
    "roberta": _Made(
        config={"model_type": "roberta", **_USUAL, "type_vocab_size": 1, "num_labels": 1},
        samples=_pairs(200, 3),
        factory="AutoModelForSequenceClassification",
    ),
    "electra": _Made(
        config={"model_type": "electra", **_USUAL, "embedding_size": _WIDTH},
        samples=_plain(160, 4),
        factory="AutoModelForTokenClassification",
        head=texts.CLASSES,
    ),
    "modernbert": _Made(
        config={
            "model_type": "modernbert",
            **_USUAL,
            "global_attn_every_n_layers": 2,
            "local_attention": 32,
            "classifier_pooling": "mean",
            "reference_compile": False,
        },
        samples=_plain(600, 5),
        factory="AutoModelForSequenceClassification",
        head=tuple(texts.TOPICS),
    ),
    "mpnet": _Made(config={"model_type": "mpnet", **_USUAL}, samples=_pairs(200, 6), pooling="cls", scored=True),
    "deberta": _Made(
        config={
            "model_type": "deberta-v2",
            **_USUAL,
            "relative_attention": True,
            "position_biased_input": False,
            "pos_att_type": ["p2c", "c2p"],
            "type_vocab_size": 0,
        },
        samples=_plain(120, 7),
    ),
    "vit": _Made(
        config={
            "model_type": "vit",
            "hidden_size": _WIDTH,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "intermediate_size": _INNER,
            "image_size": SIDE,
            "patch_size": 8,
            "num_labels": 10,
        },
        samples=_pictures(80),
        factory="AutoModelForImageClassification",
    ),
}


def subject(name: str, folder: Path) -> Subject:
    """Make a subject below `folder` and collect its original's answers."""
    made = SUBJECTS[name]
    directory = _write(made, folder / name, seed=len(name))
    source = open_source(directory, cache=folder / "cache")
    ready = prepare(source, Workload(samples=tuple(made.samples()), origin="made up"), Settings())
    session = TorchEngine().open(directory, "fp32", RuntimeProfile(threads=1), task=source.task)
    found = answers(session, ready)
    if made.scored:
        ready = replace(ready, samples=_scored(ready.samples, found))
    judge = Judge(source.task, found, ready.samples, BUDGET, source.labels, seed=ready.seed)
    original = Original(variant=original_variant(source, 1), worker=cast("WorkerSession", None), judge=judge)
    return Subject(name=name, source=source, prepared=ready, original=original, session=session)


def _scored(samples: tuple[Sample, ...], found: Any) -> tuple[Sample, ...]:
    cosine = cosine_rows(found["sentence_embedding"], found["sentence_embedding:pair"])
    noise = np.random.default_rng(0).normal(0, 0.3 * cosine.std(), len(cosine))
    return tuple(replace(s, score=float(c)) for s, c in zip(samples, cosine + noise, strict=True))


def _write(made: _Made, directory: Path, seed: int) -> Path:
    import torch
    import transformers

    facts = dict(made.config)
    if made.head:
        facts["id2label"] = dict(enumerate(made.head))
        facts["label2id"] = {name: i for i, name in enumerate(made.head)}
    if facts["model_type"] != "vit":
        facts = {"vocab_size": len(texts.vocabulary()), **_IDS, **_ENDS, **facts}
    config = transformers.AutoConfig.for_model(facts.pop("model_type"), **facts)
    torch.manual_seed(seed)
    model = getattr(transformers, made.factory).from_config(config).eval()
    _awaken(model)
    if config.model_type == "vit":
        _centre_logits(model, made)
    else:
        _relate_words(model)
    if made.pooling:
        _centre(model, made)
    if made.factory.endswith("SequenceClassification") and not made.head:
        _spread(model, made)
    directory.mkdir(parents=True)
    if config.model_type != "vit":
        (directory / "tokenizer.json").write_text(texts.tokenizer_json())
        (directory / "tokenizer_config.json").write_text(texts.tokenizer_settings())
    if made.head:
        _fit_head(model, made)
    with quiet():
        model.save_pretrained(directory)
    if made.pooling:
        _write_layout(directory, made.pooling)
    return directory


def _awaken(model: Any) -> None:
    """Weights of the size that training leaves: signals keep their strength, attention is choosy, biases count."""
    import torch

    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.normal_(0, 0.2).add_(1.0 if name.endswith("weight") else 0.0)
            elif ("embedding" in name and "projection" not in name) or name.endswith("token"):
                weight.normal_(0, 1.0 if "word" in name or "tok_" in name else 0.4)
            else:
                weight.normal_(0, 1.2 / (weight[0].numel() ** 0.5))


def _relate_words(model: Any) -> None:
    """Words of one topic, and words of one kind, lie near each other."""
    import torch

    tokens = texts.vocabulary()
    groups = [{w for listed in parts.values() for w in listed.split()} for parts in texts.TOPICS.values()]
    groups += [{t for t, kind in texts.token_classes().items() if kind == k} for k in range(1, len(texts.CLASSES))]
    table = model.get_input_embeddings().weight
    with torch.no_grad():
        for group in groups:
            table[[i for i, token in enumerate(tokens) if token in group]] += 1.5 * torch.randn(table.shape[1])


def _centre(model: Any, made: _Made) -> None:
    """Take the mean vector of all texts away, as contrastive training does: strangers stand at right angles."""
    import torch

    with torch.no_grad():
        vectors = [
            pool(model(**call).last_hidden_state, call["attention_mask"], (made.pooling,))
            for _, call in _calls(made.samples())
        ]
        last = [part for part in model.modules() if isinstance(part, torch.nn.LayerNorm)][-1]
        last.bias -= torch.cat(vectors).mean(dim=0)


def _centre_logits(model: Any, made: _Made) -> None:
    """No class is favoured over all pictures together."""
    import torch

    with torch.no_grad():
        pictures = torch.from_numpy(np.stack([s.tensors["pixel_values"] for s in made.samples() if s.tensors]))
        _last_linear(model).bias -= model(pixel_values=pictures).logits.mean(dim=0)


def _spread(model: Any, made: _Made) -> None:
    """A score along the direction in which samples differ most, with a spread of one around zero."""
    import torch

    last = _last_linear(model)
    rows, _ = _head_data(model, made, last)
    middle = rows.mean(axis=0)
    _, sizes, directions = np.linalg.svd(rows - middle, full_matrices=False)
    direction = directions[0] / (sizes[0] / len(rows) ** 0.5)
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(direction)[None])
        last.bias.fill_(-float(direction @ middle))


def _last_linear(model: Any) -> Any:
    import torch

    return [part for part in model.modules() if isinstance(part, torch.nn.Linear)][-1]


def _fit_head(model: Any, made: _Made) -> None:
    """The last layer as logistic regression on what reaches it."""
    import torch
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    last = _last_linear(model)
    rows, truth = _head_data(model, made, last)
    scale = float(np.sqrt(np.mean(rows**2)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # any head will do that has margins
        fitted = LogisticRegression(max_iter=100).fit(rows / scale, truth)
    with torch.no_grad():
        last.weight.copy_(torch.from_numpy(fitted.coef_ / scale))
        last.bias.copy_(torch.from_numpy(fitted.intercept_))


def _head_data(model: Any, made: _Made, last: Any) -> tuple[Any, Any]:
    """What reaches the last layer for each sample (or token), and its class."""
    import torch

    reached: list[Any] = []
    hook = last.register_forward_pre_hook(lambda _, arguments: reached.append(arguments[0].numpy()))
    topics = np.arange(len(made.samples())) % len(texts.TOPICS)  # they come round in turn
    kinds = np.array([texts.token_classes()[token] for token in texts.vocabulary()])
    truth = []
    with torch.no_grad():
        for group, call in _calls(made.samples()):
            model(**call)
            if reached[-1].ndim == 2:
                truth.append(topics[group])
                continue
            real = call["attention_mask"].numpy() > 0
            reached[-1] = reached[-1][real][:_TOKENS_OF_A_CALL]
            truth.append(kinds[call["input_ids"].numpy()[real]][:_TOKENS_OF_A_CALL])
    hook.remove()
    return np.concatenate(reached), np.concatenate(truth)


def _calls(samples: list[Sample]) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """Padded batches of all samples, with their places."""
    import torch

    tokenizer = Tokenizer(texts.tokenizer_json(), texts.WINDOW)
    encodings = tokenizer.encode([s.text if s.pair is None else (s.text, s.pair) for s in samples])
    for group in batches([e.length for e in encodings], 4096):
        call = feeds([encodings[i] for i in group], ("input_ids", "attention_mask"), texts.PAD)
        yield group, {name: torch.from_numpy(array) for name, array in call.items()}


def _write_layout(directory: Path, pooling: str) -> None:
    """Pooling and normalisation as sentence-transformers writes them."""
    kinds = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    for module in modules[1:]:
        (directory / module["path"]).mkdir()
    settings = {"word_embedding_dimension": _WIDTH, f"pooling_mode_{pooling}_token{'s' * (pooling == 'mean')}": True}
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(settings))


def shuffled(count: int, seed: int = 0) -> list[int]:
    """A random order of so many rows."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order
