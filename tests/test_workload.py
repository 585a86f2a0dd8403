"""Every kind of data file is read as it should be; every fault names its line."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vengine.errors import DataError, UsageError
from vengine.types import Sample, TensorSpec
from vengine.workload import fit_tensors, read_lengths, read_workload
from vengine.workload.tables import LONGEST_TEXT

S = Sample


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


@pytest.mark.parametrize(
    ("name", "content", "samples"),
    [
        ("a.txt", "one line\nanother line\n", [S(text="one line"), S(text="another line")]),
        ("a.TXT", "\ufeffone\r\n\r\n  two \r\n", [S(text="one"), S(text="two")]),
        ("a.txt", "带空格 的\nline\u2028same\x85line\n", [S(text="带空格 的"), S(text="line\u2028same\x85line")]),
        ("a.jsonl", '"one"\n{"text": "two"}\n', [S(text="one"), S(text="two")]),
        (
            "a.jsonl",
            '{"sentence1": "a", "sentence2": "b", "score": 1}\n\n{"sentence1": "c", "sentence2": "d", "score": "2.5"}',
            [S(text="a", pair="b", score=1.0), S(text="c", pair="d", score=2.5)],
        ),
        (
            "a.jsonl",
            '{"Query": "a", "label": 3}\n{"Query": "b", "label": "x "}\n{"Query": "c", "label": 2.0, "other": []}',
            [S(text="a", label="3"), S(text="b", label="x"), S(text="c", label="2")],
        ),
        ("a.csv", "text,category\na,x\nb,y\n", [S(text="a", label="x"), S(text="b", label="y")]),
        ("a.csv", "id,Question,Intent\n1,a,x\n2,b,y\n", [S(text="a", label="x"), S(text="b", label="y")]),
        ("a.csv", 'text\n"a, b"\n"two\nlines"\n', [S(text="a, b"), S(text="two\nlines")]),
        ("a.csv", "a,b,1.5\nc,d,2\n", [S(text="a", pair="b", score=1.5), S(text="c", pair="d", score=2.0)]),
        ("a.csv", "some words,x\nmore words,y\n", [S(text="some words", label="x"), S(text="more words", label="y")]),
        ("a.csv", "a b\nc d\n", [S(text="a b"), S(text="c d")]),
        ("a.csv", "text,label\na,x\nb,\nc,y\n", [S(text="a", label="x"), S(text="b"), S(text="c", label="y")]),
        ("a.tsv", "text\tscore\na, b\t1\nc\t2\n", [S(text="a, b", score=1.0), S(text="c", score=2.0)]),
        ("a.csv", "x" * LONGEST_TEXT + "\ny z\n", [S(text="x" * LONGEST_TEXT), S(text="y z")]),
    ],
)
def test_what_is_read(tmp_path: Path, name: str, content: str, samples: list[Sample]) -> None:
    path = write(tmp_path, name, content)
    found = read_workload(path)
    assert list(found.samples) == samples
    assert found.origin == str(path)
    assert found.labelled == any(s.label or s.score is not None for s in samples)


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", "body,text,kind,other\na,no,x,b\nc,no,y,d\n")
    found = read_workload(path, text_column="body", pair_column="other", label_column="kind")
    assert found.samples == (S(text="a", pair="b", label="x"), S(text="c", pair="d", label="y"))
    assert read_workload(path, label_column="kind").samples[0] == S(text="no", label="x")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", "", "empty"),
        ("a.txt", "\n \n", "empty"),
        ("a.txt", "only one\n", "single sample"),
        ("a.csv", "", "empty"),
        ("a.csv", "text,label\n", "empty"),
        ("a.jsonl", "", "empty"),
        ("a.txt", b"good\n\xff\xfebad\n", "line 2"),
        ("a.txt", b"good\ngood\nb\xe9d\n", "0xe9 is not UTF-8"),
        ("a.csv", b"\xef\xbb\xbftext,label\na,\xe9\n", "line 2"),
        ("a.txt", "one\ntwo\n".encode("utf-16"), "UTF-16"),
        ("a.txt", "one\nt\0wo\n", "line 2"),
        ("a.txt", "one\n" + "x" * (LONGEST_TEXT + 1), "line 2"),
        ("a.csv", "text\n" + "x" * (LONGEST_TEXT + 1) + "\nb\n", "100,001 characters"),
        ("a.csv", "text\nfine\n" + "x" * 200_000, "line 3"),
        ("a.csv", "text,label\na,x\nb,x\n", "all labels are 'x'"),
        ("a.csv", "text,label\na,x\nb,y,z\n", "line 3"),
        ("a.csv", "Hello, you there\nno comma\n", "line 2"),
        ("a.csv", 'text\n"never closed\nb\n', "line 2"),
        ("a.csv", "text,label\n,x\nb,y\n", "text is empty"),
        ("a.csv", "text,score\na,1\nb,high\n", "'high' is not a number"),
        ("a.csv", "text,score\na,1\nb,nan\n", "'nan' is not a number"),
        ("a.csv", "a b,c,d,e\ne,f,g,h\n", "4 columns without names"),
        ("a.csv", "a b,c d,e f\ng,h,i\n", "3 columns without names"),
        ("a.csv", "".join(f"text {i},answer {i}\n" for i in range(12)), "texts, or labels?"),
        ("a.csv", "body_text,kind\nhow are you,x\nwhere are you,y\n", "'body_text', 'kind'"),
        ("a.csv", "label,score\nx,1\ny,2\n", "there is no column 'text'"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', "line 2"),
        ("a.jsonl", '{"text": "a"}\n[1]\n', "JSON list"),
        ("a.jsonl", '{"text": "a"}\n{"txt": "b"}\n', "'txt'"),
        ("a.jsonl", '{"text": "a"}\n{"text": 5}\n', "the text is a int"),
        ("a.jsonl", '{"text": "a"}\n{"text": null}\n', "line 2"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "label": [["x"]]}\n', "the label is a list"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "label": ["x", ""]}\n', "a label in the list is empty"),
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "score": NaN}\n', "not a number"),
        ("a.jsonl", '{"text": "a"}\n{"text": "\\ud800"}\n', "surrogate"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1"),
        ("a.parquet", "PAR1", "'.parquet' are not known"),
        ("a.npy", b"\x93NUMPY\x01\x00trash", "can't be read"),
        ("a.npz", b"no archive", "can't be read"),
    ],
)
def test_what_is_refused(tmp_path: Path, name: str, content: str | bytes, says: str) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(DataError) as caught:
        read_workload(path)
    assert says in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_missing_file_and_a_missing_column_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such data file"):
        read_workload(tmp_path / "none.txt")
    path = write(tmp_path, "a.csv", "text,label\na,x\nb,y\n")
    with pytest.raises(DataError, match=r"no column 'body' \(.*'text', 'label'\)"):
        read_workload(path, text_column="body")
    with pytest.raises(UsageError, match="concurrency is 0"):
        read_workload(path, concurrency=0)


json_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1).filter(str.strip)


@given(st.lists(json_text, min_size=2, max_size=8))
@settings(max_examples=60, deadline=None)
def test_any_text_survives_json_lines(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts), encoding="utf-8")
    assert [s.text for s in read_workload(path).samples] == texts


def test_the_digest_names_content_and_traffic(tmp_path: Path) -> None:
    path, same = (write(tmp_path, name, "one\ntwo\n") for name in ("a.txt", "b.txt"))
    other = write(tmp_path, "c.txt", "one\ntwo!\n")
    digest = read_workload(path).digest
    assert digest == read_workload(same).digest
    others = [
        read_workload(other),
        read_workload(path, lengths=(3, 4)),
        read_workload(path, concurrency=2),
        read_workload(path, objective="memory"),
    ]
    assert len({digest, *(w.digest for w in others)}) == 5


# --- lengths ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "lengths"),
    [
        ("5\n7\n\n5\n", (5, 7, 5)),
        ("length,count\n5,2\n7,1\n", (5, 5, 7)),
        ("5\t2\n7\t0\n", (5, 5)),
        ("\ufefflength\r\n12\r\n", (12,)),
    ],
)
def test_lengths(tmp_path: Path, content: str, lengths: tuple[int, ...]) -> None:
    path = write(tmp_path, "lengths.csv", content)
    assert read_lengths(path) == lengths
    data = write(tmp_path, "a.txt", "one\ntwo\n")
    assert read_workload(data, lengths=path).lengths == lengths


def test_a_huge_histogram_is_scaled_down_and_keeps_every_length(tmp_path: Path) -> None:
    found = read_lengths(write(tmp_path, "l.csv", "10,900000000\n20,100000000\n500,1\n"))
    assert len(found) == pytest.approx(100_000, rel=0.01)
    assert found.count(10) == pytest.approx(9 * found.count(20), rel=0.01)
    assert found.count(500) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "empty"),
        ("length\n", "no length"),
        ("5\nsix\n", "line 2"),
        ("5\n0\n", "length of 0"),
        ("5,-1\n", "no length"),
        ("5.5\n", "no length"),
        ("5,1,1\n", "no length"),
        ("9999999999\n", "length of 9,999,999,999"),
        ("5\n٣\n", "no length"),
    ],
)
def test_wrong_lengths(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_lengths(write(tmp_path, "l.csv", content))
    with pytest.raises(DataError, match="no such file"):
        read_lengths(tmp_path / "none")


# --- tensors and images ----------------------------------------------------------------------


def npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "a.npz"
    np.savez(path, **arrays)
    return path


def test_arrays_become_samples(tmp_path: Path) -> None:
    x, y = np.arange(12.0).reshape(3, 4), np.arange(3)
    found = read_workload(npz(tmp_path, x=x, y=y, labels=np.array([0, 1, 0]), scores=[0.5, 1, 2])).samples
    assert [s.label for s in found] == ["0", "1", "0"]
    assert [s.score for s in found] == [0.5, 1.0, 2.0]
    assert found[1].tensors is not None
    assert found[1].tensors["x"].tolist() == [4, 5, 6, 7]
    np.save(tmp_path / "b.npy", x)
    alone = read_workload(tmp_path / "b.npy").samples[0].tensors
    assert alone is not None
    assert list(alone) == ["input"]


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x": np.zeros((3, 2)), "y": np.zeros((4, 2))}, "x 3, y 4"),
        ({"x": np.zeros(())}, "empty"),
        ({"x": np.array([[1.0], [np.nan], [2.0]])}, "sample 2"),
        ({"x": np.array([{}, {}], dtype=object)}, "can't be read"),
        ({"labels": np.zeros(3)}, "no inputs"),
        ({"x": np.zeros((1, 2))}, "single sample"),
    ],
)
def test_wrong_arrays(tmp_path: Path, arrays: dict[str, Any], says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_workload(npz(tmp_path, **arrays))


def test_an_archive_that_unpacks_to_too_much_is_refused_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vengine.workload.tensors.LARGEST_UNPACKED", 10_000)
    data = io.BytesIO()
    np.save(data, np.zeros((100, 100)))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data.getvalue())
    with pytest.raises(DataError, match="bytes unpacked"):
        read_workload(tmp_path / "a.npz")


def spec(name: str, dtype: str, *shape: int | str) -> TensorSpec:
    return TensorSpec(name=name, dtype=dtype, shape=shape)


@pytest.mark.parametrize(
    ("tensors", "inputs", "says"),
    [
        ({"input": np.zeros(4)}, [spec("x", "float32", "b", 4)], None),
        ({"x": np.zeros(4)}, [spec("x", "float32", "b", "n")], None),
        ({"x": np.zeros(4, np.uint8)}, [spec("x", "float32", "b", 4)], None),
        ({"x": np.zeros(4), "y": np.zeros(2, int)}, [spec("x", "float32", "b", 4), spec("y", "int64", "b", 2)], None),
        ({"input": np.zeros(4)}, [spec("x", "float32", "b", 4), spec("y", "float32", "b", 4)], "has input"),
        ({"z": np.zeros(4)}, [spec("x", "float32", "b", 4)], "has z, the model reads x"),
        ({"x": np.zeros(5)}, [spec("x", "float32", "b", 4)], r"takes \[4\], the sample has \[5\]"),
        ({"x": np.zeros((1, 4))}, [spec("x", "float32", "b", 4)], r"has \[1, 4\]"),
        ({"x": np.zeros(4)}, [spec("x", "int64", "b", 4)], "is int64, the sample is float64"),
        (None, [spec("x", "float32", "b", 4)], "has no tensors"),
    ],
)
def test_tensors_fit_the_models_inputs_or_are_refused(
    tensors: dict[str, Any] | None, inputs: list[TensorSpec], says: str | None
) -> None:
    if says is not None:
        with pytest.raises(DataError, match=says):
            fit_tensors([S(tensors=tensors)], inputs)
        return
    fitted = fit_tensors([S(tensors=tensors)], inputs)[0].tensors
    assert fitted is not None
    assert {n: a.dtype for n, a in fitted.items()} == {i.name: np.dtype(i.dtype) for i in inputs}


def pictures(folder: Path, *names: str) -> Path:
    image = pytest.importorskip("PIL.Image", reason="Pillow isn't installed")
    for i, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (40, 20), (255, 128, i)).save(folder / name)
    return folder


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("b.png", "a.jpg"), [None, None]),
        (("up/a.png", "down/b.png"), ["down", "up"]),
        (("up/a.png", "b.png"), [None, None]),
        (("up/a.png", "up/b.png"), [None, None]),
    ],
)
def test_directories_of_images(tmp_path: Path, names: tuple[str, ...], labels: list[str | None]) -> None:
    found = read_workload(pictures(tmp_path, *names)).samples
    assert [s.label for s in found] == labels
    assert sorted(s.text for s in found) == sorted(names)


@pytest.mark.parametrize(
    ("shape", "dtype", "fitted", "red"),
    [
        (("b", 3, 8, 8), "float32", (3, 8, 8), (1 - 0.485) / 0.229),
        (("b", 8, 16, 3), "float32", (8, 16, 3), (1 - 0.485) / 0.229),
        (("b", 8, 8, 3), "uint8", (8, 8, 3), 255),
        (("b", 3, "h", "w"), "float32", (3, 224, 224), (1 - 0.485) / 0.229),
        (("b", 1, 8, 8), "float32", (1, 8, 8), None),
    ],
)
def test_images_fit_the_input(
    tmp_path: Path, shape: tuple[int | str, ...], dtype: str, fitted: tuple[int, ...], red: float | None
) -> None:
    samples = read_workload(pictures(tmp_path, "a.png", "b.png")).samples
    tensors = fit_tensors(samples, [spec("x", dtype, *shape)])[0].tensors
    assert tensors is not None
    assert tensors["x"].shape == fitted
    if red is not None:
        assert tensors["x"].flat[0] == pytest.approx(red, abs=1e-5)


def test_directories_without_images_and_broken_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images"):
        read_workload(tmp_path)
    samples = read_workload(pictures(tmp_path, "a.png", "b.png")).samples
    with pytest.raises(DataError, match="no image of 1 or 3 channels"):
        fit_tensors(samples, [spec("x", "float32", "b", 4)])
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:40])
    with pytest.raises(DataError, match="can't be read"):
        fit_tensors(samples, [spec("x", "float32", "b", 3, 8, 8)])


def test_a_list_of_labels_is_a_set_and_an_empty_one_says_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "a", "labels": ["x", "y", "x"]}\n{"text": "b", "labels": []}\n{"text": "c", "labels": "z"}\n'
    )
    found = read_workload(path)
    assert [(s.label, s.labels) for s in found.samples] == [(None, ("x", "y")), (None, ()), ("z", None)]
    assert found.labelled


def test_rows_of_labels_in_an_array_are_sets(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), labels=np.array([[1, 0, 1], [0, 0, 0]]))
    assert [s.labels for s in read_workload(tmp_path / "a.npz").samples] == [("0", "2"), ()]
