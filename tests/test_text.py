"""Tokens and feeds: what a tokenizer file switches on must stay off, and nothing may get lost on the way."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vengine.errors import DataError, SourceError, UsageError
from vengine.text import Encoding, Tokenizer, batches, feeds, padded_length

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue", "fish", "bird", "sings", "swims"]


def tokenizer_file(path: Path, **changes: Any) -> Path:
    """A word-level tokenizer like BERT's, which pads to 64 and cuts at 32 unless it is stopped."""
    from tokenizers import Tokenizer as Backend
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    backend = Backend(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    backend.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    backend.enable_padding(length=64, pad_id=0, pad_token="[PAD]")
    backend.enable_truncation(32)
    spec = json.loads(backend.to_str())
    path.write_text(json.dumps({**spec, **changes}))
    return path


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    return Tokenizer.from_file(tokenizer_file(tmp_path / "tokenizer.json"), max_tokens=8)


# text, ids, type ids, truncated (at most 8 tokens)
ENCODINGS: list[tuple[str | tuple[str, str], list[int], list[int], bool]] = [
    ("red fish", [2, 4, 7, 3], [0, 0, 0, 0], False),
    ("", [2, 3], [0, 0], False),
    ("zebra", [2, 1, 3], [0, 0, 0], False),
    ("red red red red red red", [2, 4, 4, 4, 4, 4, 4, 3], [0] * 8, False),
    ("red red red red red red blue", [2, 4, 4, 4, 4, 4, 4, 3], [0] * 8, True),
    (("red fish", "blue bird"), [2, 4, 7, 3, 6, 8, 3], [0, 0, 0, 0, 1, 1, 1], False),
    (("red red red red red red red red", "blue"), [2, 4, 4, 4, 4, 3, 6, 3], [0, 0, 0, 0, 0, 0, 1, 1], True),
]


@pytest.mark.parametrize(("text", "ids", "types", "cut"), ENCODINGS)
def test_encode(tokenizer: Tokenizer, text: str | tuple[str, str], ids: list[int], types: list[int], cut: bool) -> None:
    (encoding,) = tokenizer.encode([text])
    assert encoding.ids.tolist() == ids
    assert encoding.type_ids.tolist() == types
    assert encoding.truncated is cut
    assert encoding.length == len(ids), "the file's padding to 64 must be off"


def test_without_truncation_every_token_is_there(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = "red " * 50
    assert tokenizer.lengths([text], truncate=False) == [52], "the file's own limit of 32 must be off"
    assert tokenizer.lengths([text]) == [8]
    unlimited = Tokenizer.from_file(tmp_path / "tokenizer.json", max_tokens=None)
    assert unlimited.lengths([text]) == [52]
    assert unlimited.encode([text])[0].truncated is False


def test_the_file_says_on_which_side_to_cut(tmp_path: Path) -> None:
    left = {"direction": "Left", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    cut = Tokenizer.from_file(tokenizer_file(tmp_path / "t.json", truncation=left), max_tokens=4)
    assert cut.encode(["red green blue fish"])[0].ids.tolist() == [2, 6, 7, 3]


def test_known_ids(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(tokenizer_file(tmp_path / "a.json"), max_tokens=8)
    assert (tokenizer.unknown_id, tokenizer.pad_id) == (1, 0)
    padding = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 5, "pad_type_id": 0, "pad_token": "x"}
    assert Tokenizer.from_file(tokenizer_file(tmp_path / "b.json", padding=padding), 8).pad_id == 5
    assert Tokenizer.from_file(tokenizer_file(tmp_path / "c.json", padding=None), 8).pad_id == 0


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        (["fine", "bro\ud800ken"], "text 1 holds a lone surrogate"),
        ([("fine", "\udfff")], "text 0 holds a lone surrogate"),
        (["fine", 3], "text 1 is int"),
    ],
)
def test_what_is_no_text_is_refused(tokenizer: Tokenizer, texts: list[Any], match: str) -> None:
    with pytest.raises(DataError, match=match):
        tokenizer.encode(texts)


def test_odd_but_valid_texts_are_encoded(tokenizer: Tokenizer) -> None:
    odd = ["nul\x00byte", "🐟" * 3, "中文", "\u200b", "a" * 100_000]
    assert all(encoding.length >= 2 for encoding in tokenizer.encode(odd))


@pytest.mark.parametrize(
    ("content", "limit", "kind", "match"),
    [
        (None, 8, SourceError, "can't be read"),
        (b"{", 8, SourceError, "can't be read"),
        (b"\xff\xfe", 8, SourceError, "can't be read"),
        (b"{}", 8, SourceError, "can't be read"),
        ("good", 2, UsageError, "2 special tokens"),
    ],
)
def test_files_that_are_no_tokenizer(
    tmp_path: Path, content: bytes | str | None, limit: int, kind: type[Exception], match: str
) -> None:
    path = tmp_path / "t.json"
    if content == "good":
        tokenizer_file(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(kind, match=match):
        Tokenizer.from_file(path, limit)


def test_threads_share_one_tokenizer(tokenizer: Tokenizer) -> None:
    def work(n: int) -> list[list[int]]:
        return [e.ids.tolist() for e in tokenizer.encode(["red fish " * n] * 20, truncate=n % 2 == 0)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == [work(n) for n in range(40)]


def encoding(*ids: int) -> Encoding:
    return Encoding(ids=np.array(ids, dtype=np.int64), type_ids=np.ones(len(ids), dtype=np.int64), truncated=False)


@pytest.mark.parametrize(
    ("side", "length", "ids", "mask"),
    [
        ("right", None, [[4, 5, 6], [7, 9, 9]], [[1, 1, 1], [1, 0, 0]]),
        ("left", None, [[4, 5, 6], [9, 9, 7]], [[1, 1, 1], [0, 0, 1]]),
        ("right", 5, [[4, 5, 6, 9, 9], [7, 9, 9, 9, 9]], [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0]]),
        ("left", 4, [[9, 4, 5, 6], [9, 9, 9, 7]], [[0, 1, 1, 1], [0, 0, 0, 1]]),
    ],
)
def test_padding(side: Any, length: int | None, ids: list[list[int]], mask: list[list[int]]) -> None:
    made = feeds([encoding(4, 5, 6), encoding(7)], ["attention_mask", "input_ids", "token_type_ids"], 9, length, side)
    assert list(made) == ["attention_mask", "input_ids", "token_type_ids"]
    assert made["input_ids"].tolist() == ids
    assert made["attention_mask"].tolist() == made["token_type_ids"].tolist() == mask
    assert {array.dtype for array in made.values()} == {np.dtype("int64")}


def test_only_the_inputs_that_the_model_names() -> None:
    assert list(feeds([encoding(4)], ["input_ids"], 0)) == ["input_ids"]


@pytest.mark.parametrize(
    ("encodings", "names", "length", "match"),
    [
        ([], ["input_ids"], None, "empty"),
        ([encoding(1, 2, 3)], ["input_ids"], 2, "longest text has 3"),
        ([encoding(1)], ["pixel_values"], None, "pixel_values"),
    ],
)
def test_feeds_that_cannot_be_made(encodings: list[Encoding], names: list[str], length: int | None, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        feeds(encodings, names, 0, length)


def test_a_text_without_tokens_is_a_fully_masked_row() -> None:
    made = feeds([encoding()], ["input_ids", "attention_mask"], 9)
    assert (made["input_ids"].tolist(), made["attention_mask"].tolist()) == ([[9]], [[0]])


# lengths are padded to 8, 16, … before they are counted
BATCHES: list[tuple[list[int], int, int | None, list[list[int]]]] = [
    ([], 10, None, []),
    ([3, 3, 3], 32, None, [[0, 1], [2]]),
    ([3, 3, 3, 3], 32, None, [[0, 1, 2, 3]]),
    ([3, 3, 3, 3], 31, None, [[0, 1], [2, 3]]),
    ([20, 2, 30], 10, None, [[2], [0], [1]]),
    ([1, 1, 1, 1], 100, 3, [[0, 1], [2, 3]]),
    ([5, 1, 9, 2], 16, None, [[2], [0, 3], [1]]),
    ([0, 0], 16, None, [[0, 1]]),
]


@pytest.mark.parametrize(("lengths", "max_tokens", "max_items", "expected"), BATCHES)
def test_batches(lengths: list[int], max_tokens: int, max_items: int | None, expected: list[list[int]]) -> None:
    assert batches(lengths, max_tokens, max_items) == expected


@given(st.lists(st.integers(0, 600), max_size=60), st.integers(1, 2048), st.none() | st.integers(1, 9))
def test_batches_hold_every_item_once_and_keep_the_limits(
    lengths: list[int], max_tokens: int, max_items: int | None
) -> None:
    packed = batches(lengths, max_tokens, max_items)
    assert sorted(index for group in packed for index in group) == list(range(len(lengths)))
    for group in packed:
        assert len(group) == 1 or len(group) * padded_length(max(lengths[i] for i in group)) <= max_tokens
        assert max_items is None or len(group) <= max_items
        assert len(group).bit_count() == 1, "groups hold powers of two, so that engines meet few shapes"
    sorted_down = [length for group in packed for length in sorted((lengths[i] for i in group), reverse=True)]
    assert sorted_down == sorted(lengths, reverse=True)


@pytest.mark.parametrize(
    ("length", "most", "padded"),
    [
        (0, None, 8),
        (1, None, 8),
        (8, None, 8),
        (9, None, 16),
        (64, None, 64),
        (65, None, 80),
        (129, None, 160),
        (250, 256, 256),
        (257, 300, 300),
        (100, 100, 100),
        (3, 5, 5),
        (9, 5, 9),
    ],
)
def test_padded_lengths_are_steps(length: int, most: int | None, padded: int) -> None:
    assert padded_length(length, most) == padded


@given(st.integers(1, 5000))
def test_padding_to_steps_costs_little_and_meets_few_lengths(length: int) -> None:
    width = padded_length(length)
    assert length <= width <= max(length + 7, length * 5 / 4)
    assert padded_length(width) == width, "a padded length is its own step"
    assert len({padded_length(n) for n in range(1, 513)}) <= 20
