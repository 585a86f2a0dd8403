"""`vengine inspect SOURCE`: what was understood of a model."""

from __future__ import annotations

import typing

import click

from vengine.cli import output, params
from vengine.types import Task


@click.command("inspect", short_help="Show what Vengine understands of a model.")
@click.argument("source")
@click.option(
    "--task",
    type=click.Choice(typing.get_args(Task)),
    default=None,
    help="What the model does.  [default: from its config]",
)
@params.as_json
def command(source: str, task: Task | None, as_json: bool) -> int:
    """Show what Vengine understands of SOURCE: task, inputs, outputs, licence, digest. Nothing in it is executed."""
    from vengine.api.inspect import inspect
    from vengine.cli import show

    found = inspect(source, task=task)
    show.source(found, output.console(as_json))
    if as_json:
        output.json_line(found)
    return 0
