"""Frames come out as they went in, in whatever pieces they arrive."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from vengine.engines import wire
from vengine.errors import UsageError

NUMBERS = st.sampled_from(["float32", "float64", "float16", "int64", "int32", "int8", "uint8", "bool"])
ARRAYS = npst.arrays(dtype=NUMBERS, shape=npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
CALLS = st.lists(st.dictionaries(st.text(max_size=5), ARRAYS, max_size=3), max_size=4)


def receive(data: bytes, sizes: list[int]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    inbox, position, turn = wire.Inbox(), 0, 0
    while True:
        count = min(len(inbox.target), max(1, sizes[turn % len(sizes)]), len(data) - position)
        assert count, "the frame ends before it is whole"
        inbox.target[:count] = data[position : position + count]
        position, turn = position + count, turn + 1
        if inbox.advance(count):
            assert position == len(data), "bytes are left over"
            return inbox.message()


@given(CALLS, st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_what_is_sent_arrives(calls: list[dict[str, Any]], sizes: list[int]) -> None:
    data = b"".join(wire.encode({"do": "run"}, calls))
    message, received = receive(data, sizes)
    assert message == {"do": "run"}
    assert len(received) == len(calls)
    for sent, got in zip(calls, received, strict=True):
        assert list(sent) == list(got)
        for name in sent:
            assert got[name].dtype == sent[name].dtype
            assert got[name].shape == sent[name].shape
            np.testing.assert_array_equal(got[name], sent[name])


@pytest.mark.parametrize(
    "array", [np.arange(12).reshape(3, 4).T, np.arange(20)[::3], np.arange(8).reshape(2, 4)[:, 1:3], np.array(3.5)]
)
def test_arrays_that_are_not_contiguous(array: Any) -> None:
    _, (got,) = receive(b"".join(wire.encode({}, [{"a": array}])), [1000])
    np.testing.assert_array_equal(got["a"], array)
    assert got["a"].flags.writeable


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([None, {}]), np.array([1j])])
def test_only_numbers_travel(array: Any) -> None:
    with pytest.raises(UsageError, match="only numbers"):
        wire.encode({}, [{"a": array}])


def test_a_frame_with_an_absurd_head_is_refused() -> None:
    with pytest.raises(ValueError, match="no frame of ours"):
        receive(wire.HEADER.pack(1 << 40, 0) + b"{}", [100])
