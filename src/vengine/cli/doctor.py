"""`vengine doctor`: this machine, and which engines it has."""

from __future__ import annotations

import click

from vengine.cli import output, params


@click.command("doctor", short_help="Show this machine and its engines.")
@params.as_json
def command(as_json: bool) -> int:
    """Show this machine: instruction sets, cores allowed, memory, engines available, and why another is not."""
    from vengine.api.doctor import doctor
    from vengine.cli import show

    result = doctor()
    show.doctor(result, output.console(as_json))
    if as_json:
        output.json_line(result)
    return 0
