"""The two kinds of widgets: lines that scroll, and the table of processes, of which only visible rows are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from gpuagent.cli.cells import clean, cut, fit
from gpuagent.top.columns import Column, fitting, name_of
from gpuagent.top.look import SWATCH, VERDICT_STYLES, ProcessColors
from gpuagent.top.rows import Row, TableView

Document = dict[str, Any]

_GREY = Style.parse("#808080")
_CURSOR = Style.parse("bold on #2f4a63")
_HEAD = Style.parse("bold reverse")


class LinesView(ScrollView):
    """Finished lines, as many as there are; what does not fit can be scrolled to."""

    can_focus = False

    def __init__(self, **named: Any) -> None:
        super().__init__(**named)
        self.lines: Sequence[Text] = ()
        self.grey = False

    def show(self, lines: Sequence[Text], *, grey: bool = False) -> None:
        """Draw these; `grey` where they are no longer so."""
        self.lines, self.grey = lines, grey
        self.virtual_size = Size(self.size.width, len(lines))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Return one line of what is visible."""
        number = y + self.scroll_offset.y
        text = self.lines[number] if 0 <= number < len(self.lines) else Text(end="")
        return strip_of(self, text, self.scrollable_content_region.width, grey=self.grey)


def strip_of(widget: ScrollView, text: Text, width: int, *, grey: bool = False, style: Style | None = None) -> Strip:
    """Return a text as a line of a widget, in its full width."""
    console = widget.app.console
    whole = [Segment(text.plain, console.get_style(text.style))]  # rich drops the style of a text without spans
    segments = list(text.render(console)) if text.spans else whole
    if grey:
        segments = [Segment(segment.text, _GREY) for segment in segments]
    strip = Strip(segments).adjust_cell_length(width).apply_style(widget.rich_style)
    if style is None:
        return strip
    return Strip([Segment(segment.text, (segment.style or Style()) + style) for segment in strip], width)


class ProcessTable(ScrollView, can_focus=True):
    """One line for each process, or head of a group; the cursor stays on its process while the order changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """A process was asked for in detail."""

        def __init__(self, process: Document) -> None:
            self.process = process
            super().__init__()

    class SortChosen(Message):
        """The head of a column was clicked."""

        def __init__(self, key: str) -> None:
            self.key = key
            super().__init__()

    def __init__(self, colors: ProcessColors, **named: Any) -> None:
        super().__init__(**named)
        self.palette = colors
        self.rows: Sequence[Row] = ()
        self.view = TableView()
        self.columns: Sequence[str] = ()
        self.cursor = 0
        self.grey = False
        self.empty = ""
        self._cursor_key: tuple[Any, ...] = ()
        self._shown: list[Column] = []
        self._processes: Sequence[Document] = ()
        self._below: Sequence[str] = ()

    def show(
        self, rows: Sequence[Row], processes: Sequence[Document], view: TableView, columns: Sequence[str], *,
        grey: bool = False, empty: str = "", below: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Draw these rows; `empty` is said where there are none, and `below` stands under them in grey."""
        self._below = below
        self.rows, self.view, self.columns, self.grey, self.empty = rows, view, columns, grey, empty
        self._processes = processes
        place = next((number for number, row in enumerate(rows) if row.key == self._cursor_key), None)
        self.cursor = max(0, min(self.cursor if place is None else place, len(rows) - 1))
        self._lay_out()
        self.refresh()

    def on_resize(self) -> None:
        """Choose the columns anew."""
        self._lay_out()

    def _lay_out(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.rows) + 1 + len(self._below))
        self._shown = fitting(self.columns, self._processes, self.scrollable_content_region.width - 1)
        self._keep_in_view()

    @property
    def chosen(self) -> Document | None:
        """The process under the cursor; None on the head of a group."""
        return self.rows[self.cursor].process if self.rows else None

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        if self.rows:
            self.cursor = max(0, min(self.cursor + by, len(self.rows) - 1))
            self._cursor_key = self.rows[self.cursor].key
            self._keep_in_view()
            self.refresh()

    def action_page(self, by: int) -> None:
        """Move by what is visible."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_open(self) -> None:
        """Ask for the details of the process under the cursor."""
        if self.chosen is not None:
            self.post_message(self.Opened(self.chosen))

    def _keep_in_view(self) -> None:
        room = max(1, self.size.height - 1)
        top = round(self.scroll_target_y)
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + room:
            self.scroll_to(y=self.cursor - room + 1, animate=False)

    def on_click(self, event: events.Click) -> None:
        """Sort by a head, move to a row, and open it at the second click."""
        place = event.get_content_offset(self)
        if place is None:
            return
        if place.y == 0:
            begin = 1
            for column in self._shown:
                if begin <= place.x <= begin + column.width:
                    self.post_message(self.SortChosen(column.key))
                begin += column.width + 1
            return
        self.action_move(self.scroll_offset.y + place.y - 1 - self.cursor)
        if event.chain > 1:
            self.action_open()

    def render_line(self, y: int) -> Strip:
        """Return the heads, or one row of what is visible."""
        width = self.scrollable_content_region.width
        if y == 0:
            return strip_of(self, Text(cut(self._heads(), width), end=""), width, style=_HEAD)
        number = y - 1 + self.scroll_offset.y
        if number >= len(self.rows):
            beyond = number - max(len(self.rows), 1 if self.empty and not self.rows else 0)
            said = self._below[beyond] if 0 <= beyond < len(self._below) else ""
            said = f" {self.empty}" if self.empty and not self.rows and y == 1 else said
            return strip_of(self, Text(cut(said, width), "dim", end=""), width)
        row = self.rows[number]
        text = self._group(row, width) if row.process is None else self._process(row.process, width)
        cursor = (Style(reverse=True) if self.palette.plain else _CURSOR) if number == self.cursor else None
        return strip_of(self, text, width, grey=self.grey, style=cursor)

    def _heads(self) -> str:
        line = " "
        for column in self._shown:
            arrow = ("▼" if self.view.descending else "▲") if column.key == self.view.sort else ""
            room = column.width - len(arrow)
            head = column.head if len(column.head) <= room else column.head[:room]
            line += fit(arrow + head if column.right else head + arrow, column.width, right=column.right) + " "
        return f"{line}NAME COMMAND"

    def _group(self, row: Row, width: int) -> Text:
        return Text(cut(f" {row.head}", width), "bold", end="", no_wrap=True)

    def _process(self, process: Document, width: int) -> Text:
        line = Text(end="", no_wrap=True)
        line.append(SWATCH, self.palette.style_of(process))
        for column in self._shown:
            line.append(fit(column.cell(process), column.width, right=column.right) + " ", self._style(column, process))
        is_said = process["state"] != "live" or any(column.key == "verdict" for column in self._shown)
        verdict = "" if is_said else str(process.get("verdict"))
        indent = "  " if self.view.tree else ""
        room = width - line.cell_len
        line.append(
            cut(f"{indent}{clean(name_of(process))}", max(0, room)),
            "#e0a030" if process["state"] == "dead" else VERDICT_STYLES.get(verdict, ""),
        )
        return line

    @staticmethod
    def _style(column: Column, process: Document) -> str:
        if column.key in {"verdict", "growth", "full_in"}:
            return VERDICT_STYLES.get(str(process.get("verdict")), "")
        return "bold" if column.key == "memory" else ""
