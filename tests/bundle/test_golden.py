"""Golden arrays: the comparison refuses wrong outputs, and the files are read without trust."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from vengine.bundle.golden import (
    Tolerance,
    arrays_from_bytes,
    arrays_to_bytes,
    distance,
    tolerances_for,
)
from vengine.errors import BundleError

WANT = np.random.default_rng(0).normal(size=(6, 32)).astype(np.float32)
NOISE = np.random.default_rng(1).normal(size=(6, 32)).astype(np.float32)


def _one_wrong(a: np.ndarray) -> np.ndarray:
    b = a.copy()
    b[3] = -b[3]
    return b


ROWS: list[tuple[str, Callable[[np.ndarray], np.ndarray], str]] = [
    # what happened to the outputs, and the loosest tolerance that still accepts it ("" = none does)
    ("nothing", lambda a: a, "fp32"),
    ("rounding", lambda a: a + 1e-6 * NOISE, "fp32"),
    ("bf16 noise", lambda a: a + 4e-3 * NOISE, "bf16"),
    ("int8 noise", lambda a: a + 2e-2 * NOISE, "int8-static"),
    ("scaled by 100", lambda a: a * 100, ""),
    ("scaled by 1.5", lambda a: a * 1.5, ""),
    ("sign flipped", lambda a: -a, ""),
    ("zeros", lambda a: a * 0, ""),
    ("shifted", lambda a: a + 1, ""),
    ("neighbours swapped", lambda a: a[::-1], ""),
    ("columns rolled", lambda a: np.roll(a, 1, axis=1), ""),
    ("one sample wrong", _one_wrong, ""),
    ("NaN in one place", lambda a: np.where(np.arange(32) == 7, np.nan, a), ""),
    ("infinity", lambda a: np.where(np.arange(32) == 7, np.inf, a), ""),
    ("transposed", lambda a: a.T, ""),
    ("a sample missing", lambda a: a[:-1], ""),
    ("another axis", lambda a: a[:, None], ""),
    ("noise", lambda a: NOISE, ""),
]
PRECISIONS = ("fp32", "bf16", "int8-static")


@pytest.mark.parametrize(("change", "loosest"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_comparison(change: Callable[[np.ndarray], np.ndarray], loosest: str) -> None:
    apart = distance({"y": WANT}, {"y": change(WANT)})
    accepts = [apart.within(tolerances_for(precision)[0]) for precision in PRECISIONS]
    wanted = [bool(loosest) and i >= PRECISIONS.index(loosest) for i in range(len(PRECISIONS))]
    assert accepts == wanted
    if not loosest:
        assert not any(apart.within(tolerances_for(p)[1]) for p in PRECISIONS)


def test_a_missing_output_is_named() -> None:
    assert distance({"y": WANT}, {"z": WANT}).problem == "output y is missing"


@pytest.mark.parametrize(("got", "accepts"), [([2.0, -4.0], True), ([2.0, 4.0], False), ([2.0, -3.0], False)])
def test_outputs_of_one_number_a_sample_are_judged_by_their_difference(got: list[float], accepts: bool) -> None:
    apart = distance({"y": np.array([[2.0], [-4.0]])}, {"y": np.array(got)[:, None]})
    assert apart.within(Tolerance(min_cosine=0.999, max_relative=0.01)) is accepts


def test_two_zero_vectors_agree() -> None:
    zero = np.zeros((2, 3))
    assert distance({"y": zero}, {"y": zero}).within(Tolerance(min_cosine=1.0, max_relative=0.0))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8-dynamic", "int8-static", "int8-static-bf16"])
def test_another_machine_is_never_judged_more_strictly(precision: str) -> None:
    here, elsewhere = tolerances_for(precision)
    assert here.min_cosine >= elsewhere.min_cosine
    assert here.max_relative <= elsewhere.max_relative


def some_arrays(dtype: type) -> st.SearchStrategy[np.ndarray]:
    """Without subnormal numbers: an engine that ran in this process before may flush them to zero."""
    elements = hnp.from_dtype(np.dtype(dtype), allow_subnormal=False)
    return hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_side=4), elements=elements)


@given(
    st.dictionaries(
        st.text("abc_/0", min_size=1, max_size=6),
        st.sampled_from([np.int64, np.float32, np.bool_]).flatmap(some_arrays),
        max_size=4,
    )
)
def test_arrays_survive_the_file(arrays: dict[str, np.ndarray]) -> None:
    data = arrays_to_bytes(arrays)
    back = arrays_from_bytes(data, where="here")
    assert set(back) == set(arrays)
    assert all(np.array_equal(back[n], a, equal_nan=a.dtype.kind == "f") for n, a in arrays.items())
    assert all(back[n].dtype == a.dtype and back[n].shape == a.shape for n, a in arrays.items())
    assert arrays_to_bytes(dict(reversed(arrays.items()))) == data


def test_numpy_itself_opens_the_file() -> None:
    with np.load(io.BytesIO(arrays_to_bytes({"y": WANT})), allow_pickle=False) as loaded:
        assert np.array_equal(loaded["y"], WANT)


def npz(compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def npy(array: np.ndarray, **header: object) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version=(1, 0), allow_pickle=True)
    data = buffer.getvalue()
    for old, new in header.items():
        data = data.replace(old.encode(), str(new).encode())
    return data


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a zip"),
        (b"PK\x03\x04", "not a zip"),
        (npz(y=b""), "damaged"),
        (npz(y=b"\x93NUMPY\x03\x00"), "another npy version"),
        (npz(y=npy(np.array([{}], dtype=object))), "doesn't fit"),
        (npz(y=npy(np.array(["text"]))), "doesn't fit"),
        (npz(y=npy(np.zeros(8))[:-1]), "doesn't fit"),
        (npz(y=npy(np.zeros(8)).replace(b"(8,)", b"(9,)")), "doesn't fit"),
        (npz(y=npy(np.zeros(8)).replace(b"(8,), }    ", b"(99999999,)}")), "damaged"),
        (npz(y=npy(np.zeros(8)).replace(b"(8,)", b"(-8)")), "damaged"),
        (npz(zipfile.ZIP_DEFLATED, y=npy(np.zeros(100_000))), "compressed"),
        (npz(**{f"y{i}": npy(np.zeros(1)) for i in range(300)}), "too many"),
    ],
)
def test_bytes_that_are_no_arrays(data: bytes, says: str) -> None:
    with pytest.raises(BundleError, match=says):
        arrays_from_bytes(data, where="here")
