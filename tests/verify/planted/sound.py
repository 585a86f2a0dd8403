"""Variants that answer as the original does, to rounding or well within the budget: none may be refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.verify.planted import texts
from tests.verify.planted.attempts import Attempt, Change, Run, calls, outputs, tokenizer, weights
from tests.verify.planted.modules import (
    blocks,
    both,
    cast_weights,
    compute_in,
    gelus,
    heads,
    linears,
    mixing,
    narrowing,
    norms,
    queries_keys_values,
    round_activations,
    round_weights,
    words,
)
from tests.verify.planted.subjects import Subject, shuffled
from tests.verify.planted.table import ALL, Row, row

from vengine.engines.base import Feeds, Outputs
from vengine.hardware import has_bf16, machine

NARROW_EPSILON = ("bert", "distilbert", "roberta", "electra", "mpnet", "deberta", "vit")  # 1e-12 or 1e-5


def _by_rows(inner: Run, feeds: Feeds, groups: list[list[int]]) -> Outputs:
    """Run groups of rows apart and join them in their order."""
    parts = [inner({name: array[group] for name, array in feeds.items()}) for group in groups]
    order = np.argsort(np.concatenate([np.array(group) for group in groups]))
    return {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}


def _count(feeds: Feeds) -> int:
    return len(next(iter(feeds.values())))


def _one_by_one(inner: Run, feeds: Feeds) -> Outputs:
    return _by_rows(inner, feeds, [[i] for i in range(_count(feeds))])


def _in_other_order(inner: Run, feeds: Feeds) -> Outputs:
    return _by_rows(inner, feeds, [shuffled(_count(feeds))])


def _in_halves(inner: Run, feeds: Feeds) -> Outputs:
    rows = list(range(_count(feeds)))
    return _by_rows(inner, feeds, [half for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]) if half])


def _wider(inner: Run, feeds: Feeds) -> Outputs:
    """Eight more tokens of padding, cut off again where outputs have a row a token."""
    width = feeds["input_ids"].shape[1]
    more = {name: np.pad(array, ((0, 0), (0, 8))) for name, array in feeds.items()}
    cut: Callable[[Any], Any] = lambda a: a[:, :width] if a.ndim == 3 else a  # noqa: E731
    return {name: cut(array) for name, array in inner(more).items()}


def _two_threads(inner: Run, feeds: Feeds) -> Outputs:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return inner(feeds)
    finally:
        torch.set_num_threads(before)


def _eager(model: Any) -> None:
    model.set_attn_implementation("eager")


def _epsilon(model: Any) -> None:
    for norm in norms(model):
        norm.eps *= 1000 if norm.eps < 1e-10 else 10


def _folded_scale(model: Any) -> None:
    """Queries twice as large, keys half as large: their products stay."""
    for block in blocks(model):
        query, key, _ = queries_keys_values(block)
        query *= 2
        key /= 2
        for layer in linears(block):
            if layer.bias is not None and layer.weight.data_ptr() == query.data_ptr():
                layer.bias *= 2
            if layer.bias is not None and layer.weight.data_ptr() == key.data_ptr():
                layer.bias /= 2


def _channels_reordered(model: Any) -> None:
    """The feed-forward part's inner channels in another order, on both sides."""
    for block in blocks(model):
        second = narrowing(block)
        first = next(m for m in linears(block) if m.out_features == second.in_features)
        order = shuffled(second.in_features)
        first.weight.copy_(first.weight[order])
        if first.bias is not None:
            first.bias.copy_(first.bias[order])
        second.weight.copy_(second.weight[:, order])


def _heads_reordered(model: Any) -> None:
    """Heads in another order, on both sides of the attention."""
    for block in blocks(model):
        parts, after = queries_keys_values(block), mixing(block)
        step = len(parts[0]) // heads(model)
        for layer in linears(block):
            mine = any(layer.weight.data_ptr() == part.data_ptr() for part in parts)
            if mine and layer.bias is not None:
                layer.bias.copy_(layer.bias.roll(step, 0))
        for part in parts:
            part.copy_(part.roll(step, 0))
        after.weight.copy_(after.weight.roll(step, 1))


def _unused_token(model: Any) -> None:
    """A token that stands in no text."""
    words(model)[texts.vocabulary().index("[MASK]")] += 5.0


def _padding_token(model: Any) -> None:
    words(model)[texts.PAD] += 5.0


def _tanh() -> Any:
    import torch

    return torch.nn.GELU(approximate="tanh")


def exported(engine: str, precision: str) -> Change:
    """The model's exported graph in another engine."""

    def attempt(subject: Subject) -> Attempt:
        from vengine.engines.base import get_engine
        from vengine.graph.export import export
        from vengine.types import RuntimeProfile

        target = subject.path.parent / f"{subject.name}-exported"
        if not (target / "model.onnx").exists():
            export(subject.source, target)
        session = get_engine(engine).open(target / "model.onnx", precision, RuntimeProfile(threads=2))
        return Attempt(session=session, prepared=subject.prepared)

    return attempt


SOUND: tuple[Row, ...] = (
    row("itself", weights(lambda _: None), ALL),
    row("two threads", calls(_two_threads), ALL),
    row("one row a call", calls(_one_by_one), ALL),
    row("rows in another order", calls(_in_other_order), ALL),
    row("batches in halves", calls(_in_halves), ALL),
    row("more padding", calls(_wider)),
    row("float64", weights(compute_in("float64")), ALL),
    row("bf16 weights", weights(cast_weights("bfloat16")), ALL),
    row("bf16", weights(compute_in("bfloat16")), ALL),
    row("fp16 weights", weights(cast_weights("float16")), ALL),
    row("int8 weights, a scale a channel", weights(round_weights(8)), ALL),
    row(
        "int8, scales a channel and a token",
        weights(both(round_weights(8), round_activations(8, by_token=True))),
        ALL,
        but=("distilbert",),
    ),
    row("plain attention", weights(_eager), ALL),
    row("a larger epsilon that nothing feels", weights(_epsilon), NARROW_EPSILON),
    row("GELU by tanh", weights(gelus(_tanh)), ALL),
    row("the attention's scale elsewhere", weights(_folded_scale), ALL),
    row("inner channels in another order", weights(_channels_reordered), ALL, but=("modernbert",)),
    row("heads in another order", weights(_heads_reordered), ALL, but=("mpnet", "deberta")),
    row("a token that no text has", weights(_unused_token)),
    row("another embedding of the padding", weights(_padding_token)),
    row("another padding token, masked", tokenizer(pad=4)),
    row("answers in float16", outputs(lambda a: a.astype(np.float16)), ALL),
    row("answers in float64", outputs(lambda a: a.astype(np.float64)), ALL),
    row("answers 1 % larger", outputs(lambda a: a * np.float32(1.01)), ALL),
)

EXPORTED: tuple[Row, ...] = (
    row("exported, ONNX Runtime with nothing optimised", exported("onnxruntime", "reference"), ALL),
    row("exported, ONNX Runtime fp32", exported("onnxruntime", "fp32"), ALL),
    row("exported, OpenVINO fp32", exported("openvino", "fp32"), ALL),
    row("exported, OpenVINO bf16", exported("openvino", "bf16"), ALL if has_bf16(machine().isa) else ()),
)
