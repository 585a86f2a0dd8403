"""A classifier that int8 breaks in one place: its head lives on small differences beside one large constant channel.

What it classifies is drawn at random and labelled by itself, so the original is right everywhere; only samples with
some margin are kept, as trained models have it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from tests.graph.graphs import model, node, run

WIDTH, INNER, CLASSES, BLOCKS = 32, 48, 8, 2
CONSTANT = 400.0  # what an eighth of the head's channels carry, whatever the input; their classes cancel out


def write_breaking(path: Path, seed: int = 0) -> Path:
    """[batch, 32] → `logits` [batch, 8]: two residual blocks with norms, and the head; products have names."""
    rng = np.random.default_rng(seed)

    def draw(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    weights = {"gain": np.ones(WIDTH, np.float32), "zero": np.zeros(WIDTH, np.float32)}
    nodes, at = [], "x"
    for i in range(BLOCKS):
        weights |= {f"up{i}": draw(WIDTH, INNER), f"down{i}": draw(INNER, WIDTH)}
        nodes += [node("MatMul", [at, f"up{i}"], f"a{i}"), node("Relu", [f"a{i}"], f"b{i}")]
        nodes += [node("MatMul", [f"b{i}", f"down{i}"], f"c{i}"), node("Add", [at, f"c{i}"], f"d{i}")]
        at = f"e{i}"
        nodes.append(node("LayerNormalization", [f"d{i}", "gain", "zero"], at, axis=-1))
    constant = np.zeros(INNER, np.float32)
    constant[::8] = CONSTANT
    last = draw(INNER, CLASSES)
    last[::8] = last[::8].mean(axis=1, keepdims=True)
    weights |= {"into": draw(WIDTH, INNER), "constant": constant, "last": last, "back": -(constant @ last)}
    nodes += [node("MatMul", [at, "into"], "p"), node("Add", ["p", "constant"], "q"), node("Relu", ["q"], "r")]
    nodes += [node("MatMul", ["r", "last"], "head"), node("Add", ["head", "back"], "logits")]
    onnx.save(model(nodes, {"x": ("float32", ["batch", WIDTH])}, ["logits"], **weights), path)
    return path


def labelled(path: Path, count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [count, 32] and the model's own classes, of the third of all inputs that it is surest of."""
    x = np.random.default_rng(seed).standard_normal((3 * count, WIDTH)).astype(np.float32)
    logits = run(onnx.load(path), {"x": x})["logits"]
    ordered = np.sort(logits, axis=1)
    surest = np.argsort(ordered[:, -2] - ordered[:, -1])[:count]
    return x[surest], logits[surest].argmax(axis=1)
