"""Small random models of fourteen architectures: what today's exporter writes for them is what passes must match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.sources.making import config_of, write_model

from vengine.graph import export as exporting
from vengine.sources import from_module, open_source
from vengine.types import Source

_MARKS = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
_ENDS = {"bos_token_id": 2, "eos_token_id": 3}
_IMAGE = {"image_size": 16, "patch_size": 8}
_RELATIVE = {
    "type_vocab_size": 0,
    "relative_attention": True,
    "position_buckets": 16,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "max_relative_positions": -1,
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """One of transformers' model types, small."""

    kind: str
    more: Mapping[str, Any] = field(default_factory=dict)
    factory: str = "AutoModel"
    opset: int = 23  # the newest that the runtime agrees with


# The rotary operator of set 23 is refused by the runtime at batches above 1, and torch's exporter fails on T5 there:
# those models are exported as 20, which is what `export` falls back to by itself.
ARCHITECTURES: Mapping[str, Architecture] = {
    "BERT": Architecture(kind="bert"),
    "DistilBERT": Architecture(kind="distilbert", more={"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}),
    "RoBERTa": Architecture(kind="roberta", more={"type_vocab_size": 1}),
    "MiniLM": Architecture(kind="bert", more={"hidden_size": 48, "num_attention_heads": 12, "num_hidden_layers": 3}),
    "XLM-R": Architecture(kind="xlm-roberta", more={"type_vocab_size": 1}),
    "ELECTRA": Architecture(kind="electra", more={"embedding_size": 16}),
    "DeBERTa-v3": Architecture(kind="deberta-v2", more=_RELATIVE),
    "ModernBERT": Architecture(
        kind="modernbert", more={**_MARKS, "local_attention": 16, "global_attn_every_n_layers": 2}, opset=20
    ),
    "T5 encoder": Architecture(
        kind="t5",
        more={"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu"},
        opset=20,
    ),
    "GPT-2": Architecture(kind="gpt2", more={"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 320, **_ENDS}),
    "Llama": Architecture(kind="llama", more={"num_key_value_heads": 2, **_ENDS}, opset=20),
    "Qwen": Architecture(kind="qwen2", more={"num_key_value_heads": 2, "max_window_layers": 2, **_ENDS}, opset=20),
    "ViT": Architecture(kind="vit", more={**_IMAGE, "num_labels": 3}, factory="AutoModelForImageClassification"),
    "CLIP": Architecture(kind="clip_vision_model", more={**_IMAGE, "projection_dim": 16}),
}


def settings(name: str) -> Mapping[str, Any]:
    """The architecture's config, as config.json holds it."""
    made = ARCHITECTURES[name]
    found: Mapping[str, Any] = config_of(made.kind, **made.more).to_dict()
    return found


def source(name: str, folder: Path) -> Source:
    """A random model of this architecture as a source."""
    made = ARCHITECTURES[name]
    config = config_of(made.kind, **made.more)
    if made.kind != "t5":
        return open_source(write_model(folder / "model", config, made.factory), cache=folder / "cache")
    import torch
    import transformers

    torch.manual_seed(0)  # a checkpoint of an encoder alone is no source of its own
    ids = torch.randint(4, 60, (2, 16))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # torch can't decompose the attention of torch itself here ("Cannot view a tensor"); written out, it exports.
    config._attn_implementation = "eager"
    return from_module(transformers.T5EncoderModel(config).eval(), inputs, directory=folder / "module", task="features")


def exported(name: str, folder: Path, opset: int | None = None) -> tuple[Source, Path]:
    """The source and its graph in this operator set, the newest by default."""
    made = source(name, folder)
    kept, exporting.OPSETS = exporting.OPSETS, (opset or ARCHITECTURES[name].opset,)
    try:
        return made, exporting.export(made, folder / f"opset-{opset}").path
    finally:
        exporting.OPSETS = kept
