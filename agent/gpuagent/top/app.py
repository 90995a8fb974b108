"""The screen put together: one thread asks for figures, others act, and the screen never waits for either."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Input

from gpuagent.cli.agent import NoData
from gpuagent.cli.alert_screen import alert_screen
from gpuagent.cli.cells import Paint, clean, cut, wrap
from gpuagent.cli.ps import process_table
from gpuagent.core.units import format_duration
from gpuagent.core.wording import unmeasured_words
from gpuagent.top.acting import ActingApp
from gpuagent.top.detail import MemoryHistory
from gpuagent.top.detail_screen import DetailScreen
from gpuagent.top.dialogs import Columns, TextWindow, window_width
from gpuagent.top.keys import SECTIONS, foot_line, help_lines
from gpuagent.top.look import SEVERITY_STYLES, ProcessColors, from_printed
from gpuagent.top.panels import VitalsHistory, age_words, gpu_block, head_line, problem_lines
from gpuagent.top.preferences import Preferences, load_preferences, save_preferences
from gpuagent.top.rows import TREES, TableView, rows
from gpuagent.top.source import NodeSource, ScreenData
from gpuagent.top.widgets import LinesView, ProcessTable

Document = dict[str, Any]

_NOTHING_YET = (
    "It is asked again and again. `gpuagent doctor` says what is missing. To look around without a GPU: "
    "`gpuagent run --simulate leak --speed 60` in another terminal."
)
_LEAST_TABLE = 6
_LEAST_INTERVAL_SECONDS = 0.5
_LEAST_CHARTED, _MOST_ROWS = 5, 16
"""Lines of a GPU with charts."""
_MESSAGE_SECONDS = 20.0


class TopApp(ActingApp):
    """The node at a glance, its processes, and what can be done about them."""

    TITLE = "gpuagent top"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "top.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key.keys, key.action, key.about, show=False) for section in SECTIONS for key in section.keys
    ]

    class Got(Message):
        """New figures, or why there are none."""

        def __init__(self, reading: ScreenData | None, why: str = "") -> None:
            self.reading = reading
            self.why = why
            super().__init__()

    def __init__(
        self, source: NodeSource, preferences: Path, *, interval_seconds: float | None = None, polls: bool = True
    ) -> None:
        """`interval_seconds`: None is as often as the agent measures. Without `polls`, only `take` brings figures."""
        super().__init__(source)
        self.plain = bool(os.environ.get("NO_COLOR"))
        self.palette = ProcessColors(plain=self.plain)
        self.memory = MemoryHistory()
        self._lost_since_seconds = 0.0
        self._vitals = VitalsHistory()
        self._preferences_path = preferences
        chosen = load_preferences(preferences)
        self.view = TableView(chosen.sort, chosen.descending, "", chosen.tree)
        self.columns = chosen.columns
        self._interval_seconds = interval_seconds
        self._polls = polls
        self._laid_out = False
        self._stopped = threading.Event()
        self._held = False
        self._message = ""
        self._message_until_seconds = 0.0

    def compose(self) -> ComposeResult:
        """Stack head, problems, GPUs, processes and foot."""
        for name in ("head", "problems", "gpus"):
            yield LinesView(id=name)
        yield ProcessTable(self.palette, id="processes")
        yield Input(placeholder="words, or user: unit: job: container: verdict: gpu:", id="filter")
        yield LinesView(id="foot")

    def on_mount(self) -> None:
        """Begin to ask for figures."""
        self._laid_out = True
        self.query_one("#filter").display = False
        self.query_one(ProcessTable).focus()
        self._draw()
        self.set_interval(1.0, self._draw_age)
        if self._polls:
            threading.Thread(target=self._poll, name="gpuagent top: figures", daemon=True).start()

    def on_unmount(self) -> None:
        """End the thread that asks."""
        self._stopped.set()

    def _poll(self) -> None:
        """Ask until the screen ends. Runs in a thread of its own: whatever blocks here, keys go on working."""
        while not self._stopped.is_set():
            begun = time.monotonic()
            wait = self._interval_seconds or 1.0
            try:
                reading = self.source.read()
            except NoData as error:
                self.post_message(self.Got(None, str(error)))
            except Exception as error:  # noqa: BLE001  # a document of another version must not end the screen
                self.post_message(self.Got(None, f"the answer cannot be read ({type(error).__name__}: {error})"))
            else:
                self.post_message(self.Got(reading))
                wait = self._interval_seconds or reading.status["agent"]["poll_interval_seconds"] or 1.0
            self._stopped.wait(max(_LEAST_INTERVAL_SECONDS, wait - (time.monotonic() - begun)))
        self.source.close()

    def on_top_app_got(self, message: Got) -> None:
        """Take figures from the thread that asks."""
        self.take(message.reading, message.why)

    def take(self, reading: ScreenData | None, why: str = "") -> None:
        """Draw new figures; without any, the last ones in grey."""
        if reading is None:
            self._lost_since_seconds = self._lost_since_seconds if self.lost_why else time.monotonic()
            self.lost_why = why or "no answer"
        else:
            self.lost_why = ""
            self.memory.add(reading.status["processes"])
            self._vitals.add(reading.status["gpus"])
            if self._held:
                return
            self.reading = reading
            self.palette.update(reading.status["processes"])
        self._draw()
        for screen in self.screen_stack:
            if isinstance(screen, DetailScreen):
                screen.update_figures()

    @property
    def grey(self) -> bool:
        """The figures are those of an agent that does not answer any more."""
        return bool(self.lost_why)

    def _draw(self) -> None:
        if not self._laid_out:
            return
        base = self.screen_stack[0]
        width, height = self.size
        head = base.query_one("#head", LinesView)
        problems, gpus = base.query_one("#problems", LinesView), base.query_one("#gpus", LinesView)
        table = base.query_one(ProcessTable)
        self._draw_age()
        if self.reading is None:
            text = self.lost_why or "Asking for the figures ..."
            room = max(10, width - 2)
            lines = [Text(f" {line}", end="") for line in wrap(text, room)]
            if self.lost_why:
                lines += [Text(end=""), *(Text(f" {line}", "dim", end="") for line in wrap(_NOTHING_YET, room))]
            problems.styles.height = max(1, min(len(lines), height - 4))
            problems.show(lines)
            gpus.styles.height = 0
            table.show([], [], self.view, self.columns)
            return
        status = self.reading.status
        # Problems come first, then their advice; rows of GPUs have the rest of what the processes leave.
        blocks = self._gpu_blocks(status, width, height, charts=False)
        room = max(1, height - 2 - _LEAST_TABLE)
        below = self._last_known_lines(status, width)
        wanted = min(len(status["processes"]) + len(below) + 1, height // 2)
        spare = height - 2 - len(blocks) - max(_LEAST_TABLE, wanted)
        lines = problem_lines(
            status, self.reading.alerts, width, max(1, room // 3, min(spare, room - 1)), outdated=self.grey
        )
        blocks = self._gpu_blocks(status, width, height, problems=len(lines), below=len(below))
        problems.styles.height = len(lines)
        problems.show(lines, grey=self.grey)
        if len(blocks) > room - len(lines):  # a cell for the scroll bar
            blocks = self._gpu_blocks(status, width - 1, height, problems=len(lines), below=len(below))
        gpus.styles.height = max(1, min(len(blocks), room - len(lines)))
        gpus.show(blocks, grey=self.grey)
        shown = rows(status["processes"], self.view)
        empty = "" if below and not self.view.filter else self._empty_words(status)
        table.show(shown, status["processes"], self.view, self.columns, grey=self.grey, empty=empty, below=below)
        head.refresh()

    def _empty_words(self, status: Document) -> str:
        if self.view.filter:
            return f"No GPU process matches {self.view.filter!r}; Esc clears the filter."
        if status.get("last_known"):
            return unmeasured_words(status["last_known"])
        return "No process holds GPU memory."

    def _last_known_lines(self, status: Document, width: int) -> list[str]:
        """Return who was on the GPUs that are not measured now; nothing under a filter, which is about the present."""
        known = status.get("last_known")
        if not known or not known["processes"] or self.view.filter:
            return []
        processes = [dict(one, sm_utilization_ratio=None) for one in known["processes"]]
        head, *table = process_table(processes, width - 2, Paint())
        return ["", *(f" {line}" for line in (*wrap(unmeasured_words(known), width - 2), head.rstrip(), *table))]

    def _gpu_blocks(
        self, status: Document, width: int, height: int, *, problems: int = 0, below: int = 0, charts: bool = True
    ) -> list[Text]:
        by_gpu: dict[str, list[Document]] = {}
        for process in status["processes"]:
            by_gpu.setdefault(process["gpu_uuid"], []).append(process)
        each = self._rows_per_gpu(status, height, problems, below) if charts else 1
        blocks: list[Text] = []
        for gpu in status["gpus"]:
            held = by_gpu.get(gpu["uuid"], [])
            blocks += gpu_block(gpu, held, width, self.palette, self._vitals, rows=each, stale=bool(status["stale"]))
        if not blocks:
            blocks = [Text(cut(" No GPU on this node.", width), "dim", end="")]
        return blocks

    def _rows_per_gpu(self, status: Document, height: int, problems: int, below: int) -> int:
        """Return how many lines each GPU has: more where problems and processes leave room, for charts."""
        count = max(1, len(status["gpus"]))
        if count * 2 > height // 3:
            return 1
        table = max(_LEAST_TABLE, min(len(status["processes"]) + below + 2, height // 3))
        rows = min(_MOST_ROWS, (height - 2 - problems - table) // count)
        return rows if rows >= _LEAST_CHARTED else max(1, min(2, rows))

    def _draw_age(self) -> None:
        """Draw head and foot, whose ages go on while no figures come."""
        # A timer may tick while the screen is being taken down.
        if not self._laid_out or not self.screen_stack or len(self.screen_stack[0].query("#head, #foot")) < 2:
            return
        base, width = self.screen_stack[0], self.size.width
        head, foot = base.query_one("#head", LinesView), base.query_one("#foot", LinesView)
        if self.reading is None:
            head.show([Text(cut(f" gpuagent top  {self.source.hostname}", width), "bold", end="")])
        else:
            right, style = self._age()
            head.show([head_line(self.reading.status, width, self.source.hostname, right, style)])
        foot.show([self._foot(width)])

    def _age(self) -> tuple[str, str]:
        reading = self.reading
        assert reading is not None  # noqa: S101  # the caller has looked
        since = format_duration(max(0.0, time.monotonic() - reading.received_seconds))
        if self.lost_why:
            return f" NO AGENT: figures of {since} ago ", SEVERITY_STYLES["critical"]
        if self._held:
            return f" HELD: figures of {since} ago ", SEVERITY_STYLES["warning"]
        if reading.place is None:
            return "read by NVML, no agent ", "#e0a030"
        words = age_words(reading.status)
        return f"{words} ", SEVERITY_STYLES["critical"] if reading.status["stale"] else "dim"

    def _foot(self, width: int) -> Text:
        if self.lost_why and self.reading is not None:
            return Text(cut(f" {clean(self.lost_why)}", width), SEVERITY_STYLES["warning"], end="", no_wrap=True)
        if self._message and time.monotonic() < self._message_until_seconds:
            return Text(cut(f" {self._message}", width), "bold", end="", no_wrap=True)
        said = [
            f"filter: {self.view.filter}" if self.view.filter else "",
            f"by {self.view.tree}" if self.view.tree else "",
        ]
        count = len(self.reading.status["processes"]) if self.reading else 0
        told = "  ".join([*filter(None, said), f"{count} processes"]) if any(said) else ""
        line = foot_line(width - len(told) - 2)
        if told:
            line.append(cut(told, width).rjust(max(0, width - line.cell_len - 1)), "bold #e0a030")
        return line

    def say(self, text: str) -> None:
        """Show one line at the foot for a while."""
        self._message = clean(text)
        self._message_until_seconds = time.monotonic() + _MESSAGE_SECONDS
        self._draw_age()

    def on_resize(self) -> None:
        """Lay everything out anew."""
        self.call_after_refresh(self._draw)

    # ---- looking ----

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(TextWindow("Keys", help_lines(window_width(self.size.width))))

    def action_problems(self) -> None:
        """Show all problems with their advice, and what fires."""
        width = window_width(self.size.width)
        if self.reading is None:
            return
        lines = problem_lines(self.reading.status, self.reading.alerts, width, 10_000, evidence=True)
        if self.reading.alerts is not None:
            shown = alert_screen(self.reading.alerts, width, Paint(color=not self.plain))
            lines += [Text(end=""), *(from_printed(cut_line) for cut_line in shown)]
        self.push_screen(TextWindow("Problems and alerts", lines))

    def action_pause(self) -> None:
        """Hold the figures, or go on."""
        self._held = not self._held
        self._draw_age()

    def action_filter(self) -> None:
        """Open the line to type a filter in."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = self.view.filter
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter as one types."""
        self._set_view(replace(self.view, filter=event.value.strip()))

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the processes."""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter").display = False
        self.query_one(ProcessTable).focus()

    def action_clear(self) -> None:
        """Clear the filter."""
        self.query_one("#filter", Input).value = ""
        self._set_view(replace(self.view, filter=""))
        self._close_filter()

    def action_filter_user(self) -> None:
        """Show only the user of this process, or everybody again."""
        process = self.query_one(ProcessTable).chosen
        if self.view.filter.startswith("user:"):
            self.action_clear()
        elif process is not None and process["user"]:
            self._set_view(replace(self.view, filter=f"user:{process['user'].replace(' ', '')}"))

    def action_tree(self) -> None:
        """Group by the next thing."""
        tree = TREES[(TREES.index(self.view.tree) + 1) % len(TREES)]
        self._set_view(replace(self.view, tree=tree))
        self._remember()
        self.say(f"grouped by {tree}" if tree else "not grouped")

    def action_sort(self, key: str) -> None:
        """Sort by a column; the same one again turns it round."""
        from gpuagent.top.columns import BY_KEY

        descending = not self.view.descending if self.view.sort == key else BY_KEY[key].descends
        self._set_view(replace(self.view, sort=key, descending=descending))
        self._remember()

    def on_process_table_sort_chosen(self, message: ProcessTable.SortChosen) -> None:
        """Sort by the head that was clicked."""
        self.action_sort(message.key)

    def action_sort_next(self, by: int) -> None:
        """Sort by the next of the shown columns."""
        shown = list(self.columns)
        place = shown.index(self.view.sort) if self.view.sort in shown else -1
        self.action_sort(shown[(place + by) % len(shown)])

    def action_invert(self) -> None:
        """Turn the order round."""
        self._set_view(replace(self.view, descending=not self.view.descending))
        self._remember()

    def action_columns(self) -> None:
        """Let a person choose the columns."""

        def chosen(columns: tuple[str, ...] | None) -> None:
            if columns:
                self.columns = columns
                self._remember()
                self._draw()

        self.push_screen(Columns(self.columns), chosen)

    def _set_view(self, view: TableView) -> None:
        self.view = view
        self._draw()

    def _remember(self) -> None:
        view = self.view
        save_preferences(self._preferences_path, Preferences(self.columns, view.sort, view.descending, view.tree))

    def on_process_table_opened(self, message: ProcessTable.Opened) -> None:
        """Show everything about a process."""
        self.push_screen(DetailScreen(message.process))
