"""Windows above the screen: a question, a choice out of several, and text to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, SelectionList, Static

from gpuagent.cli.cells import cut
from gpuagent.top.columns import COLUMNS
from gpuagent.top.widgets import LinesView

_MARGIN = 8
"""Cells around the text of a window: border, padding and what is left of the screen beside it."""


def window_width(screen_width: int) -> int:
    """Return the cells that the text of a window has."""
    return max(20, min(100, screen_width - _MARGIN))


class Question(ModalScreen[bool]):
    """Shows what is known, and returns whether the answer was yes. Nothing but `y` or the button says yes."""

    AUTO_FOCUS = ""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q,enter", "answer(False)", "No"),
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[str], *, danger: bool = True) -> None:
        """`danger`: the window is drawn in the color of danger."""
        super().__init__()
        self._title = title
        self._lines = lines
        self._danger = danger

    def compose(self) -> ComposeResult:
        """Put title, facts and the two answers one below the other."""
        width = window_width(self.app.size.width)
        with Vertical(classes="window danger" if self._danger else "window") as window:
            window.styles.width = width + 5
            yield Static(Text(cut(f"{self._title}?", width), "bold"), markup=False)
            facts = LinesView(id="facts")
            facts.styles.height = max(1, min(len(self._lines), self.app.size.height - 8))
            facts.show([Text(cut(line, width), end="", no_wrap=True) for line in self._lines])
            yield facts
            with Horizontal(classes="answers"):
                for text, name in (("Yes (y)", "yes"), ("No (n)", "no")):
                    button = Button(text, id=name)
                    button.can_focus = False  # the mouse alone: Enter is no consent
                    yield button

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer by mouse."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Close with this answer."""
        self.dismiss(yes)

    def action_scroll(self, by: int) -> None:
        """Move through facts that have no room."""
        self.query_one(LinesView).scroll_relative(y=by, animate=False)


class Choice(ModalScreen[int | None]):
    """Lets a person choose one of several lines; returns its number, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "choose(False)", "Cancel"),
        Binding("enter", "choose(True)", "Choose"),
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[str]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines
        self._chosen = 0

    def compose(self) -> ComposeResult:
        """Put the title above the lines."""
        width = window_width(self.app.size.width)
        with Vertical(classes="window") as window:
            window.styles.width = width + 5
            yield Static(Text(cut(self._title, width), "bold"), markup=False)
            lines = LinesView()
            lines.styles.height = max(1, min(len(self._lines), self.app.size.height - 8))
            yield lines
            yield Static(Text(cut("Enter chooses, Esc cancels", width), "dim"), markup=False)

    def on_mount(self) -> None:
        """Draw with the first line chosen."""
        self.action_move(0)

    def action_move(self, by: int) -> None:
        """Move the mark."""
        width = window_width(self.app.size.width)
        self._chosen = max(0, min(self._chosen + by, len(self._lines) - 1))
        view = self.query_one(LinesView)
        view.show(
            [
                Text(cut(line, width), "reverse" if number == self._chosen else "", end="", no_wrap=True)
                for number, line in enumerate(self._lines)
            ]
        )
        view.scroll_to(y=max(0, self._chosen - view.size.height + 1), animate=False)

    def on_click(self, event: events.Click) -> None:
        """Choose the line that was clicked."""
        view = self.query_one(LinesView)
        place = event.get_content_offset(view)
        if place is not None and place.y + view.scroll_offset.y < len(self._lines):
            self.dismiss(place.y + view.scroll_offset.y)

    def action_choose(self, yes: bool) -> None:
        """Close with the marked line, or with none."""
        self.dismiss(self._chosen if yes else None)


class Columns(ModalScreen[tuple[str, ...]]):
    """Lets a person choose the columns; returns their keys in the order of the table."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,c", "close", "Close")]

    def __init__(self, shown: Sequence[str]) -> None:
        super().__init__()
        self._shown = shown

    def compose(self) -> ComposeResult:
        """Put all columns below each other, those that are shown with a mark."""
        width = window_width(self.app.size.width)
        with Vertical(classes="window") as window:
            window.styles.width = width + 5
            yield Static(Text(cut("Columns: Space chooses, Esc closes", width), "bold"), markup=False)
            chooser: SelectionList[str] = SelectionList(
                *(
                    (Text(cut(f"{one.head:<16} {one.about}", width - 8)), one.key, one.key in self._shown)
                    for one in COLUMNS
                )
            )
            chooser.styles.height = max(3, min(len(COLUMNS) + 2, self.app.size.height - 6))
            yield chooser

    def action_close(self) -> None:
        """Return what is chosen."""
        chosen = set(self.query_one(SelectionList).selected)
        self.dismiss(tuple(one.key for one in COLUMNS if one.key in chosen))


class TextWindow(ModalScreen[None]):
    """Text to read, which any of the usual keys closes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,p", "close", "Close"),
        Binding("up,k", "scroll(-1)", show=False),
        Binding("down,j", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown,space", "scroll(10)", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Text]) -> None:
        super().__init__()
        self._title = title
        self._lines = lines

    def compose(self) -> ComposeResult:
        """Put the title above the text."""
        width = window_width(self.app.size.width)
        with Vertical(classes="window") as window:
            window.styles.width = width + 5
            yield Static(Text(cut(self._title, width), "bold"), markup=False)
            view = LinesView()
            view.styles.height = max(1, min(len(self._lines), self.app.size.height - 6))
            view.show(self._lines)
            yield view

    def action_close(self) -> None:
        """Go back."""
        self.dismiss(None)

    def action_scroll(self, by: int) -> None:
        """Move through the text."""
        self.query_one(LinesView).scroll_relative(y=by, animate=False)
