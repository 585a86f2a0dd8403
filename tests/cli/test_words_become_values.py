"""What the command line's words mean: durations, shares, sizes, shapes, and every option of `optimize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from vengine.cli import optimize, params
from vengine.errors import UsageError
from vengine.types import Budget, Settings, Workload

BAD = click.BadParameter


@pytest.mark.parametrize(
    ("kind", "word", "value"),
    [
        (params.Duration(), "90s", 90.0),
        (params.Duration(), "5m", 300.0),
        (params.Duration(), "5min", 300.0),
        (params.Duration(), "1h", 3600.0),
        (params.Duration(), "1h30m", 5400.0),
        (params.Duration(), "1.5m", 90.0),
        (params.Duration(), " 45 ", 45.0),
        (params.Duration(), "0", BAD),
        (params.Duration(), "-5m", BAD),
        (params.Duration(), "5 minutes", BAD),
        (params.Duration(), "1h30", BAD),
        (params.Duration(), "", BAD),
        (params.Duration(), "nan", BAD),
        (params.Duration(), "inf", BAD),
        (params.Duration(), "1e3s", BAD),
        (params.Duration(), "99999h", BAD),
        (params.Fraction(), "1%", 0.01),
        (params.Fraction(), "0.5 %", 0.005),
        (params.Fraction(), "0.01", 0.01),
        (params.Fraction(), "0", 0.0),
        (params.Fraction(), "1", BAD),  # 1 % or 100 %? Ask.
        (params.Fraction(), "100%", BAD),
        (params.Fraction(), "-1%", BAD),
        (params.Fraction(), "one", BAD),
        (params.Fraction(), "nan", BAD),
        (params.Size(), "2G", 2 << 30),
        (params.Size(), "1.5GiB", 3 << 29),
        (params.Size(), "512m", 512 << 20),
        (params.Size(), "4096", 4096),
        (params.Size(), "0", BAD),
        (params.Size(), "2X", BAD),
        (params.Size(), "-2G", BAD),
        (params.Size(), "99999999999T", BAD),
        (params.Shape(), "8x256", (8, 256)),
        (params.Shape(), "1X16", (1, 16)),
        (params.Shape(), "1×16", (1, 16)),
        (params.Shape(), "8", BAD),
        (params.Shape(), "8x", BAD),
        (params.Shape(), "0x16", BAD),
        (params.Shape(), "8x256x2", BAD),
        (params.Shape(), "100000x100000", BAD),
        (params.Names(), "openvino, onnxruntime,openvino", ("openvino", "onnxruntime")),
        (params.Names(), "a,,b", BAD),
        (params.Names(), "", BAD),
    ],
)
def test_a_word(kind: click.ParamType, word: str, value: Any) -> None:
    if value is BAD:
        with pytest.raises(BAD):
            kind.convert(word, None, None)
    else:
        assert kind.convert(word, None, None) == value


def parsed(*words: str) -> dict[str, Any]:
    """The options of `vengine optimize SOURCE` as click hands them over."""
    return dict(optimize.command.make_context("optimize", ["model", *words]).params)


def test_defaults_are_those_of_the_dataclasses() -> None:
    options = parsed()
    budget = Budget(**optimize._taken(options, Budget))
    settings = Settings(**optimize._taken(options, Settings))
    assert (budget, settings) == (Budget(), Settings())
    assert (options["concurrency"], options["objective"]) == (Workload(samples=()).concurrency, "latency")


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (["--time", "90s"], "time_seconds", 90.0),
        (["--level", "safe"], "level", "safe"),
        (["--precision", "mixed"], "precision", "mixed"),
        (["--budget", "0.5%"], "max_drop", 0.005),
        (["--metric", "pkg.mod:score"], "metric", "pkg.mod:score"),
        (["--threads", "2"], "threads", 2),
        (["--memory-limit", "2G"], "memory_limit_bytes", 2 << 30),
        (["--engines", "openvino,torch"], "engines", ("openvino", "torch")),
        (["--force-fp32", "Softmax,node_7"], "force_fp32", ("Softmax", "node_7")),
        (["--op-types", "MatMul"], "op_types_to_quantize", ("MatMul",)),
        (["--no-keep-io-types"], "keep_io_types", False),
        (["--data", "a.csv"], "data", Path("a.csv")),
        (["--concurrency", "4"], "concurrency", 4),
        (["--objective", "throughput"], "objective", "throughput"),
        (["--fresh"], "fresh", True),
        (["--pack", "--json"], "pack", True),
    ],
)
def test_an_option_of_optimize(words: list[str], field: str, value: Any) -> None:
    assert parsed(*words)[field] == value
    assert parsed()[field] != value


@pytest.mark.parametrize(
    "words",
    [
        ["--threads", "0"],
        ["--threads", "1e9"],
        ["--concurrency", "-1"],
        ["--level", "reckless"],
        ["--objective", "speed"],
        ["--task", "poetry"],
        ["--seed", "-1"],
        ["--verify-samples", "1"],
        ["--direction", "up"],
        ["--dta", "a.txt"],
        ["surplus"],
        ["--data"],
    ],
)
def test_words_that_are_refused(words: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parsed(*words)


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--level", "safe", "--precision", "int8"], "--level safe"),
        (["--level", "safe", "--precision", "fp32"], None),
        (["--precision", "fp32", "--op-types", "MatMul"], "--op-types"),
        (["--text-column", "q"], "--data"),
        (["--text-column", "q", "--data", "a.csv"], None),
        (["--direction", "lower"], "--metric"),
        (["--direction", "lower", "--metric", "m:f"], None),
        ([], None),
    ],
)
def test_options_that_contradict_each_other(words: list[str], refused: str | None) -> None:
    if refused is None:
        optimize._refuse_conflicts(parsed(*words))
        return
    with pytest.raises(UsageError, match=refused) as caught:
        optimize._refuse_conflicts(parsed(*words))
    assert caught.value.next_step


@pytest.mark.parametrize(
    ("met", "outcome", "code"),
    [(True, "pass", 0), (False, "fail", 3), (False, "undecided", 4), (True, "fail", 3), (False, "pass", 3)],
)
def test_a_missed_target_is_never_exit_code_zero(met: bool, outcome: str, code: int) -> None:
    assert optimize.exit_code({"met": met, "outcome": outcome}) == code
