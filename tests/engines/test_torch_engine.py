"""torch: exported programs are run and never unpickled; outputs keep their names."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.making import ONE, text_feeds

from vengine.engines.base import Session, get_engine
from vengine.engines.torch_engine import named_outputs
from vengine.errors import EngineError, UsageError

torch = pytest.importorskip("torch", reason="torch is not installed")


class Toy(torch.nn.Module):  # type: ignore[misc]
    """Embeds, scales by a constant, and pools over the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(100, 8)
        self.register_buffer("gain", torch.full((8,), 2.0))

    def forward(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        hidden = self.table(input_ids) * self.gain + torch.tensor([0.5])
        mask = attention_mask.unsqueeze(-1)
        return {"pooled": (hidden * mask).sum(1) / mask.sum(1), "hidden": hidden}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    torch.manual_seed(0)
    module, path = Toy().eval(), tmp_path_factory.mktemp("program") / "module.pt2"
    example = {name: torch.from_numpy(array) for name, array in text_feeds(2, 5).items()}
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(module, (), example, dynamic_shapes=dict.fromkeys(example, free))
    torch.export.save(exported, path)
    return path, module


def open_program(path: Path, precision: str = "fp32") -> Session:
    return get_engine("torch").open(path, precision, ONE)


def test_an_exported_program_runs_at_any_size(program: tuple[Path, Any]) -> None:
    path, module = program
    session = open_program(path)
    assert [(spec.name, spec.dtype, spec.shape) for spec in session.inputs] == [
        ("input_ids", "int64", ("batch", "length")),
        ("attention_mask", "int64", ("batch", "length")),
    ]
    assert [(spec.name, spec.shape) for spec in session.outputs] == [
        ("pooled", ("batch", 8)),
        ("hidden", ("batch", "length", 8)),
    ]
    for batch, length in ((1, 1), (1, 16), (3, 40)):
        feeds = text_feeds(batch, length)
        wanted = module(**{name: torch.from_numpy(array) for name, array in feeds.items()})
        for name, array in session.run(feeds).items():
            np.testing.assert_allclose(array, wanted[name].detach().numpy(), atol=1e-6)


def test_read_only_feeds_are_taken_without_a_warning(program: tuple[Path, Any]) -> None:
    feeds = text_feeds()
    for array in feeds.values():
        array.flags.writeable = False
    assert open_program(program[0]).run(feeds)["pooled"].shape == (2, 8)


class Mark:
    """Unpickling this creates a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._path,)


def rewritten(path: Path, target: Path, change: Callable[[str, bytes], bytes | None], **extra: bytes) -> Path:
    """A copy of an archive with members changed, dropped (None) or added, stored as torch stores them."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        root = old.namelist()[0].split("/")[0]
        for name in old.namelist():
            content = change(name.split("/", 1)[1], old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name, content in extra.items():
            new.writestr(f"{root}/{name.replace('__', '/')}", content)
    return target


def unchanged(_: str, content: bytes) -> bytes:
    return content


@pytest.mark.parametrize("what", ["samples", "weights", "object", "native", "old weights"])
def test_nothing_is_ever_unpickled(program: tuple[Path, Any], tmp_path: Path, what: str) -> None:
    mark, bad = tmp_path / "unpickled", tmp_path / "bad.pt2"
    poison = pickle.dumps(Mark(mark))
    boxed = tmp_path / "poison.pt"
    torch.save(Mark(mark), boxed)

    def swap(member: str, flag: bytes = b"", by: bytes = b"") -> Callable[[str, bytes], bytes]:
        return lambda name, old: (boxed.read_bytes() if not flag else old.replace(flag, by)) if name == member else old

    changes: dict[str, tuple[Callable[[str, bytes], bytes | None], dict[str, bytes]]] = {
        "samples": (swap("data/sample_inputs/model.pt"), {}),
        "weights": (
            swap("data/weights/model_weights_config.json", b'"use_pickle": false', b'"use_pickle": true'),
            {},
        ),
        "object": (
            swap("data/constants/model_constants_config.json", b'"tensor_0"', b'"opaque_obj_0"'),
            {"data__constants__opaque_obj_0": poison},
        ),
        "native": (unchanged, {"data__aotinductor__model__wrapper.so": b"\x7fELF"}),
        "old weights": (unchanged, {"data__weights__model.pt": boxed.read_bytes()}),
    }
    with pytest.raises(EngineError, match="never loaded"):
        open_program(rewritten(program[0], bad, *changes[what][:1], **changes[what][1]))
    assert not mark.exists()


def test_the_rewriting_itself_breaks_nothing(program: tuple[Path, Any], tmp_path: Path) -> None:
    copy = rewritten(program[0], tmp_path / "copy.pt2", unchanged)
    assert open_program(copy).run(text_feeds())["pooled"].shape == (2, 8)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a program", None, "truncated"])
def test_damaged_programs_are_refused(program: tuple[Path, Any], tmp_path: Path, content: Any) -> None:
    path = tmp_path / "m.pt2"
    if content == "truncated":
        path.write_bytes(program[0].read_bytes()[:-200])
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineError, match=r"can't be read|isn't there"):
        open_program(path)


def test_calls_and_precisions_that_cannot_be(program: tuple[Path, Any]) -> None:
    with pytest.raises(EngineError, match="no precision 'bf16'"):
        open_program(program[0], "bf16")
    with pytest.raises(UsageError, match="is missing"):
        open_program(program[0]).run({"input_ids": np.ones((1, 2), dtype=np.int64)})
    with pytest.raises(EngineError, match="failed to run"):
        open_program(program[0]).run({name: array * 1000 for name, array in text_feeds().items()})


@pytest.mark.parametrize(
    ("results", "names"),
    [
        ({"a": torch.ones(1), "skipped": None}, ["a"]),
        ((torch.ones(1), None, torch.ones(2)), ["output_0", "output_1"]),
        (torch.ones(1), ["output"]),
    ],
)
def test_outputs_have_names(results: Any, names: list[str]) -> None:
    assert list(named_outputs(results)) == names


def test_an_answer_without_tensors_is_refused() -> None:
    with pytest.raises(EngineError, match="returned float"):
        named_outputs(3.0)


def test_a_directory_is_opened_with_names_and_free_axes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    session = get_engine("torch").open(tmp_path / "model", "fp32", ONE)
    assert [spec.name for spec in session.inputs][:2] == ["input_ids", "attention_mask"]
    assert ("last_hidden_state", ("batch", "length", 32)) in [(spec.name, spec.shape) for spec in session.outputs]
    feeds = {spec.name: np.ones((2, 9), dtype=np.int64) for spec in session.inputs} | text_feeds(2, 9)
    if "token_type_ids" in feeds:
        feeds["token_type_ids"] = np.zeros((2, 9), dtype=np.int64)
    assert session.run(feeds)["last_hidden_state"].shape == (2, 9, 32)
