"""What the documents show works: Python runs or parses, verbs and options exist, links lead somewhere."""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from vengine.cli.main import VERBS, cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(p for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
FENCE = re.compile(
    r"^(?:<!-- (?P<mark>run|run with a model) -->\n)?```(?P<lang>\w+)[^\n]*\n(?P<code>.*?)^```", re.M | re.S
)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


class Block(NamedTuple):
    """One fenced block of a page."""

    page: str
    line: int
    lang: str
    code: str
    mark: str  # "run", "run with a model" or ""


def blocks(*langs: str) -> list[Block]:
    """All blocks of the pages in one of the languages."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for m in FENCE.finditer(text):
            line = text[: m.start()].count("\n") + 1
            found.append(Block(str(page.relative_to(ROOT)), line, m["lang"], m["code"], m["mark"] or ""))
    return [b for b in found if b.lang in langs]


def where(block: Block) -> str:
    """A block's place, for test ids."""
    return f"{block.page}:{block.line}"


@pytest.mark.parametrize("block", blocks("python"), ids=where)
def test_python_parses_and_runs_where_marked(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = ast.parse(block.code)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "vengine":
            import vengine

            assert {a.name for a in node.names} <= set(vengine.__all__)
    if block.mark == "run":
        monkeypatch.chdir(tmp_path)
        exec(compile(tree, where(block), "exec"), {"__name__": "readme"})


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", ["README.md"])
def test_python_that_needs_a_model_runs_on_a_tiny_one(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's blocks share their names, as a reader's session would; `model`, `texts` and `inputs` are given."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from tests.sources.making import WORDS, write_bert

    marked = [b for b in blocks("python") if b.page == page and b.mark == "run with a model"]
    assert len(marked) >= 2
    model = transformers.AutoModel.from_pretrained(write_bert(tmp_path / "tiny")).eval()
    texts = [" ".join((WORDS * 3)[i : i + 3 + i % 9]) for i in range(30)]
    names = {"model": model, "texts": texts, "inputs": {"input_ids": torch.tensor([[2, 7, 8, 9, 3]])}}
    monkeypatch.chdir(tmp_path)
    for block in marked:
        exec(compile(block.code, where(block), "exec"), names)
    assert len(names["answers"]) > 0
    assert Path("intent.vengine/manifest.json").is_file()


def shell_faults(code: str) -> list[str]:
    """What is wrong with the lines of a shell block that call `vengine` or `make`."""
    faults = []
    lines = code.replace("\\\n", " ").splitlines()
    for words in (shlex.split(line.removeprefix("$ "), comments=True) for line in lines if line.strip()):
        if words[:1] == ["vengine"]:
            faults += command_faults(words[1:])
        elif words[:1] == ["make"]:
            faults += [f"make has no target {w}" for w in words[1:] if "=" not in w and not is_target(w)]
    return faults


def command_faults(words: list[str]) -> list[str]:
    """Verbs and options that the command line doesn't have."""
    verb = words[0] if words else ""
    if verb.startswith("-"):
        return [] if verb in ("--help", "-h", "--version") else [f"vengine has no option {verb}"]
    if verb not in VERBS:
        return [f"vengine has no verb {verb!r}"]
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help", "-h"}
    return [
        f"vengine {verb} has no option {w}" for w in words[1:] if w.startswith("--") and w.split("=")[0] not in known
    ]


def is_target(name: str) -> bool:
    """Whether the Makefile has this target, a pattern (`bench-%`) included."""
    targets = re.findall(r"^([\w%-]+):", (ROOT / "Makefile").read_text(), re.M)
    return any(re.fullmatch(t.replace("%", r"[\w-]+"), name) for t in targets)


@pytest.mark.parametrize("block", blocks("sh", "bash", "console"), ids=where)
def test_shell_lines_name_verbs_and_options_that_exist(block: Block) -> None:
    assert shell_faults(block.code) == []


@pytest.mark.parametrize(
    ("code", "faults"),
    [
        ("vengine doctor", 0),
        ("vengine optimise x", 1),
        ("vengine optimize x --dta f", 1),
        ("vengine optimize x --data f \\\n  --tme 3m", 1),
        ("vengine bench a b --shape 8x256  # comment --nope", 0),
        ("make quickstart", 0),
        ("make bench-optimize", 0),
        ("make quikstart", 1),
        ("pip install vengine", 0),
    ],
)
def test_the_check_of_shell_lines_refuses_what_it_must(code: str, faults: int) -> None:
    assert len(shell_faults(code)) == faults


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = [t for t in LINK.findall(page.read_text()) if not re.match(r"\w+:", t)]
    assert [t for t in targets if not (page.parent / t).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_the_readme_lists_every_folder_of_the_package(page: str) -> None:
    text = (ROOT / page).read_text()
    folders = [p.name for p in (ROOT / "src" / "vengine").iterdir() if p.is_dir() and (p / "__init__.py").exists()]
    assert [f for f in folders if not re.search(rf"^\s*{f}/", text, re.M)] == []


def test_both_readmes_show_the_same_commands() -> None:
    def commands(page: str) -> list[str]:
        return [b.code for b in blocks("sh", "python") if b.page == page]

    assert commands("README.md") == commands("README.zh-CN.md")


ROW = re.compile(r"^\|.*\|$", re.M)


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md"])
def test_measured_figures_are_those_that_a_benchmark_wrote(page: str) -> None:
    """`python benchmarks/_results.py optimize` prints the table; what is measured may be told in another language."""
    command = [sys.executable, str(ROOT / "benchmarks" / "_results.py"), "optimize"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    section = re.split(r"^## (?:Measured|实测)$", (ROOT / page).read_text(), flags=re.M)[1].split("\n## ")[0]
    shown = [row.split("|")[3].strip() for row in ROW.findall(section)[2:]]
    wanted = [row.split("|")[3].strip() for row in table.splitlines()[2:]]
    assert shown == wanted


def test_the_page_of_measurements_shows_what_the_benchmarks_wrote() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "_results.py"), "depth"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert table.strip() in (ROOT / "docs" / "measured.md").read_text()


CHINESE = ".zh-CN.md"
TRANSLATED = sorted((ROOT / "docs").rglob(f"*{CHINESE}"))
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
HEADING = re.compile(r"^#+ ", re.M)
CODE = re.compile(r"`[^`\n]+`")
FIGURE = re.compile(r"(?<![A-Za-z\d.])\d[\d.,]*")  # int8 and AVX512 are names


def english_of(page: Path) -> Path:
    """The page that a Chinese one is the twin of."""
    return page.with_name(page.name.removesuffix(CHINESE) + ".md")


def figures(text: str) -> Counter[str]:
    """The numbers in a piece of text outside of code, in whatever order a language puts them."""
    return Counter(found.rstrip(".,") for found in FIGURE.findall(CODE.sub("", text)))


def targets(text: str, page: Path) -> set[str]:
    """Where a page's links lead; to the Chinese page where there is one."""
    found = set(LINK.findall(text))
    twins = {link: link.removesuffix(".md") + CHINESE for link in found if not link.endswith(CHINESE)}
    return {twins[link] if link in twins and (page.parent / twins[link]).exists() else link for link in found}


def untranslated(english: str, chinese: str, page: Path) -> list[str]:
    """Where two twins say different things, as far as that can be seen without reading either language."""
    faults = []
    name = page.name.removesuffix(".md")
    for text, line in ((english, f"[中文]({name}{CHINESE})"), (chinese, f"[English]({name}.md)")):
        if text.splitlines()[1:4] != ["", line, ""]:
            faults.append(f"below the title there must be {line}")
    if FENCED.findall(english) != FENCED.findall(chinese):
        faults.append("the code blocks differ")
    here, there = (FENCED.sub("", "\n".join(text.splitlines()[3:])) for text in (english, chinese))
    if HEADING.findall(here) != HEADING.findall(there):
        return [*faults, "the headings differ in number or depth"]
    if targets(here, page) != set(LINK.findall(there)):
        faults.append(f"links: {targets(here, page) ^ set(LINK.findall(there))}")
    for place, (one, two) in enumerate(zip(HEADING.split(here), HEADING.split(there), strict=True)):
        rows = [ROW.findall(text) for text in (one, two)]
        if [(row.count("|"), figures(row)) for row in rows[0]] != [(row.count("|"), figures(row)) for row in rows[1]]:
            faults.append(f"section {place}: the tables' rows or figures differ")
        if figures(one) != figures(two):
            faults.append(f"section {place}: figures {(figures(one) - figures(two)) + (figures(two) - figures(one))}")
        if set(CODE.findall(one)) != set(CODE.findall(two)):
            faults.append(f"section {place}: code {set(CODE.findall(one)) ^ set(CODE.findall(two))}")
    return faults


@pytest.mark.parametrize("page", TRANSLATED, ids=lambda p: p.name)
def test_a_chinese_page_tells_what_its_english_twin_tells(page: Path) -> None:
    english = english_of(page)
    assert english.is_file()
    assert untranslated(english.read_text(), page.read_text(), english) == []


TWINS = (
    "# Soak\n\n[中文](soak.zh-CN.md)\n\n```sh\nvengine doctor\n```\n\n"
    "## Rows\n\nAfter 5 minutes, `--limit`: [how](profile.md).\n\n| what | ms |\n|---|---|\n| int8 | 1,000 |\n",
    "# 检验\n\n[English](soak.md)\n\n```sh\nvengine doctor\n```\n\n"
    "## 行\n\n`--limit`：5 分钟后，[方法](profile.zh-CN.md)。\n\n| 项目 | 毫秒 |\n|---|---|\n| int8 | 1,000 |\n",
)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", None),
        ("5 分钟后，", "5 分钟之后，", None),  # words are free
        ("[English](soak.md)\n", "", "below the title"),
        ("doctor", "inspect", "code blocks"),
        ("\n## 行", "\n### 行", "headings"),
        ("\n## 行\n", "\n", "headings"),
        ("5 分钟", "15 分钟", "figures"),
        ("1,000 |", "1000 |", "tables"),
        ("| int8 | 1,000 |\n", "", "tables"),
        ("| 毫秒 |", "| 毫秒 | |", "tables"),
        ("--limit", "--limt", "code"),
        ("profile.zh-CN.md", "profile.md", "links"),
    ],
)
def test_the_check_of_twins_refuses_what_it_must(old: str, new: str, fault: str | None) -> None:
    english, chinese = TWINS
    assert old in chinese
    found = untranslated(english, chinese.replace(old, new, 1) if old else chinese, ROOT / "docs" / "soak.md")
    assert (found == []) if fault is None else any(fault in line for line in found)


def test_the_chinese_readme_links_to_the_chinese_pages() -> None:
    english, chinese = ROOT / "README.md", ROOT / f"README{CHINESE}"
    languages = {english.name, chinese.name}
    assert set(LINK.findall(chinese.read_text())) - languages == targets(english.read_text(), english) - languages
