"""torch's profiler, read into recordings: one node an operator, with its own time and the module that called it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vengine.engines import products
from vengine.engines.products import Shape, Work
from vengine.engines.recording import Node, Recording, shape_of

_CALL = "vengine: call"
_MODULE = "vengine: module "
_OPERATOR = "aten::"
# The places of the two operands among an operator's inputs.
_OPERANDS = {"aten::addmm": (1, 2), "aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::baddbmm": (1, 2)}
_ATTENTION = ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_attention_math")


def watched(torch: Any, module: Any, calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """Run the calls under the profiler, one range each, and return its events."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with (
        _named_modules(torch, module),
        torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True) as profiler,
    ):
        for call in calls:
            with torch.profiler.record_function(_CALL):
                call()
    return list(profiler.events())


@contextmanager
def _named_modules(torch: Any, module: Any) -> Iterator[None]:
    """Let every submodule's call be a range with its name; the hooks go when the block ends."""
    handles: list[Any] = []
    open_ranges: list[Any] = []

    def before(name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            entered = torch.profiler.record_function(_MODULE + name)
            entered.__enter__()
            open_ranges.append(entered)

        return enter

    def after(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    try:
        for name, part in module.named_modules():
            if name:
                handles.append(part.register_forward_pre_hook(before(name)))
                handles.append(part.register_forward_hook(after))
        yield
    finally:
        for handle in handles:
            handle.remove()


def read_events(events: Sequence[Any]) -> list[Recording]:
    """The calls' recordings; time that Python spends between operators belongs to no node."""
    calls = sorted((event for event in events if event.name == _CALL), key=lambda event: event.time_range.start)
    operators = [event for event in events if event.name.startswith(_OPERATOR)]
    return [_recording(call, operators) for call in calls]


def _recording(call: Any, operators: Sequence[Any]) -> Recording:
    start, end = call.time_range.start, call.time_range.end
    inside = [e for e in operators if e.thread == call.thread and start <= e.time_range.start < end]
    nodes = sorted((_node(event, start) for event in inside), key=lambda node: (node.start_ms, -node.span_ms))
    # By the profiler's own clock, in which the nodes' times are told too.
    return Recording(wall_ms=(end - start) / 1000, nodes=tuple(nodes), timeline=True)


def _node(event: Any, start: float) -> Node:
    shapes = [shape_of(shape) for shape in event.input_shapes or ()]
    work, output = _work(event.name, shapes)
    place = _module_of(event)
    return Node(
        name=f"{place}: {event.name.removeprefix(_OPERATOR)}" if place else event.name.removeprefix(_OPERATOR),
        kind=event.name,
        share=products.share_of(event.name),
        start_ms=(event.time_range.start - start) / 1000,
        span_ms=(event.time_range.end - event.time_range.start) / 1000,
        ms=event.self_cpu_time_total / 1000,
        precision="fp32" if work else "",
        output=output,
        flops=work.flops if work else None,
        moved_bytes=4 * work.elements if work else None,
    )


def _module_of(event: Any) -> str:
    around = event.cpu_parent
    while around is not None:
        if around.name.startswith(_MODULE):
            return str(around.name.removeprefix(_MODULE))
        around = around.cpu_parent
    return ""


def _work(kind: str, shapes: Sequence[Shape | None]) -> tuple[Work | None, Shape | None]:
    """What an operator computes and its result's shape, from the shapes of its inputs; wrappers compute nothing."""
    if kind in _OPERANDS:
        left, right = (shapes[place] if place < len(shapes) else None for place in _OPERANDS[kind])
        if left and right and len(left) > 1 and len(right) > 1:
            result = (*left[:-1], right[-1])
            return products.matmul(left, right, result), result
    if kind in _ATTENTION and len(shapes) > 2 and shapes[0] and shapes[1] and shapes[2]:
        query, key, value = shapes[0], shapes[1], shapes[2]
        return products.attention(query, key, value), (*query[:-1], value[-1])
    return None, None
