"""Bad input through the real command line: one clear message, the right exit code, nothing lost, nothing half-written.

Each row is a command that goes wrong and what must be said. They run in this process, through the same entry point as
`vengine`; what needs a process of its own is in `test_bad_moments.py`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.making import Run, clear, files
from tests.sources.making import write_onnx

pytestmark = pytest.mark.timed

SOURCES = [
    ("", "the name of the model is empty"),
    ("nowhere", "there is no 'nowhere'"),
    ("https://example.org/model", "a web address"),
    ("ok.txt", "no kind of model"),
    ("nothing", "no model inside"),
    ("no-config", "no model inside"),
    ("cut-config", "can't be read as JSON"),
    ("list-config", "not a JSON object"),
    ("latin-config", "can't be read as JSON"),
    ("cut-weights", "truncated"),
    ("empty-weights", "not a whole safetensors file"),
    ("no-weights", "model.safetensors is missing"),
    ("pickled", "a pickle can run code"),
    ("no-tokenizer", "the tokenizer is missing"),
    ("cut-tokenizer", "can't be read as JSON"),
    ("other-tokenizer", "not a tokenizer file"),
    ("writer", "isn't supported yet"),
    ("own-code", "can't build the model"),
    ("bert/model.safetensors", "weights alone are no model"),
    ("m.bin", "a pickle"),
    ("m.pt", "a pickle"),
    ("m.pkl", "a pickle"),
    ("m.ckpt", "a pickle"),
    ("m.joblib", "a pickle"),
    ("traced.pt2", "may unpickle"),
    ("model.gguf", "GGUF"),
    ("cut.onnx", "not a whole ONNX file"),
    ("empty.onnx", "no ONNX graph"),
    ("words.onnx", "not a whole ONNX file"),
    ("unknown.onnx", "unknown operator Frobnicate"),
    ("foreign.onnx", "unknown operator com.acme::Frobnicate"),
    ("old.onnx", "opset 9"),
    ("texts.onnx", "holds texts, not numbers"),
    ("constant.onnx", "the graph has no input"),
    ("no-data", "the file with the weights is missing"),
    ("cut-data/m.onnx", "truncated"),
    ("alone.xml", "the weights are missing"),
    ("pypi:", "not the name of a distribution"),
    ("pypi:../../x", "not the name of a distribution"),
    ("pypi:--index-url=http://x", "not the name of a distribution"),
    ("hf:../../etc", "not a hub id"),
    ("hf:a/b@c@d", "not a hub id"),
    ("x" * 5000, "too long"),
]


@pytest.mark.parametrize(("source", "message"), SOURCES, ids=[name[:30] or "empty" for name, _ in SOURCES])
def test_a_source_that_is_no_model_is_refused(vengine: Run, place: Path, source: str, message: str) -> None:
    clear(vengine("inspect", source), message)
    assert not (place.parent / "cache" / "work").exists()


def test_a_folder_with_too_many_files_is_not_searched(
    vengine: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vengine.sources.candidates._MOST_FILES", 10)
    folder = tmp_path / "disk"
    folder.mkdir()
    write_onnx(folder / "m.onnx")
    assert vengine("inspect", str(folder)).code == 0
    for i in range(10):
        (folder / f"{i}.txt").write_text("")
    clear(vengine("inspect", str(folder)), "more than 10 files")


CALLS = [
    ("good.onnx --time 0", "above zero"),
    ("good.onnx --time soon", "not a duration"),
    ("good.onnx --budget 200%", "between 0% and 100%"),
    ("good.onnx --budget nan", "not a share"),
    ("good.onnx --memory-limit -1G", "not a size"),
    ("good.onnx --memory-limit 100M", "100 MiB are allowed"),
    ("good.onnx --engines foo", "there is no engine"),
    ("good.onnx --threads 0", "not in the range"),
    ("good.onnx --task embedding", "needs texts"),
    ("good.onnx --metric nope", "there is no metric 'nope'"),
    ("good.onnx --metric nowhere_at_all:f", "can't be imported"),
    ("good.onnx --metric json:nothing", "has no function"),
    ("good.onnx --text-column text", "no --data"),
    ("good.onnx --lengths huge.lengths", "1,000,000,000 tokens"),
    ("good.onnx --lengths below.lengths", "no length"),
    ("good.onnx --lengths words.lengths", "no length"),
    ("relu.onnx --data ok.txt", "has no tensors"),
    ("relu.onnx --data other.npz", "the sample has q"),
    ("relu.onnx --data wide.npz", "takes [4]"),
    ("relu.onnx --data nan.npz", "NaN"),
    ("relu.onnx --data words.npz", "float32"),
    ("relu.onnx --data objects.npz", "allow_pickle=False"),
    ("relu.onnx --data cut.npz", "can't be read"),
    ("relu.onnx --data nowhere.npz", "no such data file"),
    ("relu.onnx --data empty.txt", "empty"),
    ("relu.onnx --data one.txt", "single sample"),
    ("relu.onnx --data long.txt", "100,001 characters"),
    ("relu.onnx --data latin.txt", "not UTF-8"),
    ("relu.onnx --data utf16.txt", "UTF-16"),
    ("relu.onnx --data nul.txt", "NUL byte"),
    ("relu.onnx --data cut.jsonl", "not JSON"),
    ("relu.onnx --data other.jsonl", "no column 'text'"),
    ("relu.onnx --data same.csv", "one class"),
    ("relu.onnx --data ok.txt --text-column words", "'words', and .txt files have none"),
    ("good.onnx --out nowhere/x.vengine", "doesn't exist"),
    ("good.onnx --out mine", "no bundle lies where"),
    ("good.onnx --out ok.txt", "no bundle lies where"),
    ("good.onnx --out good.onnx", "no bundle lies where"),
    ("good.onnx --out .", "no bundle lies where"),
    ("good.onnx --html nowhere/x.html", "doesn't exist"),
    ("good.onnx --html good.onnx", "no HTML page lies where"),
    ("good.onnx --html mine", "no HTML page lies where"),
    ("good.onnx --out a.vengine --html a.vengine/x.html", "inside the bundle"),
    ("good.onnx --out a.vengine --html a.vengine", "inside the bundle"),
    ("bert --data rows.npz", "reads texts and the data holds tensors"),
    ("topics --data foreign.csv", "'red' is not a class of the model"),
]


@pytest.mark.parametrize(("words", "message"), CALLS, ids=[words for words, _ in CALLS])
def test_an_optimisation_that_can_not_be_is_refused_before_any_work(
    vengine: Run, place: Path, words: str, message: str
) -> None:
    before = files(place)
    clear(vengine("optimize", *words.split()), message)
    assert files(place) == before
    assert not list((place.parent / "cache").rglob("model.onnx"))  # nothing was exported


def test_a_pack_does_not_replace_a_stranger(vengine: Run, place: Path) -> None:
    (place / "a.vengine.pack").write_text("precious")
    clear(vengine("optimize", "good.onnx", "--out", "a.vengine", "--pack"), "no bundle lies where")
    assert (place / "a.vengine.pack").read_text() == "precious"


def test_a_metric_that_fails_is_the_users_to_mend(vengine: Run, place: Path) -> None:
    (place / "mine.py").write_text("def broken(predicted, truth):\n    raise KeyError('oops')\n")
    words = ["topics", "--data", "topics.csv", "--metric", "mine.py:broken", "--time", "1s", "--out", "t.vengine"]
    clear(vengine("optimize", *words), "raised KeyError")
    assert not (place / "t.vengine").exists()


def test_a_second_run_on_the_same_question_waits_for_no_one(vengine: Run, place: Path) -> None:
    import fcntl

    words = ["optimize", "relu.onnx", "--data", "rows.npz", "--time", "1s", "--out", "r.vengine"]
    assert vengine(*words).code in (0, 3)
    before = files(place / "r.vengine")
    (lock,) = (place.parent / "cache" / "work").glob("*/lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        clear(vengine(*words), "another run is at work on the same question")
    assert files(place / "r.vengine") == before


def test_a_bundle_holds_the_model_and_nothing_that_lay_beside_it(built: Path) -> None:
    shipped = {path.name for path in (built / "variants").rglob("*") if path.is_file()}
    assert shipped <= {"model.onnx", "model.onnx.data"}


BUNDLES: list[tuple[str, Callable[[Path], object], str]] = [
    ("gone", shutil.rmtree, "no such bundle"),
    ("without a manifest", lambda b: (b / "manifest.json").unlink(), "no readable manifest"),
    ("cut manifest", lambda b: os.truncate(b / "manifest.json", 10), "the manifest is damaged"),
    ("cut model", lambda b: os.truncate(next(b.rglob("model.onnx")), 10), "the bundle is damaged"),
    ("without its model", lambda b: next(b.rglob("model.onnx")).unlink(), "the bundle is damaged"),
    ("with a stranger", lambda b: (b / "more.txt").write_text(""), "does not belong"),
    ("a text file", lambda b: (shutil.rmtree(b), b.write_text("hello")), "no bundle"),
]


@pytest.mark.parametrize(("damage", "message"), [(d, m) for _, d, m in BUNDLES], ids=[name for name, _, _ in BUNDLES])
def test_a_damaged_bundle_is_refused_by_every_verb(
    vengine: Run, place: Path, built: Path, damage: Callable[[Path], object], message: str
) -> None:
    shutil.copytree(built, place / "b.vengine")
    damage(place / "b.vengine")
    clear(vengine("verify", "b.vengine"), message)
    clear(vengine("run", "b.vengine", "--tensors", "rows.npz"), message)


PROFILES = [
    ("nowhere", "there is no 'nowhere'"),
    ("ok.txt", "no kind of model"),
    ("m.pkl", "a pickle"),
    ("text --shape 1x400", "400 tokens, and the longest text of lookup has 300"),
    ("text --shape 8", "not a shape"),
    ("text --shape 0x8", "not a shape"),
    ("text --threads 0", "not in the range"),
    ("text --variant fp32", "only a bundle has variants"),
    ("BUNDLE --variant nope", "none of the bundle's variants"),
    ("BUNDLE --trace nowhere/t.json", "the folder doesn't exist"),
    ("BUNDLE --trace mine", "no trace lies where it should go"),
    ("BUNDLE --trace ok.txt", "no trace lies where it should go"),
    ("BUNDLE --html nowhere/p.html", "the folder doesn't exist"),
    ("BUNDLE --html good.onnx", "no HTML page lies where"),
]


@pytest.mark.parametrize(("words", "message"), PROFILES, ids=[words for words, _ in PROFILES])
def test_a_profile_that_can_not_be(vengine: Run, place: Path, built: Path, words: str, message: str) -> None:
    before = files(place)
    clear(vengine("profile", *words.replace("BUNDLE", str(built)).split()), message)
    assert files(place) == before


def test_a_profile_without_its_engine_says_how_to_install_it(
    vengine: Run, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vengine.engines.base import Availability

    missing = Availability(ok=False, reason="the package onnxruntime is not installed", install="pip install it")
    monkeypatch.setattr("vengine.engines.onnxruntime_engine.OnnxRuntimeEngine.availability", lambda _: missing)
    clear(vengine("profile", str(built)), "onnxruntime is not installed (pip install it)")


def test_a_profile_in_words_and_in_json(vengine: Run, built: Path, place: Path) -> None:
    done = vengine("profile", str(built), "--shape", "4x1", "--trace", "t.json", "--json")
    assert done.code == 0, done.err
    (line,) = done.out.splitlines()
    told = json.loads(line)
    assert [n["kind"] for n in told["nodes"]] == ["Relu"]
    assert told["inputs"] == [{"name": "x", "dtype": "float32", "shape": [4, 4]}]
    assert told["ceilings"]["memory"]["value"] > 0
    assert "Where the time goes" in done.err
    assert {"X", "M"} == {e["ph"] for e in json.loads((place / "t.json").read_text())["traceEvents"]}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--text hello", "takes tensors, not texts"),
        ("--tensors nowhere.npz", "can't be read"),
        ("--tensors cut.npz", "can't be read"),
        ("--tensors objects.npz", "allow_pickle=False"),
        ("--tensors other.npz", "'x' is missing"),
        ("--tensors wide.npz", "has the shape [8, 5]"),
        ("--tensors words.npz", "the model wants float32"),
        ("--tensors rows.npz --variant nope", "none of the bundle's variants"),
    ],
)
def test_a_call_that_does_not_fit_the_bundle(vengine: Run, built: Path, words: str, message: str) -> None:
    clear(vengine("run", str(built), *words.split()), message)
    assert vengine("run", str(built), "--tensors", "rows.npz").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere", "there is no 'nowhere'"),
        ("m.pkl", "a pickle"),
        ("relu.onnx --lengths words.lengths", "no length"),
        ("text --lengths wide.lengths", "5000 tokens, and the longest text of lookup has 300"),
        ("text --shape 1x400", "400 tokens, and the longest text of lookup has 300"),
    ],
)
def test_a_race_that_can_not_be(vengine: Run, words: str, message: str) -> None:
    clear(vengine("bench", *words.split()), message)


def test_a_small_vocabulary_is_raced_inside_itself(vengine: Run) -> None:
    done = vengine("bench", "text", "--shape", "1x8", "--time", "1s", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out.splitlines()[-1])["rows"][0]["shape"] == "1x8"
