"""What people see: the facts are there, and nothing that came from a file can repaint the terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from vengine.cli import output, show
from vengine.types import Source, TensorSpec

EVIL = "\x1b[31m[red]名[/red]\u202e"
SPEC = TensorSpec(name="input_ids", dtype="int64", shape=("batch", "length"))
SOURCE = Source(
    kind="huggingface",
    name="tiny",
    location="./tiny",
    path=Path("tiny"),
    task="classification",
    digest="sha256:" + "0" * 64,
    licence="apache-2.0",
    parameters=1234567,
    weight_bytes=4938268,
    inputs=(SPEC,),
    outputs=(TensorSpec(name="logits", dtype="float32", shape=("batch", 3)),),
    labels=("good", EVIL, "bad"),
    max_tokens=512,
    notes=("padding switched off", EVIL),
)
RUN: dict[str, Any] = {
    "texts": ["a text", ("a", EVIL)],
    "outputs": {"logits": np.array([[0.1, 0.2, -0.3], [1, 2, 3]], dtype=np.float32)},
    "answers": [],
    "label": "onnxruntime fp32",
    "engine": "onnxruntime",
    "precision": "fp32",
    "variant": "sha256:" + "1" * 64,
    "ms": 1.5,
    "excluded": [{"variant": "sha256:" + "2" * 64, "status": "skipped", "reason": "needs avx512_vnni"}],
}
LABELS = [{"label": "good", "score": 0.9, "scores": {"good": 0.9, EVIL: 0.06, "c": 0.03, "d": 0.01}}]
VARIANT = {
    "label": "openvino bf16",
    "engine": "openvino",
    "precision": "bf16",
    "digest": "a",
    "fallback": False,
    "status": "ok",
    "reason": "",
    "cosine": 0.9999,
    "ms": 2.0,
}
VERIFY: dict[str, Any] = {
    "ok": True,
    "fallen_back": False,
    "reason": "",
    "bundle": "m.vengine",
    "digest": "sha256:3",
    "machine": {"cpu": EVIL},
    "variants": [VARIANT, VARIANT | {"digest": "b", "status": "skipped", "reason": EVIL, "cosine": None, "ms": None}],
    "plan": [
        {"variant": "a", "tokens_min": 1, "tokens_max": 2048},
        {"variant": "c", "tokens_min": 2049, "tokens_max": 4096},
        {"variant": "a", "tokens_min": 4097, "tokens_max": None},
    ],
}
MACHINE = {
    "cpu": "Some CPU",
    "isa": ["avx2", "fma"],
    "memory_bytes": 8 << 30,
    "memory_available_bytes": 4 << 30,
    "gpus": [],
    "os": "Linux",
    "python": "3.11",
}
DOCTOR: dict[str, Any] = {
    "machine": MACHINE,
    "threads": 2,
    "threads_why": "the smaller of two numbers",
    "engines": [
        {"name": "torch", "ok": True, "version": "2.13", "reason": "", "install": "pip install x"},
        {
            "name": "openvino",
            "ok": False,
            "version": None,
            "reason": EVIL,
            "install": "pip install 'vengine[openvino]'",
        },
    ],
    "notes": [EVIL],
}

TIMES = {"value": 4.0, "low": 3.5, "high": 4.5}
BENCH: dict[str, Any] = {
    "targets": [{"name": "a.onnx", "peak_rss_bytes": 10**9}, {"name": EVIL, "peak_rss_bytes": 10**8}],
    "rows": [
        {
            "shape": "8x256",
            "cells": [
                {"ms": {"value": 100.0, "low": 99.0, "high": 101.0}, "ratio": {"value": 1.0, "low": 1.0, "high": 1.0}},
                {"ms": {"value": 25.0, "low": 24.0, "high": 26.0}, "ratio": TIMES},
            ],
        }
    ],
    "threads": 2,
}


def seen(renderer: Any, value: Any, width: int = 160) -> str:
    """The plain text that a terminal of this width would show."""
    file = io.StringIO()
    renderer(value, Console(file=file, width=width, force_terminal=False))
    return file.getvalue()


@pytest.mark.parametrize(
    ("renderer", "value", "words"),
    [
        (show.source, SOURCE, ["tiny", "classification", "1,234,567", "input_ids int64[batch, length]", "512 tokens"]),
        (show.source, SOURCE, ["apache-2.0", "note: padding switched off", "good, "]),
        (show.answers, RUN, ["“a text”", "logits [3] 0.1000 0.2000 −0.3000", "onnxruntime fp32", "needs avx512_vnni"]),
        (show.answers, RUN | {"texts": []}, ["row 0", "row 1"]),
        (show.answers, RUN | {"texts": ["a"], "answers": LABELS}, ["good 0.9000", "c 0.0300"]),
        (show.answers, RUN | {"texts": ["a"], "answers": [{"score": 3.25}]}, ["3.2500"]),
        (show.answers, RUN | {"texts": ["a"], "answers": [{"tokens": [{"label": "PER", "score": 1.0}]}]}, ["PER"]),
        (
            show.verification,
            VERIFY,
            ["openvino bf16", "1–2,048 tokens; from 4,097 tokens", "0.9999", "✓ answers as it was"],
        ),
        (show.verification, VERIFY | {"fallen_back": True}, ["fallen back", "note: openvino bf16 is skipped: "]),
        (show.verification, VERIFY | {"ok": False}, ["✗ no proved variant"]),
        (
            show.bench,
            BENCH,
            ["8x256", "100 ms", "25 ms 4.00× (3.50–4.50)", "2 threads each", "a.onnx", "1.0 GB"],
        ),
        (show.doctor, DOCTOR, ["Some CPU", "avx2 fma", "2 (the smaller", "2.13", "pip install 'vengine[openvino]'"]),
    ],
)
def test_people_see_the_facts(renderer: Any, value: Any, words: list[str]) -> None:
    text = seen(renderer, value)
    assert [w for w in words if w not in text] == []


def test_the_first_of_a_race_is_not_compared_with_itself() -> None:
    assert "1.00×" not in seen(show.bench, BENCH)


def test_what_is_well_is_not_told_how_to_be_installed() -> None:
    assert "pip install x" not in seen(show.doctor, DOCTOR)


@pytest.mark.parametrize(
    ("renderer", "value"),
    [
        (show.source, SOURCE),
        (show.answers, RUN),
        (show.verification, VERIFY),
        (show.doctor, DOCTOR),
        (show.bench, BENCH),
    ],
)
def test_nothing_from_a_file_repaints_the_terminal(renderer: Any, value: Any) -> None:
    text = seen(renderer, value)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[red]名[/red]" in text, "markup in somebody's text is text"


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ({"a": float("nan"), "b": [float("inf"), 1.5]}, '{"a": null, "b": [null, 1.5]}'),
        ({"a": np.float32(0.5), "b": np.array([[1, 2]])}, '{"a": 0.5, "b": [[1, 2]]}'),
        ({"a": "line\nbreak", "b": "\udcff"}, '{"a": "line\\nbreak", "b": "\\udcff"}'),
        (SPEC, '{"name": "input_ids", "dtype": "int64", "shape": ["batch", "length"]}'),
        ({"a": Path("x/y"), 1: (1, 2)}, '{"a": "x/y", "1": [1, 2]}'),
    ],
)
def test_the_json_line_is_one_line_of_strict_json(value: Any, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.json_line(value)
    out = capsys.readouterr().out
    assert out == line + "\n"
    json.loads(out, parse_constant=lambda name: pytest.fail(name))
