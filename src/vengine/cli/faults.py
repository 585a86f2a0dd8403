"""From exception to exit code and message: one table, nothing swallowed, no traceback for the user's mistakes."""

from __future__ import annotations

import errno
import os
import select
import sys
from dataclasses import dataclass

import click

from vengine.cli import output
from vengine.errors import VengineError

OK, USAGE, BUG, INTERRUPTED, BROKEN_PIPE, TERMINATED = 0, 2, 70, 130, 141, 143


class Terminated(BaseException):
    """SIGTERM arrived. Not an `Exception`, so that no handler in a library eats it."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What the user is told: what, where, the next step; and the exit code."""

    kind: str
    what: str
    exit_code: int
    where: str = ""
    next_step: str = ""
    quiet: bool = False  # nothing to say: help was shown, or nobody listens any more


# errno → (what, next step). Everything here is the machine's or the user's, not a fault of Vengine.
_OS_FAULTS = {
    errno.ENOSPC: (
        "the disk is full",
        "free some space, or choose another place with --out; nothing that existed was touched",
    ),
    errno.EDQUOT: ("the disk quota is used up", "free some space, or choose another place with --out"),
    errno.EACCES: ("no permission", "check who owns it, or choose another place"),
    errno.EPERM: ("the operation isn't permitted", "check who owns it, or choose another place"),
    errno.EROFS: ("the file system is read-only", "choose another place with --out"),
    errno.ENOENT: ("no such file or directory", "check the path"),
    errno.EISDIR: ("this is a directory, not a file", "check the path"),
    errno.ENOTDIR: ("a part of the path is not a directory", "check the path"),
    errno.ENAMETOOLONG: ("the file name is too long", "choose a shorter one"),
    errno.EMFILE: ("too many open files", "raise the limit: ulimit -n 4096"),
    errno.ENOMEM: ("memory ran out", "use --memory-limit, a smaller model, or a larger machine"),
}

# What the base install doesn't have → the extra that brings it. Another package that is missing belongs to the base.
EXTRA_OF = {
    "huggingface_hub": "optimize",
    "netron": "view",
    "nncf": "optimize",
    "onnx": "optimize",
    "onnx_ir": "optimize",
    "onnxscript": "optimize",
    "openvino": "openvino",
    "PIL": "optimize",
    "safetensors": "optimize",
    "scipy": "optimize",
    "sklearn": "optimize",
    "tensorboard": "tensorboard",
    "torch": "optimize",
    "transformers": "optimize",
}


def explain(error: BaseException) -> Fault:
    """The fault behind an exception. Never raises."""
    if isinstance(error, VengineError):
        return _vengine_fault(error)
    if isinstance(error, click.exceptions.Exit):
        return Fault(kind="Exit", what="", exit_code=error.exit_code, quiet=True)
    if isinstance(error, SystemExit):
        return Fault(kind="Exit", what="", exit_code=error.code if isinstance(error.code, int) else BUG, quiet=True)
    if isinstance(error, click.ClickException):
        return _click_fault(error)
    if isinstance(error, (KeyboardInterrupt, click.exceptions.Abort)):
        return Fault(kind="Interrupted", what="stopped", exit_code=INTERRUPTED, next_step="the same command resumes")
    if isinstance(error, Terminated):
        return Fault(kind="Terminated", what="terminated", exit_code=TERMINATED, next_step="the same command resumes")
    if isinstance(error, MemoryError):
        what, step = _OS_FAULTS[errno.ENOMEM]
        return Fault(kind="LimitError", what=what, exit_code=USAGE, next_step=step)
    if isinstance(error, OSError):
        return _os_fault(error)
    if isinstance(error, ModuleNotFoundError) and _is_foreign(error.name or ""):
        return _missing((error.name or "").split(".")[0])
    return _bug(error)


def _is_foreign(module: str) -> bool:
    """Whether a module belongs to a package that can be installed, and is neither ours nor Python's."""
    return module.split(".")[0] not in ("", "vengine", *sys.stdlib_module_names)


def _missing(package: str) -> Fault:
    extra = EXTRA_OF.get(package)
    return Fault(
        kind="EngineMissing",
        what=f"{package} is not installed",
        exit_code=USAGE,
        next_step=f"pip install 'vengine[{extra}]'" if extra else "pip install --force-reinstall vengine",
    )


def _vengine_fault(error: VengineError) -> Fault:
    return Fault(
        kind=type(error).__name__,
        what=error.what,
        where=error.where,
        next_step=error.next_step,
        exit_code=error.exit_code,
    )


def _click_fault(error: click.ClickException) -> Fault:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return Fault(kind="UsageError", what="a verb is missing", exit_code=USAGE, quiet=True)
    path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "vengine"
    what = error.format_message().rstrip(".")
    return Fault(kind="UsageError", what=what, exit_code=USAGE, next_step=f"{path} --help")


def _os_fault(error: OSError) -> Fault:
    if isinstance(error, BrokenPipeError) and _stdout_is_gone():
        return Fault(kind="BrokenPipe", what="", exit_code=BROKEN_PIPE, quiet=True)
    if error.errno not in _OS_FAULTS and error.filename is None:
        return _bug(error)
    said = (error.strerror or type(error).__name__).lower()
    what, step = _OS_FAULTS.get(error.errno or 0, (f"the system refuses a file: {said}", "check the path and its disk"))
    kind = "LimitError" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE) else "UsageError"
    where = str(error.filename) if error.filename is not None else ""
    return Fault(kind=kind, what=what, where=where, next_step=step, exit_code=USAGE)


def _bug(error: BaseException) -> Fault:
    first = (str(error).strip().splitlines() or [""])[0][:300]
    return Fault(
        kind="Bug",
        what=f"a fault of Vengine, not yours: {type(error).__name__}{': ' + first if first else ''}",
        next_step="please report it with the output of the same command under VENGINE_DEBUG=1 and of `vengine doctor`",
        exit_code=BUG,
    )


def _stdout_is_gone() -> bool:
    """Whether the reader of our standard output has left (`vengine … | head`), and not some worker's pipe."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (OSError, ValueError):
        return True


def report(fault: Fault, *, as_json: bool) -> None:
    """Tell the user on standard error; with `as_json`, also one JSON line on standard output."""
    if fault.kind == "BrokenPipe":
        # The interpreter flushes standard output once more at its end; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    if fault.quiet:
        return
    where = f" ({fault.where})" if fault.where else ""
    step = f"\n  next step: {fault.next_step}" if fault.next_step else ""
    print(f"vengine: {fault.what}{where}{step}", file=sys.stderr, flush=True)
    if as_json:
        output.json_line(
            {
                "error": {"kind": fault.kind, "what": fault.what, "where": fault.where, "next_step": fault.next_step},
                "exit_code": fault.exit_code,
            }
        )
