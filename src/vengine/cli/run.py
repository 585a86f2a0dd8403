"""`vengine run BUNDLE --text …`: answers from a bundle."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from vengine.cli import output, params
from vengine.errors import DataError, UsageError

_LINE_LIMIT = 100_000  # characters; the same bound as for a sample of --data


@click.command("run", short_help="Run texts or tensors through a bundle.")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--text", "texts", multiple=True, help="A text; repeat for more. - reads standard input, one text a line."
)
@click.option(
    "--pair",
    "pairs",
    multiple=True,
    help="The second text of a pair, as often as --text. - with '--text -': a tab parts the two.",
)
@click.option(
    "--tensors",
    type=click.Path(path_type=Path),
    help="An .npz file with one array an input, for models without a tokenizer.",
)
@click.option("--variant", help="Ask only this one: the start of its digest, or 'ENGINE PRECISION'.")
@params.threads
@params.as_json
def command(
    bundle: Path,
    texts: tuple[str, ...],
    pairs: tuple[str, ...],
    tensors: Path | None,
    variant: str | None,
    threads: int | None,
    as_json: bool,
) -> int:
    """Run texts or tensors through BUNDLE and show the answers."""
    if bool(texts) == (tensors is not None):
        raise UsageError(
            "give --text (one or more) or --tensors FILE", where="vengine run", next_step="vengine run --help"
        )
    asked = _read_texts(texts, pairs)  # first: what is wrong with it shows before anything is loaded

    from vengine.api.run import run
    from vengine.cli import show

    result = run(bundle, asked, tensors=tensors, variant=variant, threads=threads)
    show.answers(result, output.console(as_json))
    if as_json:
        output.json_line(result)
    return 0


def _read_texts(texts: tuple[str, ...], pairs: tuple[str, ...]) -> list[str | tuple[str, str]]:
    if "-" in texts:
        if len(texts) > 1 or pairs not in ((), ("-",)):
            raise UsageError(
                "'--text -' reads all texts from standard input", next_step="leave the other --text and --pair out"
            )
        return _read_lines(with_pairs=bool(pairs))
    if pairs and len(pairs) != len(texts):
        raise UsageError(
            f"{len(texts)} times --text but {len(pairs)} times --pair", next_step="give one --pair for each --text"
        )
    for number, text in enumerate(texts + pairs, start=1):
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise DataError(
                "a text is not valid UTF-8", where=f"argument {number}", next_step="check the terminal's encoding"
            )
    if pairs:
        return [(text, pair) for text, pair in zip(texts, pairs, strict=True)]
    return list(texts)


def _read_lines(*, with_pairs: bool) -> list[str | tuple[str, str]]:
    lines: list[str | tuple[str, str]] = []
    stream = () if sys.stdin is None else sys.stdin.buffer  # None: started with standard input closed
    for number, raw in enumerate(stream, start=1):
        where = f"standard input, line {number}"
        try:
            line = raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise DataError("not valid UTF-8", where=where, next_step="convert it: iconv -t utf-8") from error
        if len(line) > _LINE_LIMIT:
            raise DataError(
                f"a text of {len(line):,} characters; at most {_LINE_LIMIT:,}", where=where, next_step="cut it"
            )
        if not line.strip():
            continue
        if with_pairs:
            first, tab, second = line.partition("\t")
            if not tab:
                raise DataError("no tab between the two texts of a pair", where=where, next_step="write TEXT<tab>PAIR")
            lines.append((first, second))
        else:
            lines.append(line)
    if not lines:
        raise DataError("no text on standard input", next_step="write one text a line")
    return lines
