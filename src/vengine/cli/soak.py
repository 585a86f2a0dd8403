"""`vengine soak BUNDLE|SOURCE`: does memory grow, and with what?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from vengine.cli import output, params

_CODES = {"pass": 0, "fail": 3, "undecided": 4}


@click.command("soak", short_help="Run for a while and say whether memory grows.")
@click.argument("target", metavar="BUNDLE|SOURCE")
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=5.0, show_default=True)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Texts whose lengths are run.  [default: 4 to 256 tokens]"
)
@click.option(
    "--limit", type=params.Size(), help="Memory that the process may hold, after a million more requests too."
)
@click.option(
    "--per-thousand",
    type=params.Size(),
    default="64K",
    show_default=True,
    help="What a thousand requests of known shapes may leave behind.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed asks the same.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write all of it as one HTML page.")
@click.option(
    "--valgrind", type=click.Choice(["massif", "memcheck"]), help="Run it under this tool of valgrind's instead."
)
@params.threads
@params.as_json
def command(
    target: str,
    minutes: float,
    data: Path | None,
    limit: int | None,
    per_thousand: int,
    seed: int,
    page: Path | None,
    valgrind: str | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Ask for answers of many shapes for some minutes, and test the memory of the process for a trend.

    Exit code 0: nothing grows beyond what is allowed; 3: something does; 4: it must run longer to say.
    """
    if valgrind is not None:
        from vengine.api.tools import run_tool, valgrind_line

        run_tool(valgrind_line(target, valgrind, seed=seed, threads=threads))
        return 0
    from vengine.api.soak import soak
    from vengine.report.soak_view import print_soak

    result = soak(
        target,
        minutes=minutes,
        data=data,
        threads=threads,
        limit=limit,
        per_thousand=per_thousand,
        seed=seed,
        page=page,
    )
    print_soak(result, output.console(as_json))
    if as_json:
        output.json_line(result)
    return exit_code(result)


def exit_code(result: Mapping[str, Any]) -> int:
    """0, 3 or 4, as the help says."""
    return _CODES[result["outcome"]]
