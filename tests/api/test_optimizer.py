"""`VectorizationOptimizer`: the module's own call, its own output class, and every option obeyed or refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.sources.making import SMALL, write_tokenizer
from tests.tune.making import texts

import vengine
from vengine.api.optimizer import VectorizationOptimizer
from vengine.engines.base import ENGINES
from vengine.errors import DataError, UsageError
from vengine.hardware import machine
from vengine.tune.build import Workshop
from vengine.tune.candidates import candidates
from vengine.types import Budget, Source

pytestmark = pytest.mark.timed


@pytest.fixture(autouse=True)
def quiet_traces() -> Iterator[None]:
    """torch and transformers warn while they trace, of things that nobody here can change."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def optimizer(cache: Path, **options: Any) -> VectorizationOptimizer:
    return VectorizationOptimizer(time=options.pop("time", 1), threads=1, cache=cache, **options)


class Plain(torch.nn.Module):
    """A module without transformers: tensors in, a dict out."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, 64), torch.nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.first(x))
        return {"logits": self.second(hidden), "hidden": hidden}


def rows(count: int = 40) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.randn(1, 24, generator=torch.Generator().manual_seed(i))} for i in range(count)]


def plain() -> Plain:
    torch.manual_seed(0)
    return Plain()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all, so that what is the same question is asked once."""
    return tmp_path_factory.mktemp("cache")


def test_a_transformers_model_keeps_its_call_and_its_output_class(shared: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SMALL, num_labels=3, id2label={0: "a", 1: "b", 2: "c"}))
    model.train()  # the optimiser must not care, and must not change it
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    write_tokenizer(tmp_path)
    tuner = optimizer(shared, precision="fp32")
    fast = tuner.optimize(model, data=texts(40), tokenizer=tmp_path / "tokenizer.json", max_tokens=32)
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    model.eval()
    ids = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 9, 3, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long(), "token_type_ids": torch.zeros_like(ids)}
    with torch.inference_mode():
        want, got = model(**inputs), fast(**inputs)
    assert type(got) is type(want)
    assert list(got.keys()) == list(want.keys())
    torch.testing.assert_close(got.logits, want.logits, atol=2e-5, rtol=0)
    torch.testing.assert_close(fast(ids, inputs["attention_mask"]).logits, want.logits, atol=2e-5, rtol=0)
    assert fast.report["task"] == "classification"

    saved = fast.save(tmp_path / "intent.vengine")
    session = vengine.load(saved).session()
    outputs = session.run({spec.name: inputs[spec.name].numpy() for spec in session.inputs})
    np.testing.assert_allclose(outputs["logits"], want.logits.numpy(), atol=2e-5)
    session.close()
    with pytest.raises(UsageError, match="inputs_embeds"):
        fast(**inputs, inputs_embeds=torch.zeros(2, 5, 32))


def test_a_plain_module_with_feeds_as_data(shared: Path, tmp_path: Path) -> None:
    model = plain().eval()
    fast = optimizer(shared, precision="fp32").optimize(model, data=rows())
    x = torch.randn(7, 24)
    with torch.inference_mode():
        want, got = model(x), fast(x)
    assert isinstance(got, dict)
    assert list(got) == ["logits", "hidden"]
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, atol=1e-5, rtol=0)
    with contextlib.closing(vengine.load(fast.save(tmp_path / "plain.vengine")).session()) as session:
        np.testing.assert_allclose(session.run({"x": x.numpy()})["logits"], want["logits"].numpy(), atol=1e-5)


def test_a_module_that_is_kept_ships_as_a_graph_and_not_as_a_program_file(shared: Path, tmp_path: Path) -> None:
    """A .pt2 may hold pickles. With a budget of nothing int8 can't win, so the original ships."""
    model = plain().eval()
    fast = optimizer(shared, precision="int8", budget=0.0).optimize(model, data=rows())
    assert not fast.report["met"]
    saved = fast.save(tmp_path / "kept.vengine")
    files = [p.name for p in saved.rglob("*") if p.is_file()]
    assert not [name for name in files if name.endswith(".pt2")]
    assert "model.onnx" in files
    assert [(v["engine"], v["precision"]) for v in fast.report["variants"]] == [("onnxruntime", "reference")]
    x = torch.randn(3, 24)
    with torch.inference_mode():
        want = model(x)
    torch.testing.assert_close(fast(x)["logits"], want["logits"], atol=0, rtol=0)  # the module itself answers
    session = vengine.load(saved).session()
    np.testing.assert_allclose(session.run({"x": x.numpy()})["logits"], want["logits"].numpy(), atol=1e-5)
    session.close()


@pytest.mark.parametrize(
    ("options", "precisions"),
    [
        ({"precision": "fp32"}, {"fp32"}),
        ({"optimization_level": "safe"}, {"fp32"}),
        ({"precision": "bf16"}, {"bf16"}),
        ({"precision": "int8"}, {"int8-static", "int8-dynamic", "int8-static-bf16", "int8-weights"}),
        ({"precision": "int4"}, {"int4-weights"}),
    ],
    ids=["fp32", "safe", "bf16", "int8", "int4"],
)
def test_precision_and_level_restrict_what_is_tried(options: dict[str, Any], precisions: set[str]) -> None:
    settings = VectorizationOptimizer(**options).settings
    recipes, refused = candidates(toy_source(), machine(), settings, 1, ENGINES)
    assert {r.precision for r in recipes} | {t.recipe.precision for t in refused} == precisions
    assert all(r.exactness != "lossy" for r in recipes) is (precisions == {"fp32"})


@pytest.mark.parametrize(
    ("options", "quantised"),
    [({}, 2), ({"force_fp32": ["second"]}, 1), ({"op_types_to_quantize": ["first"]}, 1)],
    ids=["all", "force_fp32", "op_types_to_quantize"],
)
def test_the_words_reach_the_quantiser(options: dict[str, Any], quantised: int, tmp_path: Path) -> None:
    """From the constructor's arguments to the file that an engine opens."""
    import onnx

    exported, names = _exported(plain(), tmp_path)
    words = {key: [names[word] for word in value] for key, value in options.items()}
    settings = VectorizationOptimizer(precision="int8", **words).settings
    recipes, _ = candidates(toy_source(), machine(), settings, 1, ENGINES)
    recipe = next(r for r in recipes if r.precision == "int8-static")
    feeds = [{"x": row["x"].numpy()} for row in rows(8)]
    shop = Workshop(model=exported, directory=tmp_path / "built", calibration=feeds, transformer=False)
    variant = shop.build(recipe)
    assert _integer_products(onnx.load(variant.directory / variant.entry)) == quantised


def _exported(model: Any, folder: Path) -> tuple[Path, dict[str, str]]:
    """The graph, and the exporter's names of the two products."""
    import onnx

    from vengine.graph.export import export
    from vengine.sources import from_module

    source = from_module(model, {"x": torch.randn(2, 24)}, directory=folder / "module")
    path = export(source, folder / "exported").path
    nodes = onnx.load(path, load_external_data=False).graph.node
    first, second = [n.name for n in nodes if n.op_type in ("MatMul", "Gemm")]
    return path, {"first": first, "second": second}


def toy_source() -> Source:
    """Any source that every engine opens."""
    return Source(
        kind="onnx",
        name="m",
        location="m",
        path=Path("m"),
        task="tensor",
        digest="sha256:0",
        licence="unknown",
        parameters=1,
        weight_bytes=4,
        inputs=(),
        outputs=(),
    )


def _integer_products(graph: Any) -> int:
    made = {n.output[0] for n in graph.graph.node if n.op_type == "DequantizeLinear"}
    return sum(n.op_type in ("MatMul", "Gemm") and n.input[1] in made for n in graph.graph.node)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_hardware": "cuda"}, "no engine here"),
        ({"precision": "int2"}, "int2"),
        ({"optimization_level": "wild"}, "wild"),
        ({"optimization_level": "safe", "precision": "int8"}, "lossy"),
        ({"precision": "fp32", "op_types_to_quantize": ["MatMul"]}, "no effect"),
        ({"keep_io_types": False}, "only the precision 'fp16' does"),
        ({"keep_io_types": False, "precision": "bf16"}, "only the precision 'fp16' does"),
        ({"time": 0}, "no trial"),
    ],
    ids=lambda v: "-".join(map(str, v)) if isinstance(v, dict) else "",
)
def test_an_option_is_obeyed_or_refused_and_never_dropped(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        VectorizationOptimizer(**options)


def test_a_memory_limit_beside_a_budget_counts() -> None:
    tuner = VectorizationOptimizer(budget=Budget(max_drop=0.02), memory_limit=1 << 30)
    assert (tuner.budget.max_drop, tuner.budget.memory_limit_bytes) == (0.02, 1 << 30)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], DataError, "empty"),
        ([{"x": torch.zeros(2, 24)}] * 3, DataError, "batch axis"),
        ([{"x": torch.zeros(1, 24)}, 5], DataError, "int"),
        (None, UsageError, "nothing to trace"),
    ],
    ids=["empty", "batch of two", "a number", "nothing"],
)
def test_data_that_does_not_fit(data: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    examples = None if data is None else {"x": torch.zeros(2, 24)}
    with pytest.raises(error, match=message):
        optimizer(tmp_path).optimize(plain(), data=data, example_inputs=examples)
