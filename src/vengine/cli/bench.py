"""`vengine bench A [B …]`: an interleaved race of sources and bundles."""

from __future__ import annotations

from pathlib import Path

import click

from vengine.cli import output, params


@click.command("bench", short_help="Race sources and bundles, interleaved.")
@click.argument("targets", nargs=-1, required=True, metavar="A [B]...")
@click.option(
    "--shape",
    "shapes",
    type=params.Shape(),
    multiple=True,
    help="A call of batch x length tokens, as 8x256; repeat for more.",
)
@click.option(
    "--lengths",
    type=click.Path(path_type=Path),
    help="Lengths of your traffic in tokens: one a line, or 'length,count' lines.",
)
@params.as_json
def command(targets: tuple[str, ...], shapes: tuple[tuple[int, int], ...], lengths: Path | None, as_json: bool) -> int:
    """Race A, B, … in one run: equal threads, interleaved rounds, ratios to A with intervals.

    Each is a source (as for `vengine optimize`) or a bundle. Without --shape: 1x16, 1x128, 8x128.
    """
    from vengine.api.bench import bench
    from vengine.cli import show

    result = bench(list(targets), list(dict.fromkeys(shapes)), lengths)
    show.bench(result, output.console(as_json))
    if as_json:
        output.json_line(result)
    return 0
