"""`vengine view BUNDLE|SOURCE|FILE`: the graph in the browser."""

from __future__ import annotations

import click

from vengine.cli import output, params


@click.command("view", short_help="Show a graph in the browser, as it was and as it runs.")
@click.argument("target", metavar="BUNDLE|SOURCE|FILE")
@click.option("--variant", help="Of a bundle, the one on the right: the start of its digest, or 'ENGINE PRECISION'.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the page on this machine.  [default: free]")
@click.option("--no-browser", is_flag=True, help="Only tell the address.")
@params.as_json
def command(target: str, variant: str | None, port: int, no_browser: bool, as_json: bool) -> int:
    """Draw the original and the optimised graph side by side with Netron, on this machine alone.

    Needs the package netron: pip install 'vengine[view]'. Nothing is fetched from or sent to anywhere else.
    """
    from vengine.api.view import view

    console = output.console(as_json)

    def tell(address: str) -> None:
        console.print(address, markup=False, soft_wrap=True)

    result = view(target, variant=variant, port=port, browser=not no_browser, tell=tell)
    if as_json:
        output.json_line(result)
    return 0
