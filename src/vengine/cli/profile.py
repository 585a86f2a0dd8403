"""`vengine profile BUNDLE|SOURCE`: where the time of a call goes."""

from __future__ import annotations

from pathlib import Path

import click

from vengine.cli import output, params


@click.command("profile", short_help="Show where the time of a call goes.")
@click.argument("target", metavar="BUNDLE|SOURCE")
@click.option(
    "--shape",
    type=params.Shape(),
    default="8x128",
    show_default=True,
    help="The call: batch x length tokens, as 8x256; a model without a length takes the batch.",
)
@click.option(
    "--variant", help="Of a bundle, this one: the start of its digest, or 'ENGINE PRECISION'.  [default: by its plan]"
)
@click.option(
    "--trace", type=click.Path(path_type=Path), help="Write the median call for ui.perfetto.dev or chrome://tracing."
)
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write all of it as one HTML page.")
@click.option(
    "--tensorboard", type=click.Path(path_type=Path), help="Add an event file to this folder of TensorBoard's."
)
@click.option("--nsys", "tool", flag_value="nsys", help="Run the calls under NVIDIA's Nsight Systems instead.")
@click.option("--vtune", "tool", flag_value="vtune", help="Run the calls under Intel's VTune instead.")
@params.threads
@params.as_json
def command(
    target: str,
    shape: tuple[int, int],
    variant: str | None,
    trace: Path | None,
    page: Path | None,
    tensorboard: Path | None,
    tool: str | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Show what each node of a call takes, and how near its products are to what this machine can do.

    A bundle is profiled as it answers such a call here; a source as its author meant it to run.
    """
    if tool is not None:
        from vengine.api.tools import nsys_line, run_tool, vtune_line

        line = nsys_line if tool == "nsys" else vtune_line
        run_tool(line(target, shape, threads=threads))
        return 0
    from vengine.api.profile import profile
    from vengine.report.node_view import print_profile

    result = profile(target, shape, variant=variant, threads=threads, trace=trace, page=page, tensorboard=tensorboard)
    print_profile(result, output.console(as_json))
    if as_json:
        output.json_line(result)
    return 0
