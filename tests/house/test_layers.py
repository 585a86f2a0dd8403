"""A module imports only from its left, lazily or not; the serving side never reaches the authoring side."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "vengine"
LAYERS = (
    *("errors", "types", "digests", "cache", "lifetime", "hardware", "text", "packing", "workload"),
    *("sources", "graph", "engines", "verify", "tune", "bundle", "report", "api", "cli"),
)
SERVING = {"bundle"}
AUTHORING = {"sources", "graph", "verify", "tune"}
MODULES = sorted(PACKAGE.rglob("*.py"))


def layer_of(path: Path) -> str:
    """The layer of a file: its folder below the package, or its own name."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(tree: ast.AST) -> set[str]:
    """Layers named by any import of the file, at its top or inside a function, or by a string that names a module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= {node.value} if re.fullmatch(r"vengine(\.\w+)+(:\w+)?", node.value) else set()
    parts = [re.split(r"[.:]", name) for name in names]
    return {p[1] for p in parts if p[0] == "vengine" and len(p) > 1 and p[1] in LAYERS}


def broken_rules(layer: str, tree: ast.AST) -> list[str]:
    """What the imports of a file of `layer` break."""
    found = imported_layers(tree)
    right = [
        f"{layer} imports {other}, which is on its right"
        for other in found
        if LAYERS.index(other) > LAYERS.index(layer)
    ]
    sides = [
        f"{layer} serves, and {other} is for authors" for other in found if layer in SERVING and other in AUTHORING
    ]
    return sorted(right + sides)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_its_left(path: Path) -> None:
    if path == PACKAGE / "__init__.py":  # the lazy front door names every layer, and imports none
        return
    layer = layer_of(path)
    assert layer in LAYERS, f"{path} belongs to no layer: add it to docs and to this list, or move it"
    assert broken_rules(layer, ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    ("layer", "code", "broken"),
    [
        ("graph", "from vengine.types import Source", False),
        ("graph", "from vengine.sources.open import open_source", False),
        ("graph", "from vengine.tune.race import race", True),
        ("graph", "def f():\n    from vengine.tune import race", True),
        ("graph", "from vengine import tune", True),
        ("graph", "import vengine.cli.main", True),
        ("graph", "import_module('vengine.cli.main')", True),
        ("graph", "HOME = 'vengine.api.optimize:optimize'", True),
        ("bundle", "from vengine.engines.base import Session", False),
        ("bundle", "from vengine.verify.metrics import accuracy", True),
        ("bundle", "def f():\n    import vengine.sources.huggingface", True),
        ("types", "import json", False),
        ("types", "from vengine.errors import UsageError", False),
        ("errors", "from vengine.types import Source", True),
        ("graph", "X = 'vengine optimize does more'", False),
    ],
)
def test_the_rule_itself_refuses_what_it_must(layer: str, code: str, broken: bool) -> None:
    assert bool(broken_rules(layer, ast.parse(code))) is broken
