"""The page in a real browser: it renders, says nothing on the console, and asks nobody for anything."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vengine.report.html import html

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
# Nothing of the browser's own may go out, nor may it wait for a screen.
FLAGS = re.findall(
    r"\S+",
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-default-apps --enable-logging=stderr --v=0 "
    "--virtual-time-budget=1000 --dump-dom",
)


def opened(page: str, folder: Path) -> tuple[str, list[str]]:
    """The document after its scripts ran, and what was said on the console."""
    assert BROWSER
    file = folder / "report.html"
    file.write_text(page, "utf-8")
    done = subprocess.run(
        [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_the_report_renders_without_a_word_on_the_console(sample: dict[str, Any], tmp_path: Path) -> None:
    document, console = opened(html(sample), tmp_path)
    assert console == []
    assert document.count("<svg") > 10
    buttons = re.findall(r'<button type="button">Copy</button>', document)
    assert len(buttons) == len(sample["reproduce"])  # our own script ran: the policy's hash is right


def test_hostile_texts_make_no_elements_and_run_nothing(poisoned: dict[str, Any], tmp_path: Path) -> None:
    document, console = opened(html(poisoned), tmp_path)
    assert console == []
    assert "evil.example" in document  # as text
    assert "<img" not in document
    assert document.count("<script") == 1


def test_the_console_would_have_told(sample: dict[str, Any], tmp_path: Path) -> None:
    """The other tests can fail: a script of somebody else is blocked by the policy, and that is said."""
    page = html(sample).replace("</body>", "<script>document.title = 'taken'</script></body>")
    document, console = opened(page, tmp_path)
    assert any("Content Security Policy" in line for line in console)
    assert "<title>taken" not in document


def test_a_profile_renders_without_a_word_on_the_console(tmp_path: Path) -> None:
    from tests.report.test_node_view import OTHERS, PRODUCT, result

    from vengine.report.node_page import profile_page

    document, console = opened(profile_page(result(PRODUCT, *OTHERS), "2026-12-01"), tmp_path)
    assert console == []
    assert document.count("<svg") == 6  # three pictures, each for a desk and for a phone
