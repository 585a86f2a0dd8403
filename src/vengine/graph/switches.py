"""Switches in a graph: one more input of booleans, so that one session answers for every choice that they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vengine.graph.known import add_initializer

if TYPE_CHECKING:
    import onnx_ir as ir

SWITCHES = "vengine_switches"
"""The input's name: bool [switches]."""


def add_switches(graph: ir.Graph, count: int) -> list[ir.Value]:
    """The graph gets an input `SWITCHES`; the result is each switch as a value of its own, a bool without axes."""
    import onnx_ir as ir

    switches = ir.Value(name=SWITCHES, shape=ir.Shape([count]), type=ir.TensorType(ir.DataType.BOOL))
    graph.inputs.append(switches)
    first = next(iter(graph))
    found = []
    for place in range(count):
        number = add_initializer(graph, f"{SWITCHES}_{place}_at", np.array(place, np.int64))
        pick = ir.node("Gather", [switches, number], name=f"{SWITCHES}_{place}")
        pick.outputs[0].name = pick.name
        graph.insert_before(first, pick)
        found.append(pick.outputs[0])
    return found
