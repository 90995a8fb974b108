"""The keys and what they do, as `?` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from gpuagent.cli.cells import cut, fit


class KeyBinding(NamedTuple):
    """One key of the main screen."""

    keys: str
    """As textual names them, several with commas between."""
    action: str
    shown: str
    about: str


class Section(NamedTuple):
    """Keys that belong together."""

    title: str
    keys: Sequence[KeyBinding]


SECTIONS: Sequence[Section] = (
    Section(
        "Look",
        (
            KeyBinding("question_mark,h,f1", "help", "? h F1", "These keys"),
            KeyBinding(
                "slash,backslash,f4",
                "filter",
                "/ F4",
                "Filter: words anywhere, or user: unit: job: container: verdict: gpu:",
            ),
            KeyBinding("escape", "clear", "Esc", "Clear the filter"),
            KeyBinding("u", "filter_user", "u", "Only the user of this process; again: everybody"),
            KeyBinding("t,f5", "tree", "t F5", "Group by unit, job, container, user, GPU, not at all"),
            KeyBinding("c,f2", "columns", "c F2", "Choose columns; they are remembered"),
            KeyBinding("p", "problems", "p", "All problems and alerts, with advice"),
            KeyBinding("space", "pause", "Space", "Hold the figures; again: go on"),
            KeyBinding("q,f10", "quit", "q F10", "Quit"),
        ),
    ),
    Section(
        "Sort",
        (
            KeyBinding("M", "sort('memory')", "M", "By memory"),
            KeyBinding("P", "sort('sm')", "P", "By share of the GPU's time"),
            KeyBinding("G", "sort('growth')", "G", "By growth"),
            KeyBinding("F", "sort('full_in')", "F", "By when the GPU is full"),
            KeyBinding("V", "sort('verdict')", "V", "By verdict, leaks first"),
            KeyBinding("T", "sort('age')", "T", "By age"),
            KeyBinding("N", "sort('pid')", "N", "By pid"),
            KeyBinding("less_than_sign,comma", "sort_next(-1)", "<", "By the column to the left"),
            KeyBinding("greater_than_sign,full_stop,f6", "sort_next(1)", "> F6", "By the column to the right"),
            KeyBinding("I", "invert", "I", "The other way round"),
        ),
    ),
    Section(
        "Act on the process under the cursor: shows what is known and asks first",
        (
            KeyBinding("k", "act('terminate')", "k", "Send SIGTERM"),
            KeyBinding("K,f9,ctrl+k", "act('kill')", "K F9", "End it: SIGTERM, then SIGKILL after 30 s"),
            KeyBinding("R", "act('restart_unit')", "R", "Restart its systemd unit"),
            KeyBinding("r", "act('release')", "r", "Ask its app to release cached memory"),
            KeyBinding("b", "act('blame')", "b", "Find the code that holds growing memory"),
            KeyBinding("a", "alert('acknowledge')", "a", "Acknowledge an alert or incident"),
            KeyBinding("s", "alert('silence')", "s", "Silence an alert or incident for 2 h"),
        ),
    ),
)
_KEY_WIDTH = 9
_MOVES = (
    ("arrows", "Move; PgUp, PgDn, Home and End too. The mouse moves, scrolls, and sorts by a click on a head"),
    ("Enter", "Everything about this process; a second click does the same"),
)


def help_lines(width: int) -> list[Text]:
    """Return the keys as text of at most `width` cells."""
    lines = [_row(key, about, width) for key, about in _MOVES]
    for section in SECTIONS:
        lines += [Text(end=""), Text(cut(section.title, width), "bold underline", end="", no_wrap=True)]
        lines += [_row(key.shown, key.about, width) for key in section.keys]
    return lines


def _row(key: str, about: str, width: int) -> Text:
    line = Text(fit(key, _KEY_WIDTH), "bold #5fa8c8", end="", no_wrap=True)
    return line.append(cut(about, max(0, width - _KEY_WIDTH)), "not bold default")


_FOOT = (
    ("?", "keys"),
    ("/", "filter"),
    ("t", "tree"),
    ("<>", "sort"),
    ("Enter", "details"),
    ("k", "end"),
    ("r", "release"),
    ("b", "blame"),
    ("a", "ack"),
    ("s", "silence"),
    ("c", "columns"),
    ("p", "problems"),
    ("q", "quit"),
)


def foot_line(width: int) -> Text:
    """Return the most wanted keys, as many as there is room for."""
    line = Text(end="", no_wrap=True)
    shown = [*_FOOT[:1], *_FOOT[-1:], *_FOOT[1:-1]]
    for key, word in shown:
        if line.cell_len + len(key) + len(word) + 3 > width:
            break
        line.append(f" {key}", "bold #5fa8c8").append(f" {word} ", "dim")
    return line
