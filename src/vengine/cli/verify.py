"""`vengine verify BUNDLE`: digests, golden answers and brief timings on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from vengine.cli import output, params


@click.command("verify", short_help="Re-check a bundle on this machine.")
@click.argument("bundle", type=click.Path(path_type=Path))
@params.threads
@params.as_json
def command(bundle: Path, threads: int | None, as_json: bool) -> int:
    """Re-check BUNDLE here: every byte's digest, the golden answers, and each variant that this CPU may run."""
    from vengine.api.verify import verify
    from vengine.cli import show

    result = verify(bundle, threads=threads)
    show.verification(result, output.console(as_json))
    if as_json:
        output.json_line(result)
    return 0 if result["ok"] else 3
