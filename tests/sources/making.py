"""Tiny random models in every kind that a source can be, and wheels around them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

WORDS = ("the", "a", "engine", "car", "fast", "slow", "turns", "stops", "red", "blue", "ship", "sails", "quickly")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 320,
}


def write_tokenizer(directory: Path, *, padding: int | None = None, truncation: int | None = None) -> None:
    """A WordPiece tokenizer of a few words, with or without limits of its own."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {token: i for i, token in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    if padding:
        tokenizer.enable_padding(length=padding)
    if truncation:
        tokenizer.enable_truncation(truncation)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"model_max_length": 300, "tokenizer_class": "BertTokenizer"}')


def config_of(kind: str, **more: Any) -> Any:
    """A small configuration of one of transformers' model types."""
    from transformers import AutoConfig

    return AutoConfig.for_model(kind, **{**SMALL, **more})


def write_model(directory: Path, config: Any, factory: str = "AutoModel", *, seed: int = 0, **tokenizer: Any) -> Path:
    """A random model of this configuration as a Hugging Face directory."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = getattr(transformers, factory).from_config(config)
    model.save_pretrained(directory)
    write_tokenizer(directory, **tokenizer)
    return directory


def write_bert(directory: Path, factory: str = "AutoModel", **more: Any) -> Path:
    """A random two-layer BERT."""
    return write_model(directory, config_of("bert", **more), factory)


def write_sentence_layout(directory: Path, pooling: Mapping[str, Any], *steps: str) -> None:
    """Turn a model directory into a sentence-transformers one: pooling, then "Normalize" or a "Dense" of 8."""
    import torch
    from safetensors.torch import save_file

    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for step in ("Pooling", *steps):
        at = len(modules)
        folder = directory / f"{at}_{step}"
        folder.mkdir()
        modules.append(
            {"idx": at, "name": str(at), "path": folder.name, "type": f"sentence_transformers.models.{step}"}
        )
        if step == "Pooling":
            (folder / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
        if step == "Dense":
            torch.manual_seed(7)
            settings = {"in_features": 32, "out_features": 8, "bias": True}
            activation = {"activation_function": "torch.nn.modules.activation.Tanh"}
            (folder / "config.json").write_text(json.dumps({**settings, **activation}))
            layer = torch.nn.Linear(32, 8)
            save_file({f"linear.{k}": v for k, v in layer.state_dict().items()}, folder / "model.safetensors")
    (directory / "modules.json").write_text(json.dumps(modules))


def edit_json(path: Path, **values: Any) -> None:
    """Change some keys of a JSON object in place."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def write_onnx(path: Path, *, opset: int = 17, external: str | None = None, node: str = "Relu", width: int = 4) -> Path:
    """y = node(x @ w + b) for x [N, width] → y [N, 3], perhaps with its weights in a file of its own."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((width, 3)), "b": random.standard_normal(3)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
            helper.make_node("Add", ["m", "b"], ["s"], name="sum"),
            helper.make_node(node, ["s"], ["y"], name="last"),
        ],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    if external:
        onnx.save_model(
            model, str(path), save_as_external_data=True, location=external, size_threshold=0, convert_attribute=False
        )
    else:
        path.write_bytes(model.SerializeToString())
    return path


def write_wheel(path: Path, files: Mapping[str, bytes], *, licence: str = "MIT", version: str = "1.0") -> Path:
    """A wheel of these files; its METADATA states name, version and licence."""
    name = path.name.split("-")[0]
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nLicense: {licence}\n\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    everything = {**files, f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    everything[f"{info}/RECORD"] = "".join(f"{n},,\n" for n in (*everything, f"{info}/RECORD")).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in everything.items():
            archive.writestr(entry, data)
    return path


def onnx_bytes(folder: Path) -> bytes:
    """The bytes of `write_onnx`'s model."""
    return write_onnx(folder / "bytes.onnx").read_bytes()


def zip_of(entries: list[tuple[zipfile.ZipInfo, bytes]]) -> io.BytesIO:
    """A zip whose entries are written exactly as given."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for info, data in entries:
            archive.writestr(info, data)
    buffer.seek(0)
    return buffer
