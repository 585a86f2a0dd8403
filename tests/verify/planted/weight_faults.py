"""Faults that lie in a model's weights or in how its layers are put together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tests.verify.planted import texts
from tests.verify.planted.attempts import Attempt, Change, Run, then, weights
from tests.verify.planted.modules import (
    blocks,
    both,
    each,
    encoder_mask,
    gelus,
    heads,
    linears,
    mixing,
    narrowing,
    norms,
    queries_keys_values,
    replace_modules,
    round_activations,
    round_weights,
    rounded,
    swap,
    table,
    words,
)
from tests.verify.planted.subjects import Subject
from tests.verify.planted.table import ALL, EMBEDDINGS, TEXTS, Row, row

from vengine.engines.base import Feeds, Outputs
from vengine.engines.torch_engine import TorchSession
from vengine.sources.checkpoint import load
from vengine.sources.directory_reading import Reading, read_directory

MIDDLE = slice(1, 2)
LEARNT_POSITIONS = ("bert", "distilbert", "roberta", "electra", "mpnet")
BIASED = tuple(name for name in ALL if name != "modernbert")


def _transpose(layer: Any) -> None:
    layer.weight.copy_(layer.weight.T.clone())


def _drop_biases(part: Any) -> None:
    for layer in linears(part):
        layer.bias.zero_()


def _noise(model: Any) -> None:
    """An earlier fine-tune: every weight a tenth of its tensor's spread away."""
    import torch

    made = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.add_(0.1 * weight.std(correction=0) * torch.randn(weight.shape, generator=made))


def _prune(model: Any) -> None:
    for layer in linears(model):
        layer.weight[layer.weight.abs() < layer.weight.abs().median()] = 0


def _clip(model: Any) -> None:
    """Scales chosen too small: what is larger saturates."""
    for layer in linears(model):
        most = 0.35 * float(layer.weight.abs().max())
        layer.weight.copy_(rounded(layer.weight.clamp(-most, most), 8))


def _saturate_sums(model: Any) -> None:
    """Sums that stick at a limit, as 16-bit ones do without VNNI."""
    for layer in linears(model):
        layer.register_forward_hook(lambda _, __, sums: sums.clamp(-1.0, 1.0))


def _one_scale_doubled(block: Any) -> None:
    mixing(block).weight[5] *= 2
    narrowing(block).weight[9] *= 2


def _epsilon(model: Any) -> None:
    for norm in norms(model):
        norm.eps = 1.0


def _gain_dropped(part: Any) -> None:
    for norm in norms(part):
        norm.weight.fill_(1.0)


def _no_norms(model: Any) -> None:
    import torch

    replace_modules(blocks(model)[1], lambda m: isinstance(m, torch.nn.LayerNorm), lambda _: torch.nn.Identity())


def _skip(place: int) -> Any:
    def run(model: Any) -> None:
        del blocks(model)[place]
        for name in ("num_hidden_layers", "n_layers"):
            if hasattr(model.config, name):
                setattr(model.config, name, len(blocks(model)))

    return run


def _swap_layers(model: Any) -> None:
    first, last = blocks(model)[0], blocks(model)[-1]
    others = dict(last.named_parameters())
    for name, weight in first.named_parameters():
        swap(weight, others[name])


def _zero_head(model: Any) -> None:
    for block in blocks(model)[1:]:
        layer = mixing(block)
        layer.weight[:, : layer.in_features // heads(model)] = 0


def _mix_heads(model: Any) -> None:
    """Values end in the neighbour's head, as after a wrong reshape."""
    for block in blocks(model):
        values = queries_keys_values(block)[2]
        values.copy_(values.roll(len(values) // heads(model), 0))


def _scale_dropped(model: Any) -> None:
    """No division by the root of the head's width."""
    for block in blocks(model):
        query = queries_keys_values(block)[0]
        query *= (len(query) / heads(model)) ** 0.5


def _positions(shift: int) -> Any:
    def run(model: Any) -> None:
        rows = table(model, "position_embeddings")
        rows.copy_(rows.roll(-shift, 0))

    return run


def _two_words_zeroed(model: Any) -> None:
    words(model)[texts.vocabulary().index("every")] = 0
    words(model)[texts.vocabulary().index("yesterday")] = 0


def _id_off_by_one(model: Any) -> None:
    words(model).copy_(words(model).roll(1, 0))


def _seven_bits(model: Any) -> None:
    """Token ids kept in seven bits: 128 becomes 0."""
    rows = words(model)
    rows[128:] = rows[: len(rows) - 128].clone()


def _shard_missing(model: Any) -> None:
    """A part of the embedding table was never filled in."""
    words(model)[60:100] = 0


def _infinite(model: Any) -> None:
    linears(blocks(model)[1])[0].weight[0, 0] = float("inf")


def _all_alike(model: Any) -> None:
    narrowing(blocks(model)[-1]).weight.fill_(0.05)


def _rotation(speed: float) -> Any:
    """Positions turn at another speed."""

    def run(model: Any) -> None:
        for name, buffer in model.named_buffers():
            if name.endswith("inv_freq"):
                buffer *= speed

    return run


def _relative_reversed(model: Any) -> None:
    rows = table(model, "rel_embeddings")
    rows.copy_(rows.flip(0))


def _pooling(*names: str) -> Change:
    return weights(lambda _: None, lambda r: replace(r, layout=replace(r.layout, pooling=names)))


def _without_steps(reading: Reading) -> Reading:
    return replace(reading, layout=replace(reading.layout, steps=()))


def _summed(reading: Reading) -> Reading:
    return replace(reading, layout=replace(reading.layout, pooling=("mean_sqrt_len",), steps=()))


def _true_mask(ids: Any, _: Any) -> Any:
    return (ids != texts.PAD).long()


def _no_mask(run: Run, feeds: Feeds) -> Outputs:
    return run({**feeds, "attention_mask": np.ones_like(feeds["attention_mask"])})


def _dropout(subject: Subject) -> Attempt:
    """The module was never put into evaluation mode."""
    import torch

    torch.manual_seed(0)
    module = load(read_directory(subject.path, subject.source.task)).module.train()
    session = TorchSession(torch, module, subject.session.inputs, subject.session.outputs)
    return Attempt(session=session, prepared=subject.prepared)


def _relu() -> Any:
    import torch

    return torch.nn.ReLU()


def _nothing() -> Any:
    import torch

    return torch.nn.Identity()


def _exchange(first: int, second: int) -> Any:
    """Exchange two of queries, keys and values."""

    def edit(block: Any) -> None:
        parts = queries_keys_values(block)
        swap(parts[first], parts[second])

    return each(lambda block: block, edit)


WEIGHT_FAULTS: tuple[Row, ...] = (
    row("a weight transposed", weights(each(mixing, _transpose, MIDDLE)), ALL),
    row("a layer's biases dropped", weights(each(lambda b: b, _drop_biases, MIDDLE)), BIASED),
    row("ReLU for GELU", weights(gelus(_relu)), ALL, within=("modernbert",)),
    row("no activation", weights(gelus(_nothing)), ALL),
    row("layer norm's epsilon 1", weights(_epsilon), ALL),
    row("layer norm's gain dropped", weights(_gain_dropped), ALL),
    row("a layer's norms skipped", weights(_no_norms), ALL),
    row("the last layer skipped", weights(_skip(-1)), ALL),
    row("the first layer skipped", weights(_skip(0)), ALL, but=("modernbert",)),
    row("first and last layer swapped", weights(_swap_layers), ALL),
    row("an attention head zeroed", weights(_zero_head), ALL),
    row("values in the wrong heads", weights(_mix_heads), ALL),
    row("queries and keys swapped", weights(_exchange(0, 1)), ALL),
    row("keys and values swapped", weights(_exchange(1, 2)), ALL),
    row("attention's scale dropped", weights(_scale_dropped), ALL),
    row("a feed-forward layer's weights are zero", weights(each(narrowing, lambda m: m.weight.zero_(), MIDDLE)), ALL),
    row("the last feed-forward layer is constant", weights(_all_alike), ALL),
    row("stale weights", weights(_noise), ALL),
    row("half of the weights pruned", weights(_prune), ALL),
    row("int8 weights that saturate", weights(_clip), ALL),
    row("sums that saturate", weights(_saturate_sums), ALL),
    row("weights in 3 bits", weights(round_weights(3)), ALL),
    row("weights in 4 bits, one scale a tensor", weights(round_weights(4, None)), ALL),
    row("one channel's scale doubled", weights(each(lambda b: b, _one_scale_doubled)), ALL, within=("modernbert",)),
    row("dynamic quantisation, one scale a batch", weights(round_activations(4, by_token=False)), TEXTS),
    row("weights and activations in 4 bits", weights(both(round_weights(4), round_activations(4, by_token=True))), ALL),
    row("an infinite weight", weights(_infinite), ALL),
    row("dropout left on", _dropout, ALL, but=("modernbert", "vit")),
    row("positions from 1", weights(_positions(1)), LEARNT_POSITIONS),
    row("positions from the end", weights(_positions(-7)), LEARNT_POSITIONS),
    row("positions left out", weights(lambda m: table(m, "position_embeddings").zero_()), LEARNT_POSITIONS),
    row("rotary positions stand still", weights(_rotation(0.0)), ("modernbert",)),
    row("rotary positions at half speed", weights(_rotation(0.5)), (), within=("modernbert",)),
    row("relative positions reversed", weights(_relative_reversed), ("deberta",)),
    row("token ids off by one", weights(_id_off_by_one)),
    row("token ids in seven bits", weights(_seven_bits)),
    row("a shard of the embeddings missing", weights(_shard_missing)),
    row("two words' embeddings zeroed", weights(_two_words_zeroed), within=("roberta", "modernbert", "deberta")),
    row("the layers don't see the mask", weights(encoder_mask(lambda _, mask: mask * 0 + 1))),
    row("CLS pooling", _pooling("cls"), ("bert",)),
    row("largest value for mean", _pooling("max"), EMBEDDINGS),
    row("mean pooling", _pooling("mean"), ("mpnet",)),
    row("a sum for the mean, unnormalised", weights(lambda _: None, _summed), ("bert",)),
    row("normalisation dropped", weights(lambda _: None, _without_steps), EMBEDDINGS),
    row("the pooling counts the padding", then(weights(encoder_mask(_true_mask)), _no_mask), ("bert",)),
)
