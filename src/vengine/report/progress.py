"""Live progress of an optimisation. A progress is any callable that takes one event, a dictionary:

    {"event": "phase", "name": "export"}
    {"event": "trial-start", "recipe": "openvino bf16", "index": 3, "total": 7}
    {"event": "trial-end", "recipe": …, "status": "ok|refused|failed", "reason": "", "ratio": 3.9, "seconds": 9.4}
    {"event": "race", "round": 4, "seconds_left": 31.0}
    {"event": "note", "text": …}

Each may carry "seconds_left". An event of another kind is shown as a note and never an error: progress
must not end an optimisation.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TextIO

from vengine.report.wording import clean, number, seconds, times
from vengine.types import Interval

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Event = dict[str, Any]
MARKS = {"ok": "✓", "refused": "✗", "failed": "!", "skipped": "–"}
COLOURS = {"ok": "green", "refused": "yellow", "failed": "red", "skipped": "dim"}
_SHOWN = 12  # ended trials on screen; older ones scroll away


class Progress(Protocol):
    """What a tuner calls; `LiveProgress` and `PlainProgress` are two of them."""

    def __call__(self, event: Event) -> None: ...


def progress_for(stream: TextIO, *, columns: int | None = None) -> LiveProgress | PlainProgress:
    """A live display where `stream` is a terminal, plain lines where it is a file or a pipe."""
    if not stream.isatty():
        return PlainProgress(stream)
    from rich.console import Console

    return LiveProgress(Console(file=stream, width=columns))


def sentence(event: Event) -> str:
    """One event as one line of text."""
    kind = event.get("event")
    if kind == "phase":
        return clean(event.get("name", ""))
    if kind == "trial-start":
        return f"trial {event.get('index', '?')} of {event.get('total', '?')}: {clean(event.get('recipe', ''))}"
    if kind == "trial-end":
        return _ended(event)
    if kind == "race":
        return f"race, round {event.get('round', '?')}"
    return clean(event.get("text", "") or " ".join(f"{k}={v}" for k, v in event.items()))


def _ended(event: Event) -> str:
    status = str(event.get("status", "failed"))
    words = [f"{MARKS.get(status, '!')} {clean(event.get('recipe', ''))}: {clean(status)}"]
    ratio = _ratio(event)
    if ratio is not None:
        words.append(f"{times(ratio)} as fast as the original")
    if event.get("reason"):
        words.append(clean(event["reason"]))
    taken = number(event.get("seconds"))
    return ", ".join(words) + (f" ({seconds(taken)})" if taken is not None else "")


def _ratio(event: Event) -> float | None:
    """The ratio of a trial-end event, given as a number, an Interval, or an interval as JSON."""
    ratio = event.get("ratio")
    if isinstance(ratio, Interval):
        return ratio.value
    return number(ratio.get("value")) if isinstance(ratio, dict) else number(ratio)


class PlainProgress:
    """One line an event, each with the seconds since the start. For logs, pipes and CI."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._started = stream, clock, clock()
        self._rounds_shown = 0.0

    def __call__(self, event: Event) -> None:
        now = self._clock()
        if event.get("event") == "race":
            if now < self._rounds_shown:  # a line every ten seconds says as much as a thousand lines
                return
            self._rounds_shown = now + 10
        left = number(event.get("seconds_left"))
        tail = f", {seconds(left)} left" if left is not None else ""
        print(f"[{now - self._started:6.1f} s] {sentence(event)}{tail}", file=self._stream, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing to restore."""


class LiveProgress:
    """A live display: the phase, a bar over the trials, time left, and how each trial ended.

    Starts with the first event; `close` (or leaving the `with` block) restores the terminal and keeps
    the last picture on screen.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock, self._started = console, clock, clock()
        self._live: Live | None = None
        self._phase, self._note, self._running = "starting", "", ""
        self._index, self._total, self._round = 0, 0, 0
        self._ended: list[Event] = []
        self._deadline: float | None = None

    def __call__(self, event: Event) -> None:
        self._take(event)
        if self._live is None:
            self._start()
        elif event.get("event") != "race":
            self._live.refresh()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the terminal back. Twice is once."""
        if self._live is not None:
            self._running = ""
            self._live.stop()
            self._live = None

    def _start(self) -> None:
        from rich.live import Live

        # Two frames a second: the display must not take cycles from what is being timed.
        self._live = Live(get_renderable=self.render, console=self._console, refresh_per_second=2)
        self._live.start()

    def _take(self, event: Event) -> None:
        kind = event.get("event")
        left = number(event.get("seconds_left"))
        if left is not None:
            self._deadline = self._clock() + left
        if kind == "phase":
            self._phase, self._running, self._note = sentence(event), "", ""
        elif kind == "trial-start":
            self._index, self._total = _count(event.get("index")), _count(event.get("total"))
            self._running = clean(event.get("recipe", ""))
        elif kind == "trial-end":
            self._ended.append(event)
            self._running = ""
        elif kind == "race":
            self._round = _count(event.get("round"))
        else:
            self._note = sentence(event)

    def seconds_left(self) -> float | None:
        """From the last event that said so; else from the mean of the trials so far; else None."""
        if self._deadline is not None:
            return max(0.0, self._deadline - self._clock())
        known = [t for t in (number(e.get("seconds")) for e in self._ended) if t is not None]
        open_trials = self._total - len(self._ended)
        return open_trials * sum(known) / len(known) if known and open_trials > 0 else None

    def render(self) -> RenderableType:
        """The picture of this moment."""
        from rich.console import Group
        from rich.text import Text

        lines: list[RenderableType] = [self._headline()]
        if self._total:
            lines.append(self._bar())
        lines.append(self._table())
        if self._running:
            lines.append(Text(f"  … {self._running}", style="bold"))
        if self._note:
            lines.append(Text(f"  {self._note}", style="dim"))
        return Group(*lines)

    def _headline(self) -> RenderableType:
        from rich.text import Text

        line = Text.assemble(("vengine ", "bold cyan"), (self._phase, "bold"))
        if self._round:
            line.append(f", round {self._round}", style="cyan")
        line.append(f"  {seconds(float(round(self._clock() - self._started)))}", style="dim")
        left = self.seconds_left()
        if left is not None:
            line.append(f", about {seconds(float(round(left)))} left", style="dim")
        return line

    def _bar(self) -> RenderableType:
        from rich.columns import Columns
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        done = min(len(self._ended), self._total)
        bar = ProgressBar(total=self._total, completed=done, width=30)
        return Columns([Text(" "), bar, Text(f"{done} of {self._total} trials", style="dim")])

    def _table(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(width=3, justify="right")
        table.add_column(max_width=32, overflow="ellipsis", no_wrap=True)
        table.add_column(width=6, justify="right")
        table.add_column(ratio=1, overflow="ellipsis", no_wrap=True)
        for event in self._ended[-_SHOWN:]:
            status = str(event.get("status"))
            colour = COLOURS.get(status, "red")
            ratio = _ratio(event)
            table.add_row(
                Text(MARKS.get(status, "!"), style=colour),
                Text(clean(event.get("recipe", ""))),
                Text("" if ratio is None else times(ratio), style="bold" if status == "ok" else "dim"),
                Text(clean(event.get("reason", "")), style="dim"),
            )
        return table


def _count(value: Any) -> int:
    found = number(value)
    return 0 if found is None else int(found)
