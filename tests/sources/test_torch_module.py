"""A module of the user's: what is free in it, that nothing of it changes, and that its answer comes back in shape."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.sources.making import config_of

from vengine.errors import SourceError, UsageError
from vengine.sources import describe_output, example_feeds, from_module, output_template, rebuild_output
from vengine.sources.torch_module import free_axes, load_program

Pair = collections.namedtuple("Pair", ["left", "right"])
ONES = torch.ones(2, 3)


@dataclass
class Answer:
    score: Any
    parts: Any = None


class Net(torch.nn.Module):
    """A small network on vectors, with dropout: only right in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        return self.drop(self.layer(x)).relu() * scale


class FixedLength(torch.nn.Module):
    """Reshapes by a number of its own: the length can't move."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, 4)

    def forward(self, input_ids: Any) -> Any:
        return self.table(input_ids).reshape(-1, 6 * 4).sum(1)


class FixedAll(torch.nn.Module):
    """Reshapes to sizes of its own: nothing can move."""

    def forward(self, x: Any) -> Any:
        return x.reshape(2, 2, 2) * 2


class Branching(torch.nn.Module):
    """Looks at its values: what is traced holds for the example only."""

    def forward(self, x: Any) -> Any:
        return x + 1 if float(x.sum()) > 0 else x - 1


class Random(torch.nn.Module):
    """Another answer each time."""

    def forward(self, x: Any) -> Any:
        return x + torch.rand_like(x)


def bert(**more: Any) -> Any:
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config_of("bert", **more))


TEXT = {"input_ids": torch.tensor([[2, 7, 8, 3]]), "attention_mask": torch.ones(1, 4, dtype=torch.int64)}


def test_a_transformers_model_with_one_text_as_example(tmp_path: Path) -> None:
    model = bert(num_labels=3).train()
    source = from_module(model, TEXT, directory=tmp_path, name="my intent model")
    assert model.training
    assert (source.kind, source.name, source.task, source.notes) == ("torch", "my-intent-model", "tensor", ())
    assert [(s.name, s.dtype, s.shape) for s in source.inputs] == [
        ("input_ids", "int64", ("batch", "length")),
        ("attention_mask", "int64", ("batch", "length")),
    ]
    assert [(s.name, s.shape) for s in source.outputs] == [("logits", ("batch", 3))]
    program, model = load_program(source.path), model.eval()
    for batch, length in ((1, 1), (1, 16), (3, 40)):
        feeds = {k: torch.from_numpy(v) for k, v in example_feeds(source, batch, length, padding="right").items()}
        torch.testing.assert_close(program(**feeds)["logits"], model(**feeds).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("module", "inputs", "shapes", "note"),
    [
        (Net(), {"x": torch.ones(1, 4)}, [("batch", 4)], None),
        (Net(), {"x": torch.ones(3, 4), "scale": 2.0}, [("batch", 4)], "scale stays fixed at 2.0"),
        (
            FixedLength(),
            {"input_ids": torch.ones(2, 6, dtype=torch.int64)},
            [("batch", 6)],
            "only the example's length",
        ),
        (FixedAll(), {"x": torch.ones(2, 4)}, [(2, 4)], "only the example's batch"),
    ],
)
def test_what_is_free(tmp_path: Path, module: Any, inputs: dict[str, Any], shapes: list[Any], note: str | None) -> None:
    source = from_module(module, inputs, directory=tmp_path)
    assert [spec.shape for spec in source.inputs] == shapes
    assert (note is None and source.notes == ()) or any(note in n for n in source.notes if note)


@pytest.mark.parametrize(
    ("module", "inputs", "says"),
    [
        (Branching(), {"x": ONES}, "can't be traced"),
        (Random(), {"x": ONES}, "answers otherwise than the module itself"),
        (Net().bfloat16(), {"x": ONES}, r"pass module\.float\(\)\.cpu\(\)"),
    ],
)
def test_what_is_refused(tmp_path: Path, module: Any, inputs: dict[str, Any], says: str) -> None:
    with pytest.raises(SourceError, match=says):
        from_module(module, inputs, directory=tmp_path)
    assert not (tmp_path / "module.pt2").exists()


def test_no_tensor_among_the_inputs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no tensor"):
        from_module(Net(), {"scale": 1.0}, directory=tmp_path)


def test_the_digest_names_weights_and_graph(tmp_path: Path) -> None:
    def digest(seed: int, module: type[Net] = Net) -> str:
        torch.manual_seed(seed)
        return from_module(module(), {"x": torch.ones(2, 4)}, directory=tmp_path / "d").digest

    class Other(Net):
        def forward(self, x: Any, scale: float = 1.0) -> Any:
            return self.layer(x).tanh()

    assert digest(0) == digest(0)
    assert digest(0) != digest(1)
    assert digest(0) != digest(0, Other)


@pytest.mark.parametrize(
    ("shapes", "axes"),
    [
        ({"ids": (2, 5), "mask": (2, 5)}, {"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 1: "length"}}),
        ({"ids": (2, 5), "other": (2, 7)}, {"ids": {0: "batch", 1: "length"}, "other": {0: "batch"}}),
        ({"ids": (2, 5), "table": (9, 5)}, {"ids": {0: "batch", 1: "length"}, "table": {}}),
        ({"number": ()}, {"number": {}}),
    ],
)
def test_free_axes(shapes: dict[str, Any], axes: dict[str, Any]) -> None:
    assert free_axes({name: torch.ones(shape, dtype=torch.int64) for name, shape in shapes.items()}) == axes


def test_float_inputs_have_no_length() -> None:
    assert free_axes({"x": torch.ones(2, 5)}) == {"x": {0: "batch"}}


@pytest.mark.parametrize(
    ("output", "names"),
    [
        (ONES, ["output"]),
        ((ONES, None, ONES + 1), ["output_0", "output_2"]),
        ([ONES, (ONES, 3)], ["output_0", "output_1_0"]),
        ({"a": ONES, "b": {"c": ONES}}, ["a", "b_c"]),
        (Pair(ONES, "word"), ["left"]),
        (Answer(score=ONES, parts=[ONES, ONES]), ["score", "parts_0", "parts_1"]),
    ],
)
def test_an_answer_comes_back_with_its_class_and_fields(output: Any, names: list[str]) -> None:
    template, tensors = describe_output(output)
    assert list(tensors) == list(template.names) == names
    again = rebuild_output(template, {name: tensor * 2 for name, tensor in tensors.items()})
    assert type(again) is type(output)
    twice, halves = describe_output(again)
    assert twice == template
    assert all(torch.equal(halves[name], tensors[name] * 2) for name in names)


def test_transformers_output_class_comes_back() -> None:
    model = bert(output_hidden_states=True)
    template = output_template(model, TEXT)
    assert template.names == ("logits", "hidden_states_0", "hidden_states_1", "hidden_states_2")
    again = rebuild_output(template, dict.fromkeys(template.names, ONES))
    assert type(again).__name__ == "SequenceClassifierOutput"
    assert again.logits is ONES
    assert len(again.hidden_states) == 3
    assert again.loss is None


def test_a_part_that_is_no_tensor_is_refused() -> None:
    with pytest.raises(SourceError, match="class set"):
        describe_output({"a": ONES, "b": {1, 2}})


def test_examples_follow_the_users_values(tmp_path: Path) -> None:
    source = from_module(bert(), TEXT, directory=tmp_path)
    feeds = example_feeds(source, 3, 12, padding="left", masked_row=2)
    assert feeds["input_ids"].max() <= 8
    assert feeds["attention_mask"].tolist() == [[0] * 4 + [1] * 8, [1] * 12, [0] * 12]
    again = example_feeds(source, 3, 12, padding="left", masked_row=2)
    assert all(np.array_equal(feeds[name], again[name]) for name in feeds)
