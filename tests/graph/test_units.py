"""Units taken back into float: the float graph to the bit, one culprit found, and what must not be a unit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from tests.graph.breaking import labelled, write_breaking
from tests.graph.graphs import model, node, pair, random, run

from vengine.errors import UsageError
from vengine.graph.quantize import MODEL_FILE, RAW_FOLDER, finish, quantize_static
from vengine.graph.sensitivity import Ladder, climb
from vengine.graph.structure import has_attention
from vengine.graph.switchboard import Switchboard
from vengine.graph.units import Unit, units_of

WEIGHTS = {
    "w": random([4, 4], 1),
    "wq": np.arange(16, dtype=np.int8).reshape(4, 4),
    "s": np.float32(0.05),
    "z": np.uint8(128),
    "ws": np.float32(0.1),
    "wz": np.int8(0),
    "bias": random([4], 2),
    "shape": np.array([2, 4], np.int64),
}
X = {"x": ("float32", [4, 2])}
READ = node("DequantizeLinear", ["wq", "ws", "wz"], "wd")


def named(op: str, inputs: list[str], output: str) -> onnx.NodeProto:
    return node(op, inputs, output)


@pytest.mark.parametrize(
    ("before", "after", "units"),
    [
        (
            [named("MatMul", ["x", "w"], "y")],
            [*pair("x", "d"), READ, named("MatMul", ["d", "wd"], "y")],
            {"matmul_y": 2},
        ),
        (
            [named("Reshape", ["x", "shape"], "r"), named("MatMul", ["r", "w"], "y")],
            [*pair("x", "d"), READ, named("Reshape", ["d", "shape"], "r"), named("MatMul", ["r", "wd"], "y")],
            {"matmul_y": 2},
        ),
        (
            [named("MatMul", ["x", "w"], "a"), named("Add", ["a", "bias"], "y")],
            [*pair("x", "d"), READ, named("MatMul", ["d", "wd"], "a"), named("Add", ["a", "bias"], "y")],
            {"matmul_a": 2},
        ),
        (
            [named("MatMul", ["x", "w"], "y"), named("Shape", ["x"], "n")],
            [*pair("x", "d"), named("MatMul", ["x", "w"], "y"), named("Shape", ["d"], "n")],
            {},
        ),
        (
            [named("Relu", ["x"], "a"), named("Relu", ["a"], "y")],
            [named("Relu", ["x"], "a"), named("Neg", ["a"], "n"), named("Relu", ["n"], "y")],
            {},
        ),
    ],
    ids=["a product", "through a reshape", "its bias is not quantised", "only its shape", "something else was put in"],
)
def test_what_is_a_unit(
    before: Sequence[onnx.NodeProto], after: Sequence[onnx.NodeProto], units: dict[str, int]
) -> None:
    inputs = {"x": ("float32", [2, 4])}
    one, two = (ir.from_proto(model(nodes, inputs, ["y"], **WEIGHTS)) for nodes in (before, after))
    assert {unit.name: len(unit.places) for unit in units_of(one, two)} == units


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The breaking model, quantised."""
    folder = tmp_path_factory.mktemp("breaking")
    path = write_breaking(folder / "float.onnx")
    x, _ = labelled(path, 64)
    quantize_static(path, folder / "int8", [{"x": row[None]} for row in x], transformer=False)
    return folder


def board_of(folder: Path, **more: float) -> Switchboard:
    x, _ = labelled(folder / "float.onnx", 64)
    raw = folder / "int8" / RAW_FOLDER / MODEL_FILE
    feeds = [{"x": row[None]} for row in x[:16]]
    return Switchboard(folder / "float.onnx", raw, feeds, relative="spread", threads=1, **more)


def ladder_of(folder: Path, saved: dict[str, float], seconds: float = 60.0) -> tuple[Ladder, list[Ladder]]:
    kept: list[Ladder] = []
    return climb(board_of(folder), saved, seconds, kept.append), kept


def test_all_units_in_float_are_the_float_graph_to_the_bit(built: Path) -> None:
    board = board_of(built)
    assert board.damage([unit.name for unit in board.units]) == 0.0
    assert board.damage([]) > 0.01


def test_the_switches_tell_what_the_artefact_answers(built: Path, tmp_path: Path) -> None:
    x, _ = labelled(built / "float.onnx", 64)
    names = ("matmul_head", "matmul_p")
    finish(built / "float.onnx", built / "int8" / RAW_FOLDER, tmp_path / "mended", in_float=names)
    want = run(onnx.load(built / "float.onnx"), {"x": x[:16]})["logits"]
    got = run(onnx.load(tmp_path / "mended" / MODEL_FILE), {"x": x[:16]})["logits"]
    spread = ((want - want.mean(axis=0)) ** 2).sum(axis=1).mean()
    apart = ((got - want) ** 2).sum(axis=1) / spread
    np.testing.assert_allclose(board_of(built).damages(names), apart, rtol=0.05, atol=1e-6)


def test_the_ladder_starts_with_the_head(built: Path) -> None:
    ladder, kept = ladder_of(built, {})
    assert "matmul_head" in ladder.rungs[1].in_float
    assert len(ladder.rungs[1].in_float) < ladder.units / 2
    damages = [rung.damage for rung in ladder.rungs]
    assert damages == sorted(damages, reverse=True)
    assert ladder.rungs[1].damage <= damages[0] / 2
    assert kept[0].rungs == ladder.rungs[:1]  # on disk from the first measurement on
    assert kept[-1].rungs == ladder.rungs


def test_of_two_units_that_hurt_alike_the_one_that_saves_less_goes_first(built: Path) -> None:
    units = [unit.name for unit in board_of(built).units]
    dear = dict.fromkeys(units, 1.0)
    order = [h.unit for h in ladder_of(built, dear)[0].hurts]
    last = order[2]
    cheap = [h.unit for h in ladder_of(built, dear | {last: 1e-3})[0].hurts]
    assert cheap.index(last) < order.index(last)


@dataclass
class SumBoard:
    """A switchboard of known damages that simply add up."""

    harm: dict[str, float]
    samples: int = 1
    measured: int = 0

    @property
    def units(self) -> list[Unit]:
        return [Unit(name=name, nodes=(name,), places=()) for name in self.harm]

    def damages(self, in_float: Collection[str]) -> np.ndarray:
        return np.array([self.damage(in_float)])

    def damage(self, in_float: Collection[str]) -> float:
        self.measured += 1
        return sum(harm for name, harm in self.harm.items() if name not in in_float)


@pytest.mark.parametrize(
    ("harm", "saved", "first"),
    [
        ({"a": 1.0, "b": 8.0}, {"a": 1.0, "b": 100.0}, ("b",)),  # "a" is the worse bargain, and isn't needed
        ({"a": 8.0, "b": 1.0}, {"a": 1.0, "b": 1.0}, ("a",)),
        ({"a": 5.0, "b": 4.0, "c": 5.0}, {"a": 1.0, "b": 1.0, "c": 50.0}, ("a", "b")),
    ],
)
def test_the_first_rung_holds_what_it_needs_and_nothing_else(
    harm: dict[str, float], saved: dict[str, float], first: tuple[str, ...]
) -> None:
    board = SumBoard(harm=harm)
    ladder = climb(board, saved, 60.0, lambda _: None)  # type: ignore[arg-type]
    assert ladder.rungs[1].in_float == first
    assert ladder.rungs[1].cost_ms == sum(saved[name] for name in first)


def test_one_culprit_among_ninety_is_found_in_a_few_measurements() -> None:
    board = SumBoard(harm={f"unit{i}": 100.0 if i == 61 else 1e-4 for i in range(90)})
    ladder = climb(board, {}, 60.0, lambda _: None)  # type: ignore[arg-type]
    assert ladder.hurts[0].unit == "unit61"
    assert ladder.rungs[1].in_float == ("unit61",)
    assert sum(hurt.group == 1 for hurt in ladder.hurts) < 5  # the others stayed in their groups


def test_a_ladder_without_time_still_has_its_first_rung(built: Path) -> None:
    ladder, kept = ladder_of(built, {}, seconds=0.0)
    assert (len(ladder.rungs), ladder.complete, len(kept)) == (1, False, 1)


@pytest.mark.parametrize(
    ("names", "message"),
    [(["no_such_node"], "is no quantised node"), (["relu_b0"], "is no quantised node"), (None, "nothing is quantised")],
)
def test_names_that_mean_nothing_are_refused(
    names: list[str] | None, message: str, built: Path, tmp_path: Path
) -> None:
    chosen = [unit.name for unit in board_of(built).units] if names is None else names
    with pytest.raises(UsageError, match=message):
        finish(built / "float.onnx", built / "int8" / RAW_FOLDER, tmp_path, in_float=chosen)


SCORES = [named("MatMul", ["x", "k"], "scores"), named("Softmax", ["scores"], "p")]
VALUES = {
    "k": random([4, 4]),
    "v": random([4, 4]),
    "half": np.float32(0.5),
    "row": random([1, 4]),
    "axes": np.array([1]),
}


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([*SCORES, named("MatMul", ["p", "v"], "y")], True),
        ([*SCORES, named("Mul", ["p", "half"], "m"), named("MatMul", ["m", "v"], "y")], True),
        ([*SCORES, named("Identity", ["p"], "y")], False),
        ([*SCORES, named("ReduceSum", ["p", "axes"], "s"), named("MatMul", ["s", "row"], "y")], False),
        ([named("MatMul", ["x", "k"], "a"), named("MatMul", ["a", "v"], "y")], False),
    ],
    ids=["softmax times values", "with dropout between", "softmax over classes", "pooled before", "no softmax"],
)
def test_attention_is_read_from_the_graph(nodes: Sequence[onnx.NodeProto], found: bool, tmp_path: Path) -> None:
    import openvino as ov

    onnx.save(model(nodes, {"x": ("float32", [4, 4])}, ["y"], **VALUES), tmp_path / "m.onnx")
    ov.save_model(ov.convert_model(tmp_path / "m.onnx"), tmp_path / "m.xml")
    assert has_attention(tmp_path / "m.onnx") is found
    assert has_attention(tmp_path / "m.xml") is found
