"""How much a matrix product computes and moves, from the shapes of its operands. Pure arithmetic.

A product of [m, k] by [k, n] is 2·m·k·n operations: a multiplication and an addition each. What it moves at least is
both operands and the result, once. An operator whose shapes aren't all known has no count, rather than a guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

Shape = tuple[int, ...]
Share = Literal["products", "moves", "rest"]

_PRODUCTS = (
    *("matmul", "gemm", "fullyconnected", "einsum", "addmm", "bmm", "convolution", "deconvolution"),
    *("attention", "qkvprojection", "llmmlp"),
)
# Parts of other names: QLinearAdd is no product, and Convert no convolution.
_WHOLE_PRODUCTS = frozenset({"mm", "linear", "conv", "fusedconv", "qlinearconv", "convinteger", "convtranspose", "mha"})
_MOVES = frozenset(
    {
        *("transpose", "permute", "reshape", "view", "unsafeview", "squeeze", "unsqueeze", "flatten", "identity"),
        *("concat", "concatfromsequence", "cat", "stack", "split", "variadicsplit", "slice", "stridedslice", "chunk"),
        *("gather", "gathernd", "gatherelements", "embedding", "indexselect", "narrow", "unbind"),
        *("expand", "broadcast", "tile", "repeat", "pad", "copy", "clone", "contiguous", "asstrided", "alias"),
        *("cast", "convert", "tocopy", "reorder", "quantizelinear", "dequantizelinear", "dynamicquantizelinear"),
        *("fakequantize", "memcpyfromhost", "memcpytohost", "input", "output", "parameter", "result", "constant"),
        *("shape", "shapeof", "size", "constantofshape", "empty", "emptylike", "emptystrided", "zeros", "zero", "fill"),
        *("spacetodepth", "depthtospace", "scatter", "scatternd", "scatterndupdate", "resolveconj", "detach", "lift"),
        *("reshapealias", "reorderinput", "reorderoutput", "dequantize", "quantize", "scatterupdate", "convertlike"),
    }
)


_TORCH = "aten::"
_TORCH_MOVES = frozenset({"select", "index", "to", "t"})  # elsewhere the same words mean other things


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a node's matrix products compute, and what they have to read and write."""

    flops: float
    elements: float  # of both operands and the result


def share_of(kind: str) -> Share:
    """Which of the three shares an operator belongs to, by the name that its engine gives it.

    Attention that an engine runs as one operator counts as a product. Casts and (de)quantisation count as moves: they
    touch each number once.
    """
    bare = kind.lower().removeprefix(_TORCH).strip("_").replace("_", "")
    if bare in _MOVES or (kind.startswith(_TORCH) and bare in _TORCH_MOVES):
        return "moves"
    if bare in _WHOLE_PRODUCTS or any(word in bare for word in _PRODUCTS):
        return "products"
    return "rest"


def matmul(left: Shape, right: Shape, result: Shape) -> Work | None:
    """A product with leading axes, either operand transposed or not; None when the shapes don't fit each other."""
    if len(left) < 2 or len(right) < 2 or len(result) < 2:
        return None
    rows, columns = result[-2], result[-1]
    inner = _inner(left[-2:], rows)
    if inner is None or inner != _inner(right[-2:], columns):
        return None
    return Work(flops=2.0 * prod(result) * inner, elements=float(prod(left) + prod(right) + prod(result)))


def by_matrix(left: Shape, result: Shape) -> Work | None:
    """Rows by a constant matrix that the engine keeps in its own layout and doesn't list: [k, n] by the other two."""
    if len(left) < 2 or left[:-1] != result[:-1]:
        return None
    inner, columns = left[-1], result[-1]
    return Work(flops=2.0 * prod(result) * inner, elements=float(prod(left) + inner * columns + prod(result)))


def convolution(data: Shape, kernel: Shape, result: Shape) -> Work | None:
    """Kernel [outputs, inputs ÷ groups, …] as ONNX and torch have it."""
    if len(data) < 3 or len(kernel) != len(data) or len(result) != len(data) or kernel[0] != result[1]:
        return None
    elements = float(prod(data) + prod(kernel) + prod(result))
    return Work(flops=2.0 * prod(result) * prod(kernel[1:]), elements=elements)


def attention(query: Shape, key: Shape, value: Shape) -> Work | None:
    """Q·Kᵀ and P·V of [batch, heads, length, size], or [batch, length, heads × size] with as many heads for all three.

    What lies between the two products is never written, so it isn't counted as moved.
    """
    if not (len(query) == len(key) == len(value) and len(query) in (3, 4)):
        return None
    if key[-1] != query[-1] or key[-2] != value[-2]:
        return None
    rows = prod(query[:-1])
    flops = 2.0 * rows * key[-2] * (query[-1] + value[-1])
    return Work(flops=flops, elements=float(prod(query) + prod(key) + prod(value) + rows * value[-1]))


def together(works: Sequence[Work | None]) -> Work | None:
    """Several products of one node; None when one of them is unknown, or there is none."""
    known = [work for work in works if work is not None]
    if not known or len(known) != len(works):
        return None
    return Work(flops=sum(w.flops for w in known), elements=sum(w.elements for w in known))


def _inner(matrix: Shape, outer: int) -> int | None:
    """The axis of a matrix that is summed over: the one that isn't `outer`."""
    first, second = matrix
    if outer not in matrix:
        return None
    return second if first == outer else first
