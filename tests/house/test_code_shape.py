"""Sizes, docstrings, names, and what must not be written into the project."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "vengine"
FILES = sorted(PACKAGE.rglob("*.py"))
FILE_LINES, FILE_LINES_AIM, FUNCTION_LINES = 500, 400, 70
DRAWERS = {"utils", "util", "helpers", "helper", "misc", "common"}
TEXT = {".py", ".md", ".toml", ".txt", ".json", ".html", ".css", ".js", ".sh", ".cfg", ".yml", ""}
# Split, so that this file doesn't find itself. Paths of one machine, and words about how the project was made.
FORBIDDEN = re.compile(
    "|".join(
        [
            "/wo" + "rk/",
            "/ro" + "ot/",
            "/ho" + r"me/\w",
            "/Us" + r"ers/\w",
            "/tm" + r"p/\w",
            "bash_" + "jobs",
            "CONTRA" + r"CT\.md",
        ]
    )
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    """Every function and method of a file."""
    yield from (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, Function))


def name_of(path: Path) -> str:
    """A file's name for people."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_file_fits_in_a_head(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= FILE_LINES, f"{lines} lines: it wants a second noun"
    assert path.stem not in DRAWERS, "no drawers: name the file after its noun"


def test_every_folder_of_code_is_a_package_that_ships() -> None:
    assert sorted({name_of(p.parent) for p in FILES if not (p.parent / "__init__.py").exists()}) == []


def test_few_files_are_over_the_aim() -> None:
    over = [name_of(p) for p in FILES if len(p.read_text().splitlines()) > FILE_LINES_AIM]
    assert len(over) <= max(1, len(FILES) // 10), over


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    long = {f.name: f.end_lineno - f.lineno + 1 for f in functions(path) if f.end_lineno}
    assert {name: lines for name, lines in long.items() if lines > FUNCTION_LINES} == {}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_public_names_and_modules_have_docstrings(path: Path) -> None:
    tree = ast.parse(path.read_text())
    public = [n for n in tree.body if isinstance(n, Function | ast.ClassDef) and not n.name.startswith("_")]
    assert [n.name for n in public if not ast.get_docstring(n)] == []
    assert ast.get_docstring(tree) or not tree.body, "the file says nothing about itself"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_nothing_is_unpickled_or_evaluated(path: Path) -> None:
    calls = [ast.unparse(n) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
    assert [c for c in calls if dangerous(c)] == []


def dangerous(call: str) -> bool:
    """Whether a call, as text, could run code that lies in a file."""
    if re.match(r"(pickle|cloudpickle|dill|joblib|marshal|shelve)\.", call) or re.match(r"(eval|exec)\(", call):
        return True
    if call.startswith("torch.load("):
        return "weights_only=True" not in call
    return bool(re.match(r"(np|numpy)\.load\(", call)) and "allow_pickle=False" not in call


@pytest.mark.parametrize(
    ("call", "bad"),
    [
        ("pickle.load(f)", True),
        ("torch.load(p)", True),
        ("torch.load(p, weights_only=True)", False),
        ("np.load(p)", True),
        ("np.load(p, allow_pickle=True)", True),
        ("np.load(p, allow_pickle=False)", False),
        ("joblib.load(p)", True),
        ("eval(x)", True),
        ("model.eval()", False),
        ("json.load(f)", False),
    ],
)
def test_what_counts_as_dangerous(call: str, bad: bool) -> None:
    assert dangerous(call) is bad


def project_texts() -> list[Path]:
    """The project's own text files: no environment, no caches, no bundles."""
    top = [p for p in ROOT.iterdir() if p.is_file() and p.suffix in TEXT and not p.name.startswith(".")]
    folders = [ROOT / n for n in ("src", "tests", "docs", "benchmarks", "examples", "scripts", ".ci")]
    below = [p for folder in folders if folder.is_dir() for p in folder.rglob("*") if p.is_file() and p.suffix in TEXT]
    return sorted(p for p in top + below if "__pycache__" not in p.parts and "egg-info" not in str(p))


def test_no_file_names_a_machine() -> None:
    found = [
        f"{name_of(path)}:{number}: {match[0]}"
        for path in project_texts()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if (match := FORBIDDEN.search(line))
    ]
    assert found == []
