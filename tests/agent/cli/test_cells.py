"""Text in cells: widths that hold, and outputs that get only what they can show."""

from __future__ import annotations

import doctest
import io
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuagent.cli import cells, check, status
from gpuagent.cli.cells import Paint, clean, cut, fit, width_of, wrap
from gpuagent.core import wording
from tests.fakes.any_snapshot import texts


class Stream(io.StringIO):
    """A stream that is, or is not, a terminal."""

    def __init__(self, *, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._terminal, self._encoding = terminal, encoding

    def isatty(self) -> bool:
        return self._terminal

    @property
    def encoding(self) -> str:  # type: ignore[override]  # StringIO's own is None
        return self._encoding


@pytest.mark.parametrize("module", [cells, check, status, wording], ids=lambda module: module.__name__)
def test_the_examples_hold(module: ModuleType) -> None:
    """What a docstring shows is what the function does."""
    result = doctest.testmod(module)

    assert result.attempted
    assert not result.failed


@pytest.mark.slow
@given(text=texts, width=st.integers(0, 60), right=st.booleans())
def test_fit_is_exact(text: str, width: int, right: bool) -> None:
    """PROC-07: a column keeps its width whatever is in it."""
    assert cell_len(fit(text, width, right=right)) == width
    assert cell_len(cut(text, width)) <= width
    assert clean(text).isprintable()


@given(text=texts, width=st.integers(2, 60))
def test_wrap_loses_nothing(text: str, width: int) -> None:
    """A problem is never cut: it takes more lines, each within the width."""
    lines = wrap(text, width)

    assert all(cell_len(line) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == clean(text).replace(" ", "")


@pytest.mark.parametrize(
    ("terminal", "environ", "colored"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_color_only_where_it_is_wanted(terminal: bool, environ: dict[str, str], colored: bool) -> None:
    """A pipe, a dumb terminal and NO_COLOR get no escape sequences."""
    paint = Paint.for_stream(Stream(terminal=terminal), environ=environ)

    assert (paint("x", "critical") == "\x1b[1;31mx\x1b[0m") is colored
    assert colored or paint("x", "critical") == "x"


@pytest.mark.parametrize(("encoding", "ascii_only"), [("utf-8", False), ("UTF8", False), ("ascii", True)])
def test_ascii_where_nothing_else_can_be_shown(encoding: str, ascii_only: bool) -> None:
    """A terminal that is not UTF-8 gets ASCII without being asked."""
    paint = Paint.for_stream(Stream(terminal=True, encoding=encoding), environ={})

    assert paint.bar(0.5, 4) == ("##.." if ascii_only else "██░░")
    assert paint.text("naïve…") == ("na?ve~" if ascii_only else "naïve…")


def test_a_pipe_is_80_wide() -> None:
    """What goes into a file does not depend on the terminal that it was started from."""
    assert width_of(Stream(terminal=False)) == 80


@pytest.mark.parametrize(
    ("ratio", "bar"), [(-1, "░░░░"), (0, "░░░░"), (0.5, "██░░"), (0.99, "████"), (1, "████"), (9, "████")]
)
def test_bars(ratio: float, bar: str) -> None:
    """A bar is as long as it was told, whatever the ratio."""
    assert Paint().bar(ratio, 4) == bar


def test_sparklines_have_gaps() -> None:
    """EXP-05: an interval without a reading is a gap, not a zero."""
    assert Paint().sparkline([0, None, 5, 10], 10, 6) == "  ▁ ▅█"
    assert Paint(ascii_only=True).sparkline([0, None, 5, 10], 10, 3) == " +@"
