"""What stopped a fusion: the partial match that came furthest, with its node and the reason it ended.

The rewriter of onnxscript traces its matching; a pass asks it again, on the graph that is left, and hands the answer
on as its refusals. "Silently fused nothing" is thus no possible outcome.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir

_MOST = 3


def near_misses(model: ir.Model, rules: Any, roots: Collection[str]) -> tuple[tuple[str, str], ...]:
    """(node, reason) of the furthest partial matches that end in an operator of `roots`; three at most.

    Args:
        rules: a RewriteRuleSet of onnxscript. The graph is not changed, but for nodes that nobody reads.
        roots: operators that only what should be fused has; without them each Add would be a near miss.
    """
    from onnxscript.rewriter import MatchingTracer, MatchStatus

    tracer = MatchingTracer()
    rules.apply_to_model(model, tracer=tracer)
    found: dict[str, tuple[int, str]] = {}
    for matches in tracer.best_matches_map.values():
        for match in matches:
            if match.status == MatchStatus.SUCCESS or not _has(match, roots):
                continue
            node = match.root_node.name or match.root_node.op_type
            reason = _plain(match.match_result.reason) or "the pattern ends here"
            if match.score() > found.get(node, (0, ""))[0]:
                found[node] = (match.score(), reason)
    return tuple((node, reason) for node, (_, reason) in list(found.items())[:_MOST])


def _has(match: Any, roots: Collection[str]) -> bool:
    nodes = (match.root_node, *match.match_result.nodes)
    return any(node.op_type in roots for node in nodes)


def _plain(reason: str | None) -> str:
    """The first line of a reason, without the rewriter's own marks."""
    lines = (reason or "").strip().splitlines()
    if lines and lines[0].startswith("None of the alternatives"):
        return "what stands in front of it has another form"
    return re.sub(r'%"([^"]+)"<[^\[>]*,?(\[[^\]]*\])?[^>]*>', r"\1 \2", lines[0])[:200] if lines else ""
