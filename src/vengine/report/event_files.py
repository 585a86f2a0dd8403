"""A profile as TensorBoard event files: what each watched call took, by share and by node, and the tables as text.

TensorBoard's scalars show one point a watched call, so that a node whose time jumps is seen; its text tab has the
tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vengine.errors import EngineMissing
from vengine.report.node_view import SHARES, told
from vengine.report.wording import clean, milliseconds, percent

if TYPE_CHECKING:
    from vengine.engines.recording import Recording

_NODES = 20  # that get a curve of their own
Profile = Mapping[str, Any]
Scalars = dict[str, float]


def require_tensorboard() -> None:
    """Raise EngineMissing unless its writer can be imported; it isn't imported here."""
    if util.find_spec("tensorboard") is None:
        raise EngineMissing(
            "tensorboard is not installed, which writes event files", next_step="pip install 'vengine[tensorboard]'"
        )


def scalars(result: Profile, recordings: Sequence[Recording]) -> list[Scalars]:
    """One call after the other: name of a curve → milliseconds."""
    shown = {node["name"]: f"node/{_tag(node['name'])}" for node in result["nodes"][:_NODES]}
    found = []
    for recording in recordings:
        row = {"call/ms": recording.wall_ms}
        row |= {f"share/{_tag(SHARES[name])} ms": 0.0 for name in SHARES if name != "gap"}
        for node in recording.nodes:
            row[f"share/{_tag(SHARES[node.share])} ms"] += node.ms
            if node.name in shown:
                row[shown[node.name]] = row.get(shown[node.name], 0.0) + node.ms
        found.append(row)
    return found


def texts(result: Profile) -> dict[str, str]:
    """Name → Markdown: what ran, and the tables of operators and nodes."""
    facts = [f"- {name}: {_cell(value)}" for name, value in told(result) if value]
    kinds = [("operator", "nodes", "time", "share")] + [
        (f"{k['name']} {k['precision']}", f"{k['nodes']:,}", milliseconds(k["ms"]), percent(k["part"]))
        for k in result["kinds"]
    ]
    nodes = [("node", "operator", "time", "share", "of best")] + [
        (n["name"], n["kind"], milliseconds(n["ms"]), percent(n["part"]), percent(n["of_roof"]))
        for n in result["nodes"]
    ]
    return {"call": "\n".join(facts), "operators": _table(kinds), "nodes": _table(nodes)}


def write_events(folder: Path, result: Profile, recordings: Sequence[Recording]) -> Path:
    """Add one event file to a folder, which is made where it is missing; nothing there is replaced.

    Returns:
        The file.

    Raises:
        EngineMissing: tensorboard isn't installed.
    """
    require_tensorboard()
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.iterdir())
    writer = EventFileWriter(str(folder))
    for step, row in enumerate(scalars(result, recordings)):
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in row.items()]
        writer.add_event(Event(step=step, summary=Summary(value=values)))
    words = [_text(name, markdown) for name, markdown in texts(result).items()]
    writer.add_event(Event(step=0, summary=Summary(value=words)))
    writer.close()
    (made,) = set(folder.iterdir()) - before
    return made


def _text(name: str, markdown: str) -> Any:
    """A value of TensorBoard's text plugin."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    plugin = SummaryMetadata.PluginData(plugin_name="text")
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype=DT_STRING, string_val=[markdown.encode()], tensor_shape=shape)
    return Summary.Value(tag=name, metadata=SummaryMetadata(plugin_data=plugin), tensor=tensor)


def _tag(name: str) -> str:
    """A curve's name: slashes would make groups of it."""
    return clean(name, 100).replace("/", ".")


def _cell(value: str) -> str:
    """Somebody else's text inside Markdown: no markup of its own."""
    marked = clean(value, 120)
    for mark in "\\`*_[]<>|":
        marked = marked.replace(mark, "\\" + mark)
    return marked


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
