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
@click.option("--time", "seconds", type=params.Duration(), default=60.0, help="For the race: 30s, 2m.  [default: 1m]")
@params.threads
@params.as_json
def command(
    targets: tuple[str, ...],
    shapes: tuple[tuple[int, int], ...],
    lengths: Path | None,
    seconds: float,
    threads: int | None,
    as_json: bool,
) -> int:
    """Race A, B, … in one run: interleaved rounds, ratios to A with intervals.

    Each is a source (as for `vengine optimize`) or a bundle. Without --shape: 1x16, 1x128, 8x128.
    """
    from vengine.api.bench import bench
    from vengine.cli import show

    result = bench(targets, tuple(dict.fromkeys(shapes)), lengths, threads=threads, seconds=seconds)
    show.bench(result, output.console(as_json))
    if as_json:
        output.json_line(result)
    return 0
