"""Every error that Vengine raises on purpose, with its exit code and HTTP status.

    VengineError
    ├── UsageError              the call itself is wrong
    │   └── DataError           the user's samples or labels are wrong
    ├── SourceError             the model can't be read, or must not be
    │   └── ExportError         the model can't be turned into a graph that agrees with it
    ├── EngineError             an engine is missing, refuses the model or died
    │   ├── EngineMissing       the package is not installed; the message has the install line
    │   └── WorkerError         the process of a trial crashed, hung or ran out of memory
    ├── BundleError             a bundle is damaged, unsafe or from a newer format
    │   └── NoVariantForThisCpu no variant of the bundle may run on this machine
    ├── LimitError              memory, disk or time would be exceeded
    ├── PromiseBroken           the target was missed: the original is kept
    └── Undecided               more samples are needed for a verdict

A message says what went wrong, where, and the next step. `raise` is for the user's mistake;
`assert` is for ours.
"""

from __future__ import annotations

__all__ = [
    "BundleError",
    "DataError",
    "EngineError",
    "EngineMissing",
    "ExportError",
    "LimitError",
    "NoVariantForThisCpu",
    "PromiseBroken",
    "SourceError",
    "Undecided",
    "UsageError",
    "VengineError",
    "WorkerError",
]


class VengineError(Exception):
    """The root: catch this one to catch every fault that Vengine reports on purpose."""

    exit_code = 2
    http_status = 500
    usual_step = "run `vengine doctor` and compare what it shows with what the message names"

    def __init__(self, what: str, *, where: str = "", next_step: str = "") -> None:
        self.what, self.where, self.next_step = what, where, next_step or self.usual_step
        super().__init__(what)

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        step = f"\n  next step: {self.next_step}" if self.next_step else ""
        return f"{self.what}{where}{step}"


class UsageError(VengineError):
    """The call itself is wrong: an unknown option, a value out of range, a conflict."""

    http_status = 400
    usual_step = "correct the call; `vengine --help` and each verb's --help show what there is"


class DataError(UsageError):
    """The user's samples or labels can't be used as they are."""

    usual_step = "correct the data where the message points"


class SourceError(VengineError):
    """The model can't be read, or must not be read (pickles, code)."""

    http_status = 400
    usual_step = "fetch the model again; if it stays so, ask whoever published it, or give it as an .onnx file"


class ExportError(SourceError):
    """The model can't be turned into a graph that agrees with it."""

    usual_step = "export it to ONNX by its author's own means, and give the .onnx file"


class EngineError(VengineError):
    """An engine refuses the model or failed while it ran."""

    usual_step = "leave this engine out with --engines, or update it; `vengine doctor` shows the versions"


class EngineMissing(EngineError):
    """The engine's package is not installed."""

    usual_step = "`vengine doctor` shows how to install it"


class WorkerError(EngineError):
    """The process of a trial crashed, hung or ran out of memory."""

    usual_step = "give it more memory or time, or leave this engine out with --engines"


class BundleError(VengineError):
    """A bundle is damaged, unsafe, or written in a format that this version can't read."""

    http_status = 422
    usual_step = "build the bundle again with `vengine optimize`"


class NoVariantForThisCpu(BundleError):
    """No variant of the bundle may run on this machine's CPU."""


class LimitError(VengineError):
    """A limit on memory, disk or size would be exceeded."""

    http_status = 507
    usual_step = "free some memory or disk, or take a smaller model"


class PromiseBroken(VengineError):
    """The target was missed; the original is kept."""

    exit_code = 3
    usual_step = "use the original, or allow more with --budget"


class Undecided(VengineError):
    """The samples can't tell pass from fail; the message says how many more are needed."""

    exit_code = 4
    usual_step = "give more samples with --data"
