"""What a matrix product computes and moves, and what counts as one: tables with rows that must not match."""

from __future__ import annotations

import pytest

from vengine.engines import products
from vengine.engines.onnxruntime_trace import work_of
from vengine.engines.products import Work


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("MatMul", "products"),
        ("FusedMatMul", "products"),
        ("MatMulNBits", "products"),
        ("DynamicQuantizeMatMul", "products"),
        ("FullyConnected", "products"),
        ("ScaledDotProductAttention", "products"),
        ("QAttention", "products"),
        ("Conv", "products"),
        ("Convolution", "products"),
        ("aten::addmm", "products"),
        ("aten::mm", "products"),
        ("aten::linear", "products"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "products"),
        ("Convert", "moves"),
        ("ConstantOfShape", "moves"),
        ("QuantizeLinear", "moves"),
        ("Transpose", "moves"),
        ("Reorder", "moves"),
        ("Gather", "moves"),
        ("aten::copy_", "moves"),
        ("aten::_to_copy", "moves"),
        ("aten::_unsafe_view", "moves"),
        ("aten::t", "moves"),
        ("aten::select", "moves"),
        ("Select", "rest"),  # a choice number by number, and not torch's view
        ("QLinearAdd", "rest"),
        ("QLinearSoftmax", "rest"),
        ("aten::upsample_bilinear2d", "rest"),
        ("LayerNormalization", "rest"),
        ("MVN", "rest"),
        ("aten::add_", "rest"),
        ("aten::comm", "rest"),
        ("", "rest"),
    ],
)
def test_what_counts_as_what(kind: str, share: str) -> None:
    assert products.share_of(kind) == share


@pytest.mark.parametrize(
    ("left", "right", "result", "flops", "elements"),
    [
        ((3, 5), (5, 7), (3, 7), 2 * 3 * 5 * 7, 15 + 35 + 21),
        ((2, 3, 5), (5, 7), (2, 3, 7), 2 * 2 * 3 * 5 * 7, 30 + 35 + 42),
        ((2, 4, 3, 5), (2, 4, 5, 7), (2, 4, 3, 7), 2 * 8 * 3 * 5 * 7, 8 * (15 + 35 + 21)),
        ((5, 3), (5, 7), (3, 7), 2 * 3 * 5 * 7, 15 + 35 + 21),  # left transposed
        ((3, 5), (7, 5), (3, 7), 2 * 3 * 5 * 7, 15 + 35 + 21),  # right transposed
        ((4, 4), (4, 4), (4, 4), 2 * 4**3, 48),
        ((3, 5), (6, 7), (3, 7), None, None),
        ((3, 5), (5, 8), (3, 7), None, None),
        ((5,), (5, 7), (7,), None, None),
        ((3, 5), (1, 7), (3, 7), None, None),  # a bias of two axes is no operand
    ],
)
def test_a_product_is_counted_where_its_shapes_fit(
    left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...], flops: float | None, elements: float | None
) -> None:
    found = products.matmul(left, right, result)
    assert found == (None if flops is None or elements is None else Work(flops=flops, elements=elements))


def test_attention_is_two_products_and_its_weights_are_never_written() -> None:
    # Q·Kᵀ: 2·3 heads·(4 by 5)·8; P·V: the same with values of 6.
    found = products.attention((2, 3, 4, 8), (2, 3, 5, 8), (2, 3, 5, 6))
    assert found == Work(flops=2 * 6 * 4 * 5 * (8 + 6), elements=6 * (4 * 8 + 5 * 8 + 5 * 6 + 4 * 6))
    flat = products.attention((2, 4, 24), (2, 5, 24), (2, 5, 24))
    assert flat is not None
    assert flat.flops == 2 * 2 * 4 * 5 * 48
    assert products.attention((2, 4, 24), (2, 5, 12), (2, 5, 24)) is None
    assert products.attention((2, 4, 24), (2, 5, 24), (2, 6, 24)) is None


def test_a_convolution() -> None:
    assert products.convolution((1, 3, 8, 8), (4, 3, 3, 3), (1, 4, 6, 6)) == Work(
        flops=2 * 4 * 36 * 27, elements=192 + 108 + 144
    )
    assert products.convolution((1, 3, 8, 8), (5, 3, 3, 3), (1, 4, 6, 6)) is None


def test_one_unknown_part_makes_the_whole_unknown() -> None:
    one = Work(flops=1, elements=2)
    assert products.together([one, one]) == Work(flops=2, elements=4)
    assert products.together([one, None]) is None
    assert products.together([]) is None


@pytest.mark.parametrize(
    ("kind", "operands", "result", "flops"),
    [
        ("MatMul", [(2, 3, 5), (5, 7)], (2, 3, 7), 2 * 6 * 5 * 7),
        ("MatMul", [(2, 3, 5)], (2, 3, 7), 2 * 6 * 5 * 7),  # the runtime packed the weights and doesn't list them
        ("DynamicQuantizeMatMul", [(2, 3, 5)], (2, 3, 7), 2 * 6 * 5 * 7),
        ("Gemm", [(3, 5), (7, 5), (1, 7)], (3, 7), 2 * 3 * 5 * 7),
        ("Gemm", [(3, 5), (1, 7)], (3, 7), None),
        ("MatMul", [(9, 5)], (2, 3, 7), None),
        ("MatMulNBits", [(3, 5)], (3, 7), None),
        ("Conv", [(1, 3, 8, 8)], (1, 4, 6, 6), None),
        ("Attention", [(2, 4, 24), (24, 72)], (2, 4, 24), None),  # the older operator, with projections of its own
        ("Add", [(3, 5), (3, 5)], (3, 5), None),
        ("MatMul", [], (3, 7), None),
    ],
)
def test_onnx_operators(
    kind: str, operands: list[tuple[int, ...]], result: tuple[int, ...], flops: float | None
) -> None:
    found = work_of(kind, operands, result)
    assert (found.flops if found else None) == flops
