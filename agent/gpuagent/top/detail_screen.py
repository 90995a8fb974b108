"""The details of one process, drawn again at each reading."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from gpuagent.cli.cells import cut
from gpuagent.top.detail import ProcessDetails, detail_lines
from gpuagent.top.rows import row_key
from gpuagent.top.widgets import LinesView

if TYPE_CHECKING:
    from gpuagent.top.app import TopApp

Document = dict[str, Any]

_ASK_EVERY_SECONDS = 15.0
"""As often as the leak detector takes a point."""


_FOOT_OF_DEAD = " Esc back  a acknowledge  s silence"


class DetailScreen(Screen[None]):
    """Everything about one process; the keys of acts work here as well."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,backspace", "back", "Back"),
        Binding("up", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
    ]

    def __init__(self, process: Document) -> None:
        super().__init__()
        self.process = process
        self._known = ProcessDetails()
        self._asked_seconds = 0.0

    @property
    def _top(self) -> TopApp:
        return cast("TopApp", self.app)

    def compose(self) -> ComposeResult:
        """Put the text above the keys."""
        yield LinesView(id="detail")
        yield LinesView(id="detail-foot")

    def on_mount(self) -> None:
        """Draw what is known, and ask for more."""
        self.update_figures()

    def on_resize(self) -> None:
        """Draw in the new width."""
        self.call_after_refresh(self._draw)

    def update_figures(self) -> None:
        """Take the process of the newest reading, and ask for the rest now and then."""
        reading = self._top.reading
        key = row_key(self.process)
        found = [one for one in reading.status["processes"] if row_key(one) == key] if reading else []
        if found:
            self.process = found[0]
        self._known = self._known._replace(gone=not found)
        now = time.monotonic()
        if not self._asked_seconds or now - self._asked_seconds >= _ASK_EVERY_SECONDS:
            self._asked_seconds = now
            self.run_worker(self._ask, thread=True, exclusive=True, exit_on_error=False)
        self._draw()

    def _ask(self) -> None:
        known = self._top.fetch_known(self.process)
        self.app.call_from_thread(self._take, known)

    def _take(self, known: ProcessDetails) -> None:
        self._known = self._known._replace(evidence=known.evidence, remedies=known.remedies)
        self._draw()

    def _draw(self) -> None:
        if not self.is_mounted:
            return
        top, width = self._top, self.app.size.width - 3  # padding and scroll bar
        known = self._known._replace(
            alerts=top.reading.alerts if top.reading else None,
            blamed=top.blamed.get(row_key(self.process), ()),
            points=top.memory.of(self.process),
        )
        lines = detail_lines(self.process, known, width, plain=top.plain)
        self.query_one("#detail", LinesView).show(lines, grey=top.grey)
        foot = (
            _FOOT_OF_DEAD
            if self.process["state"] == "dead"
            else " Esc back  k SIGTERM  K end it  R restart unit  r release  b blame  a acknowledge  s silence"
        )
        self.query_one("#detail-foot", LinesView).show([Text(cut(foot, width), "dim", end="", no_wrap=True)])

    def action_back(self) -> None:
        """Go back to all processes."""
        self.dismiss(None)

    def action_scroll(self, by: int) -> None:
        """Move through the text."""
        self.query_one("#detail", LinesView).scroll_relative(y=by, animate=False)
