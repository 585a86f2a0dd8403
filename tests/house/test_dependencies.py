"""What is imported is declared, what is declared is pinned, and the base stays light."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = [Requirement(r) for r in PROJECT["dependencies"]]
EXTRAS = {name: [Requirement(r) for r in rows] for name, rows in PROJECT["optional-dependencies"].items()}
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if re.match(r"[\w.-]+==", line)
)
# Distribution → the name that is imported, where the two differ.
IMPORTED_AS = {"scikit-learn": "sklearn", "pillow": "PIL"}
AUTHORING_ONLY = {
    "torch",
    "transformers",
    "nncf",
    "onnx",
    "onnx-ir",
    "onnxscript",
    "scipy",
    "scikit-learn",
    "safetensors",
}


@pytest.mark.parametrize("wanted", [*BASE, *(r for rows in EXTRAS.values() for r in rows)], ids=str)
def test_each_dependency_is_pinned_within_its_range(wanted: Requirement) -> None:
    pins = {canonicalize_name(name): Version(version) for name, version in PINS.items()}
    pin = pins[canonicalize_name(wanted.name)]
    assert wanted.specifier.contains(pin)
    assert pin.local is None, "a local version suffix pins one machine's build"


def test_the_base_has_nothing_of_the_authoring_side() -> None:
    assert {r.name for r in BASE} & AUTHORING_ONLY == set()


# What users install, beyond the base: every extra but the one for those who work on Vengine.
BEYOND = [r for name, rows in EXTRAS.items() if name != "dev" for r in rows]


def third_party(path: Path) -> set[str]:
    """Top-level names of other people's packages that a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names - set(sys.stdlib_module_names) - {"vengine"}


def test_what_is_imported_is_declared() -> None:
    declared = {IMPORTED_AS.get(r.name, r.name.replace("-", "_")) for r in [*BASE, *BEYOND]}
    found = {name for path in (ROOT / "src").rglob("*.py") for name in third_party(path)}
    assert found - declared == set()


def test_heavy_packages_are_imported_where_they_are_used_and_not_at_the_top() -> None:
    light = {"click", "numpy"}
    found = {}
    for path in (ROOT / "src").rglob("*.py"):
        top = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)]
        names = {a.name for n in top if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module for n in top if isinstance(n, ast.ImportFrom) and n.module}
        heavy = {n.split(".")[0] for n in names} - set(sys.stdlib_module_names) - light - {"vengine"}
        if heavy:
            found[str(path.relative_to(ROOT))] = heavy
    assert found == {}


def test_each_package_beyond_the_base_has_its_install_line() -> None:
    from vengine.cli.faults import EXTRA_OF

    beyond = {IMPORTED_AS.get(r.name, r.name.replace("-", "_")) for r in BEYOND}
    assert set(EXTRA_OF) == beyond
    assert set(EXTRA_OF.values()) <= set(EXTRAS)


def test_every_file_of_the_package_that_is_not_code_ships() -> None:
    package = ROOT / "src" / "vengine"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["vengine"]
    shipped = {path for pattern in patterns for path in package.glob(pattern)}
    present = {p for p in package.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    assert sorted(p.name for p in present - shipped) == []
