"""What a Hugging Face directory is taken for, what it computes, and what is refused with a next step."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.sources.making import edit_json, write_bert, write_sentence_layout, write_tokenizer

from vengine.errors import SourceError
from vengine.sources import open_source
from vengine.sources.huggingface import load_module

FACTORIES = {
    "bare": "AutoModel",
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "masked": "AutoModelForMaskedLM",
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bert(tmp_path_factory.mktemp("bert") / "tiny bert")


@pytest.fixture
def copy(bert: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(bert, tmp_path / "copy"))


@pytest.mark.parametrize(
    ("kind", "more", "asked", "task", "outputs", "labels"),
    [
        (
            "bare",
            {},
            None,
            "features",
            {"last_hidden_state": ("batch", "length", 32), "pooler_output": ("batch", 32)},
            0,
        ),
        ("masked", {}, None, "features", {"last_hidden_state": ("batch", "length", 32)}, 0),
        ("bare", {}, "embedding", "embedding", {"sentence_embedding": ("batch", 32)}, 0),
        ("sequence", {"num_labels": 3}, None, "classification", {"logits": ("batch", 3)}, 3),
        ("sequence", {}, None, "classification", {"logits": ("batch", 2)}, 2),
        ("sequence", {"num_labels": 1}, None, "scoring", {"logits": ("batch", 1)}, 0),
        ("sequence", {"num_labels": 3}, "features", "features", {"last_hidden_state": ("batch", "length", 32)}, 0),
        ("token", {"num_labels": 5}, None, "token-classification", {"logits": ("batch", "length", 5)}, 5),
    ],
)
def test_what_a_directory_is_taken_for(
    tmp_path: Path, kind: str, more: Any, asked: Any, task: str, outputs: dict[str, Any], labels: int
) -> None:
    source = open_source(write_bert(tmp_path / "m", FACTORIES[kind], **more), cache=tmp_path / "c", task=asked)
    found = {spec.name: spec.shape for spec in source.outputs}
    assert source.task == task
    assert {name: found.get(name) for name in outputs} == outputs
    assert len(source.labels) == labels
    assert [spec.name for spec in source.inputs] == ["input_ids", "attention_mask", "token_type_ids"]
    assert source.max_tokens == 300
    assert source.kind == "huggingface"


@pytest.mark.parametrize("several", [True, False])
def test_a_directory_says_whether_a_text_may_have_several_labels(tmp_path: Path, several: bool) -> None:
    more = {"problem_type": "multi_label_classification"} if several else {}
    folder = write_bert(tmp_path / "m", FACTORIES["sequence"], num_labels=3, **more)
    source = open_source(folder, cache=tmp_path / "c")
    assert source.several_labels is several
    assert any("several labels" in note for note in source.notes) is several


def test_facts_for_people(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "m").symlink_to(bert)
    source = open_source(tmp_path / "m", cache=tmp_path / "c")
    assert (source.name, source.architecture, source.licence) == ("tiny-bert", "BertModel", "unknown")
    assert source.weight_bytes == 4 * source.parameters > 0


@pytest.mark.parametrize(
    ("pooling", "reference"),
    [
        ("mean", lambda h, m: (h * m).sum(1) / m.sum(1)),
        ("cls", lambda h, m: h[:, 0]),
        ("max", lambda h, m: np.where(m > 0, h, -np.inf).max(1)),
        ("mean_sqrt_len", lambda h, m: (h * m).sum(1) / np.sqrt(m.sum(1))),
        ("weightedmean", lambda h, m: (h * m * _places(h)).sum(1) / (m * _places(h)).sum(1)),
        ("lasttoken", lambda h, m: np.stack([r[int(k) - 1] for r, k in zip(h, m.sum((1, 2)), strict=True)])),
    ],
)
def test_poolings(copy: Path, pooling: str, reference: Callable[[Any, Any], Any]) -> None:
    write_sentence_layout(copy, {_flag(pooling): True})
    hidden = _run(load_module(copy, "features"))["last_hidden_state"]
    got = _run(load_module(copy))["sentence_embedding"]
    np.testing.assert_allclose(got, reference(hidden, _MASK[..., None].astype(np.float32)), atol=1e-5)


def test_poolings_join_in_the_library_s_order_and_dense_and_normalize_follow(copy: Path, tmp_path: Path) -> None:
    write_sentence_layout(copy, {_flag("mean"): True, _flag("cls"): True})
    hidden = _run(load_module(copy, "features"))["last_hidden_state"]
    joined = _run(load_module(copy))["sentence_embedding"]
    assert joined.shape == (2, 64)
    np.testing.assert_allclose(joined[:, :32], hidden[:, 0], atol=1e-6)
    source = open_source(copy, cache=tmp_path / "c")
    assert (source.pooling, source.normalize) == ("cls+mean", False)


def test_dense_and_normalize_are_inside(copy: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    write_sentence_layout(copy, {"pooling_mode": "mean"}, "Dense", "Normalize")
    edit_json(copy / "tokenizer_config.json")
    (copy / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    source = open_source(copy, cache=tmp_path / "c")
    assert (source.task, source.pooling, source.normalize, source.max_tokens) == ("embedding", "mean", True, 128)
    assert source.outputs[0].shape == ("batch", 8)
    weights = load_file(copy / "2_Dense" / "model.safetensors")
    hidden = _run(load_module(copy, "features"))["last_hidden_state"]
    mask = _MASK[..., None].astype(np.float32)
    vector = np.tanh((hidden * mask).sum(1) / mask.sum(1) @ weights["linear.weight"].T + weights["linear.bias"])
    vector /= np.linalg.norm(vector, axis=1, keepdims=True)
    np.testing.assert_allclose(_run(load_module(copy))["sentence_embedding"], vector, atol=1e-5)


def test_a_tokenizer_s_own_limits_are_noted(copy: Path, tmp_path: Path) -> None:
    write_tokenizer(copy, padding=128, truncation=64)
    notes = open_source(copy, cache=tmp_path / "c").notes
    assert "the tokenizer's own padding to 128 is switched off" in notes
    assert "the tokenizer's own truncation at 64 tokens is switched off" in notes


def test_an_older_vocabulary_is_converted_and_kept(copy: Path, tmp_path: Path) -> None:
    tokens = json.loads((copy / "tokenizer.json").read_text())["model"]["vocab"]
    (copy / "tokenizer.json").unlink()
    (copy / "vocab.txt").write_text("\n".join(sorted(tokens, key=tokens.__getitem__)) + "\n")
    source = open_source(copy, cache=tmp_path / "c")
    assert source.tokenizer is not None
    assert source.tokenizer.is_relative_to(tmp_path / "c")
    from tokenizers import Tokenizer

    assert Tokenizer.from_file(str(source.tokenizer)).encode("the engine stops").ids == [2, 5, 7, 12, 3]
    assert open_source(copy, cache=tmp_path / "c").tokenizer == source.tokenizer


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("nothing", True),
        ("split into two files", True),
        ("who saved it", True),
        ("padding of the tokenizer", True),
        ("one weight", False),
        ("an activation", False),
        ("a token", False),
        ("pooling", False),
    ],
)
def test_the_digest_names_content(bert: Path, copy: Path, tmp_path: Path, change: str, same: bool) -> None:
    _CHANGES[change](copy)
    before, after = (open_source(d, cache=tmp_path / "c").digest for d in (bert, copy))
    assert (before == after) is same


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("no weights", "model.safetensors is missing"),
        ("only a pickle", "pytorch_model.bin, and a pickle can run code"),
        ("truncated", "truncated"),
        ("ten bytes", "not a whole safetensors file"),
        ("a missing weight", "has no encoder.layer.0.output.dense.bias"),
        ("a weight too many", "has left-over surplus.weight"),
        ("another shape", "has another shape for"),
        ("an absurd vocabulary", "it describes 3,"),
        ("absurdly many layers", "num_hidden_layers is 1,000,000,000, and the checkpoint holds"),
        ("a head that is not there", "has no classifier"),
        ("no tokenizer", "the tokenizer is missing"),
        ("a broken tokenizer", "tokenizer"),
        ("a broken configuration", "config.json can't be read as JSON"),
        ("a decoder", "GPT2LMHeadModel is a kind of model that isn't supported yet"),
        ("an unknown architecture", "can't build the model"),
        ("an unknown pooling", "unknown pooling 'median'"),
        ("an unknown module", "isn't supported here: CNN"),
        ("a module outside", "points out of the model's directory"),
        ("a shard that is missing", "a part of the weights is missing"),
        ("a shard outside", "names an unsafe file"),
        ("an adapter", "an adapter for another model"),
    ],
)
def test_what_is_refused(copy: Path, tmp_path: Path, damage: str, says: str) -> None:
    _DAMAGES[damage](copy)
    with pytest.raises(SourceError, match=says):
        open_source(copy, cache=tmp_path / "c")


def test_odd_weights_are_noted(copy: Path, tmp_path: Path) -> None:
    _edit_weights(copy, lambda w: w["encoder.layer.0.output.dense.bias"].__setitem__(slice(0, 3), 1e-40))
    assert any("3 of" in note and "denormal" in note for note in open_source(copy, cache=tmp_path / "c").notes)


def test_code_in_the_directory_is_not_run(copy: Path, tmp_path: Path) -> None:
    (copy / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    edit_json(copy / "config.json", auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"})
    source = open_source(copy, cache=tmp_path / "c")
    assert not (tmp_path / "ran").exists()
    assert any("is not run" in note for note in source.notes)


_IDS = np.array([[2, 7, 8, 9, 3], [2, 10, 3, 0, 0]])
_MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


def _run(module: Any) -> dict[str, Any]:
    import torch

    feeds = {"input_ids": _IDS, "attention_mask": _MASK, "token_type_ids": np.zeros_like(_IDS)}
    with torch.no_grad():
        return {k: v.numpy() for k, v in module(**{k: torch.from_numpy(v) for k, v in feeds.items()}).items()}


def _places(hidden: Any) -> Any:
    return np.arange(1, hidden.shape[1] + 1, dtype=np.float32)[None, :, None]


def _flag(pooling: str) -> str:
    names = {"cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len": "mean_sqrt_len_tokens"}
    return "pooling_mode_" + names.get(pooling, {"weightedmean": "weightedmean_tokens"}.get(pooling, pooling))


def _edit_weights(directory: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    from safetensors.numpy import load_file, save_file

    weights = {k: v.copy() for k, v in load_file(directory / "model.safetensors").items()}
    change(weights)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _split(directory: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    halves = [dict(list(weights.items())[::2]), dict(list(weights.items())[1::2])]
    for i, half in enumerate(halves):
        save_file(half, directory / f"part-{i}.safetensors", metadata={"format": "pt", "half": str(i)})
    places = {name: f"part-{i}.safetensors" for i, half in enumerate(halves) for name in half}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _pooling(directory: Path, mode: str = "mean") -> None:
    write_sentence_layout(directory, {"pooling_mode": mode})


def _modules(directory: Path, **last: str) -> None:
    _pooling(directory)
    modules = json.loads((directory / "modules.json").read_text())
    (directory / "modules.json").write_text(json.dumps([*modules, {"path": "", **last}]))


def _cut(directory: Path, size: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])


_CHANGES: dict[str, Callable[[Path], Any]] = {
    "nothing": lambda d: None,
    "split into two files": _split,
    "who saved it": lambda d: edit_json(d / "config.json", _name_or_path="somebody/else", transformers_version="4.1"),
    "padding of the tokenizer": lambda d: write_tokenizer(d, padding=64),
    "one weight": lambda d: _edit_weights(d, lambda w: w["pooler.dense.bias"].__setitem__(0, 0.5)),
    "an activation": lambda d: edit_json(d / "config.json", hidden_act="relu"),
    "a token": lambda d: (d / "tokenizer.json").write_text((d / "tokenizer.json").read_text().replace("ship", "boat")),
    "pooling": _pooling,
}
_DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no weights": lambda d: (d / "model.safetensors").unlink(),
    "only a pickle": lambda d: (d / "model.safetensors").rename(d / "pytorch_model.bin"),
    "truncated": lambda d: _cut(d, 20_000),
    "ten bytes": lambda d: _cut(d, 10),
    "a missing weight": lambda d: _edit_weights(d, lambda w: w.pop("encoder.layer.0.output.dense.bias")),
    "a weight too many": lambda d: _edit_weights(d, lambda w: w.update({"surplus.weight": np.ones(2, np.float32)})),
    "an absurd vocabulary": lambda d: edit_json(d / "config.json", vocab_size=100_000_000_000),
    "absurdly many layers": lambda d: edit_json(d / "config.json", num_hidden_layers=10**9),
    "another shape": lambda d: edit_json(d / "config.json", intermediate_size=40),
    "a head that is not there": lambda d: edit_json(d / "config.json", architectures=["BertForSequenceClassification"]),
    "no tokenizer": lambda d: (d / "tokenizer.json").unlink(),
    "a broken tokenizer": lambda d: (d / "tokenizer.json").write_text('{"model": 5}'),
    "a broken configuration": lambda d: (d / "config.json").write_text("{"),
    "a decoder": lambda d: edit_json(d / "config.json", architectures=["GPT2LMHeadModel"], model_type="gpt2"),
    "an unknown architecture": lambda d: edit_json(d / "config.json", model_type="nonesuch"),
    "an unknown pooling": lambda d: _pooling(d, "median"),
    "an unknown module": lambda d: _modules(d, type="sentence_transformers.models.CNN"),
    "a module outside": lambda d: _modules(d, type="sentence_transformers.models.Dense", path="../.."),
    "a shard that is missing": lambda d: (_split(d), (d / "part-1.safetensors").unlink()),
    "a shard outside": lambda d: (d / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}'),
    "an adapter": lambda d: (d / "adapter_config.json").write_text("{}"),
}
