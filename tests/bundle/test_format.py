"""The manifest: one byte form, strict reading, and every rule seen to refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bundle.making import Toy, parts

from vengine.bundle.format import MAX_MANIFEST_BYTES, Manifest, manifest_bytes, parse_manifest, read_manifest
from vengine.bundle.rules import is_safe_path
from vengine.bundle.write import prepare
from vengine.digests import digest_json
from vengine.errors import BundleError

PINNED = Path(__file__).with_name("manifest-v1-packed.json")
Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    toys = (Toy(precision="int8-static", isa=("avx512_vnni",)), Toy(behaviour={"delay_ms": 0}))
    made = parts(tmp_path_factory.mktemp("parts"), toys, plan=((0, 1, 64), (1, 65, None)))
    exact = {"sentence_embedding": np.arange(16, dtype=np.float32).reshape(2, 8)}
    golden = replace(made.golden, outputs={v.digest: exact for v in made.variants})
    return prepare(replace(made, golden=golden)).manifest


def resealed(manifest: Manifest, edit: Edit) -> bytes:
    """The manifest after an edit by somebody who knows how to compute both digests."""
    document = json.loads(manifest_bytes(manifest))
    edit(document)
    document["digest"] = digest_json(document["content"])
    document["evidence_digest"] = digest_json(document["evidence"])
    return json.dumps(document).encode()


def test_what_is_written_reads_back_the_same(manifest: Manifest) -> None:
    assert parse_manifest(manifest_bytes(manifest), where="here") == manifest


def test_the_byte_form_is_pinned(manifest: Manifest) -> None:
    """What changes these bytes changes the name of each bundle that is built again: on purpose only.

    A new field of a noun may do that (then write the file anew, under another name, and keep this one for
    the test below); a field that goes or changes its meaning needs a new format number.
    """
    assert manifest_bytes(manifest).decode() == PINNED.read_text()


@pytest.mark.parametrize(
    ("written", "digest"),
    [
        ("manifest-v1.json", "sha256:0cdc49b0e7b3ab2caf6d95db57a3472c5136530edfeeaaff846bf307e2ee595d"),
        (
            "manifest-v1-packed.json",
            "sha256:d9b99ad654c5283c6b229113dc02fb938e9902379f564abc160bacbb38963f63",
        ),  # profiles know row_tokens, plans know fill_min
    ],
)
def test_a_manifest_of_format_1_stays_readable_and_keeps_its_name(written: str, digest: str) -> None:
    assert read_manifest(PINNED.with_name(written)).digest == digest


@given(st.integers(min_value=0), st.integers(1, 255))
def test_no_flipped_byte_goes_unnoticed(position: int, flip: int) -> None:
    data = bytearray(PINNED.read_bytes())
    original = parse_manifest(bytes(data), where="here")
    data[position % len(data)] ^= flip
    try:
        read = parse_manifest(bytes(data), where="here")
    except BundleError:
        return
    # White space, and letters of the bundle's file name, are all that no digest covers.
    assert (read.content, read.evidence) == (original.content, original.evidence)


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_noise_is_refused_and_nothing_else_happens(data: bytes) -> None:
    with pytest.raises(BundleError):
        parse_manifest(data, where="here")


@pytest.mark.parametrize("cut", [0, 1, 100, -1, -3])
def test_a_truncated_manifest_is_refused(cut: int) -> None:
    data = PINNED.read_bytes().rstrip()
    with pytest.raises(BundleError):
        parse_manifest(data[:cut], where="here")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not JSON"),
        (b"[]", "not an object"),
        (b"{}", "format number"),
        (b'{"format": 2}', "format 2 is unknown"),
        (b'{"format": "1"}', "format '1' is unknown"),
        (b'{"format": true}', "format True is unknown"),
        (b'{"format": 1}', "its keys are not"),
        (b'{"format": 1, "format": 1}', "twice"),
        (b'{"format": 1, "name": NaN}', "NaN is not a number"),
        (b'{"format": 1, "name": -Infinity}', "is not a number"),
        (b'{"format": 1, "name": 1e999}', "out of range"),
        (b'{"format": ' + b"9" * 5000 + b"}", "damaged"),
        (b'{"format": 1, "name": ' + b"[" * 200_000, "damaged"),
        (b"\xff\xfe{}", "not JSON"),
        (b'{"format": 1}' + b" " * MAX_MANIFEST_BYTES, "longer than"),
    ],
)
def test_bytes_that_are_no_manifest(data: bytes, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        parse_manifest(data, where="here")


def _first(document: dict[str, Any]) -> dict[str, Any]:
    return dict.__getitem__(document, "content")["variants"][0]  # type: ignore[no-any-return]


def _file(document: dict[str, Any]) -> dict[str, Any]:
    return document["evidence"]["golden"]["inputs"]  # type: ignore[no-any-return]


def _plan(document: dict[str, Any]) -> list[dict[str, Any]]:
    return document["content"]["plan"]["entries"]  # type: ignore[no-any-return]


EDITS: list[tuple[str, Edit, str]] = [
    ("nothing", lambda d: None, ""),
    ("another licence", lambda d: d["content"].update(licence="MIT"), ""),
    ("another date", lambda d: d["evidence"].update(created="2027"), ""),
    ("overlapping ranges: the first that fits serves", lambda d: _plan(d)[1].update(tokens_min=1), ""),
    ("unknown key", lambda d: d["content"].update(run="rm"), "no field 'run'"),
    ("missing key", lambda d: d["content"].pop("plan"), "plan"),
    ("text for a number", lambda d: d["content"].update(pad_id="0"), "expected int"),
    ("null for a text", lambda d: d["content"].update(licence=None), "expected str"),
    ("list for an object", lambda d: d.update(evidence=[]), "wants an object"),
    ("number for the machine's versions", lambda d: d["evidence"]["machine"].update(versions=1), "versions"),
    ("unknown task", lambda d: d["content"].update(task="magic"), "is none of"),
    ("name with a slash", lambda d: d.update(name="a/b"), "not fit"),
    ("name of dots", lambda d: d.update(name=".."), "not fit"),
    ("name of 200 letters", lambda d: d.update(name="a" * 200), "not fit"),
    ("name that is a number", lambda d: d.update(name=7), "damaged"),
    ("path that climbs", lambda d: _file(d).update(path="../x"), "may not be"),
    ("absolute path", lambda d: _file(d).update(path="/etc/passwd"), "may not be"),
    ("path with a drive", lambda d: _file(d).update(path="C:/x"), "may not be"),
    ("path with a backslash", lambda d: _file(d).update(path="a\\..\\b"), "may not be"),
    ("path with a zero byte", lambda d: _file(d).update(path="a\0b"), "may not be"),
    ("path that is the manifest", lambda d: _file(d).update(path="manifest.json"), "named manifest.json"),
    ("path that is the manifest in capitals", lambda d: _file(d).update(path="MANIFEST.json"), "named manifest.json"),
    ("path below a file", lambda d: _file(d).update(path=_first(d)["files"][0]["path"] + "/x"), "inside another file"),
    ("path of another file", lambda d: _file(d).update(path=_first(d)["files"][0]["path"]), "listed twice"),
    ("no sha256", lambda d: _file(d).update(sha256="abc"), "no sha256"),
    ("capital sha256", lambda d: _file(d).update(sha256="A" * 64), "no sha256"),
    ("negative size", lambda d: _file(d).update(size_bytes=-1), "out of range"),
    ("size of a planet", lambda d: _file(d).update(size_bytes=1 << 60), "out of range"),
    ("no variants", lambda d: d["content"].update(variants=[]), "0 variants"),
    ("same variant twice", lambda d: d["content"]["variants"].append(_first(d)), "same digest"),
    ("a hundred variants", lambda d: d["content"].update(variants=[_first(d)] * 100), "100 variants"),
    ("directory of another name", lambda d: _first(d).update(directory="golden"), "lies elsewhere"),
    ("file of other content", lambda d: _first(d)["files"][0].update(sha256="0" * 64), "not named by the content"),
    ("entry that climbs", lambda d: _first(d).update(entry="../../x"), "not one of the files"),
    ("variant without a digest", lambda d: _first(d).update(digest="x"), "not named by a digest"),
    ("variant without files", lambda d: _first(d).update(files=[]), "no files"),
    ("no threads", lambda d: _first(d)["recipe"]["profile"].update(threads=0), "out of range"),
    ("fallback that isn't there", lambda d: d["content"].update(fallback="sha256:" + "0" * 64), "fallback"),
    ("fallback that isn't portable", lambda d: d["content"].update(fallback=_first(d)["digest"]), "fallback"),
    ("empty plan", lambda d: _plan(d).clear(), "ends before"),
    ("plan that begins at 2", lambda d: _plan(d)[0].update(tokens_min=2), "gap at 1 "),
    ("plan with a gap", lambda d: _plan(d)[0].update(tokens_max=63), "gap at 64"),
    ("plan that ends", lambda d: _plan(d)[1].update(tokens_max=1000), "ends before"),
    ("plan backwards", lambda d: _plan(d)[0].update(tokens_min=65), "is empty"),
    ("plan for large batches only", lambda d: _plan(d)[1].update(batch_min=8), "ends before"),
    ("plan of a stranger", lambda d: _plan(d)[0].update(variant="sha256:" + "0" * 64), "is not there"),
    ("golden outputs missing", lambda d: d["evidence"]["golden"]["outputs"].pop(), "one to one"),
    ("golden texts without a tokenizer", lambda d: d["evidence"]["golden"].update(texts=[["hi"]]), "tokenizer"),
    (
        "tolerance that accepts everything",
        lambda d: d["evidence"]["golden"]["outputs"][0]["here"].update(max_relative=5.0),
        "tolerance",
    ),
]


@pytest.mark.parametrize(("edit", "says"), [row[1:] for row in EDITS], ids=[row[0] for row in EDITS])
def test_every_rule_holds_even_with_the_digests_made_to_fit(manifest: Manifest, edit: Edit, says: str) -> None:
    data = resealed(manifest, edit)
    if not says:
        parse_manifest(data, where="here")
        return
    with pytest.raises(BundleError, match=says):
        parse_manifest(data, where="here")


@pytest.mark.parametrize("half", ["content", "evidence"])
def test_an_edit_without_the_digests_is_noticed(manifest: Manifest, half: str) -> None:
    document = json.loads(manifest_bytes(manifest))
    document[half]["licence" if half == "content" else "created"] = "changed"
    with pytest.raises(BundleError, match=f"{half} is not what"):
        parse_manifest(json.dumps(document).encode(), where="here")


@pytest.mark.parametrize(
    ("path", "safe"),
    [
        ("manifest.json", True),
        ("variants/0123/model.onnx", True),
        ("a/b/c.d_e-f", True),
        ("发动机/模型.onnx", True),
        ("", False),
        (".", False),
        ("a/./b", False),
        ("a//b", False),
        ("/a", False),
        ("a/", False),
        ("a/../b", False),
        ("..", False),
        ("a\\b", False),
        ("c:a", False),
        ("a\nb", False),
        (" a", False),
        ("a.", False),
        ("a" * 201, False),
        ("a/" * 250 + "a", False),
    ],
)
def test_paths(path: str, safe: bool) -> None:
    assert is_safe_path(path) is safe


def test_evidence_has_no_part_in_the_name(tmp_path: Path) -> None:
    one = prepare(parts(tmp_path / "a"))
    other = parts(tmp_path / "b")
    other = replace(other, created="2031-01-01", met=False, machine=replace(other.machine, cpu="Another"))
    assert prepare(other).digest == one.digest
    assert prepare(replace(other, pad_id=1)).digest != one.digest
