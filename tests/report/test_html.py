from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from vengine.report.html import html

TAGS = set(
    re.findall(
        r"\w+",
        "html head meta title style body a header p b nav ul li main section div span h1 h2 h3 svg g path circle line "
        "rect text polygon details summary table thead tbody tr th td dl dt dd bdi footer script pre code",
    )
)
VOID = {"meta"}


class Reader(HTMLParser):
    """Collects every element, and complains about tags that don't match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)


def unsafe(page: Reader) -> list[str]:
    """Elements and attributes that could run, load or send anything."""
    found = [tag for tag, _ in page.found if tag not in TAGS]
    for tag, attributes in page.found:
        for name, value in attributes.items():
            if name.startswith("on") or name in ("src", "style", "action", "srcset", "xlink:href"):
                found.append(f"{tag} {name}")
            if name == "href" and not (value or "").startswith("#"):
                found.append(f"{tag} {name}={value}")
    return found + [tag for tag, _ in page.found if tag == "script"][1:]


@pytest.mark.parametrize(
    ("page", "bad"),
    [
        ("<p>text</p>", False),
        ('<a href="#verdict">x</a>', False),
        ("<script>ours</script>", False),
        ("<script>ours</script><script>theirs</script>", True),
        ("<img src=x>", True),
        ('<p onclick="x">', True),
        ('<a href="https://example.org">', True),
        ('<p style="background:url(x)">', True),
        ("<iframe></iframe>", True),
    ],
)
def test_what_counts_as_unsafe(page: str, bad: bool) -> None:
    assert bool(unsafe(Reader(page))) is bad


def test_every_shape_of_report_is_one_sound_and_safe_page(reports: dict[str, dict[str, Any]]) -> None:
    for name, report in reports.items():
        page = Reader(html(report))
        assert page.faults == [], name
        assert page.open == [], name
        assert unsafe(page) == [], name


def test_identifiers_are_unique_and_links_lead_somewhere(sample: dict[str, Any]) -> None:
    page = Reader(html(sample))
    ids = [a["id"] for _, a in page.found if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for t, a in page.found if t == "a"} <= {f"#{i}" for i in ids}


def test_no_address_is_in_the_file(sample: dict[str, Any]) -> None:
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}|url\(|@import", html(sample)) == []


def test_only_our_own_style_and_script_may_run(sample: dict[str, Any]) -> None:
    page = html(sample)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    for tag in ("style", "script"):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert text is not None
        digest = base64.b64encode(hashlib.sha256(text[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy[1]


def test_all_parts_are_there(sample: dict[str, Any]) -> None:
    anchors = [a["id"] for t, a in Reader(html(sample)).found if t == "section"]
    wanted = "glance race accuracy length memory traffic refused verdict changes breakdown side reproduce"
    assert anchors == wanted.split()


def test_every_refusal_has_its_reason(sample: dict[str, Any]) -> None:
    page = html(sample)
    assert "&lt;see build notes&gt;" in page
    assert all(row["recipe"] in page for row in sample["refused"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "Target met"),
        ({"outcome": "fail", "met": False}, "Target missed"),
        ({"outcome": "undecided", "met": False}, "Undecided"),
        ({"met": False}, "The original ships unchanged"),
        ({"workload": {"synthetic": True}}, "The workload was made up"),
    ],
)
def test_the_first_glance_tells_the_outcome(sample: dict[str, Any], change: dict[str, Any], words: str) -> None:
    assert words in html(sample | change)


def test_a_missed_target_shows_no_speed_of_a_refused_contender_as_won(failed: dict[str, Any]) -> None:
    glance = html(failed).split('id="glance"')[1].split("</section>")[0]
    assert '<p class="big">1×</p>' in glance
    assert "5.02" not in glance


def test_a_picture_has_a_name_and_a_table_beside_it(sample: dict[str, Any]) -> None:
    page = Reader(html(sample))
    drawings = [a for t, a in page.found if t == "svg"]
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in drawings)
    assert [t for t, _ in page.found].count("table") >= 3


def test_the_page_is_the_same_each_time(sample: dict[str, Any]) -> None:
    assert html(sample) == html(sample)
    assert len(html(sample)) < 300_000
