"""Acts by key: what is known is shown, a person says yes, and a thread asks the agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.text import Text
from textual.app import App

from gpuagent.cli.agent import Refused
from gpuagent.cli.cells import wrap
from gpuagent.top import acts
from gpuagent.top.detail import ProcessDetails
from gpuagent.top.detail_screen import DetailScreen
from gpuagent.top.dialogs import Choice, Question, TextWindow, window_width
from gpuagent.top.rows import row_key
from gpuagent.top.source import NodeSource, ScreenData
from gpuagent.top.widgets import ProcessTable

Document = dict[str, Any]


class ActingApp(App[None]):
    """The part of the screen that acts; it never decides whether an act is allowed, the agent does."""

    def __init__(self, source: NodeSource) -> None:
        super().__init__()
        self.source = source
        self.reading: ScreenData | None = None
        self.lost_why = ""
        self.blamed: dict[tuple[Any, ...], list[str]] = {}
        self.acting: list[threading.Thread] = []
        """Threads that wait for the agent, for minutes perhaps: no workers, as the screen does not wait for them."""

    def say(self, text: str) -> None:
        """Show one line at the foot for a while."""
        raise NotImplementedError

    def _in_thread(self, work: Callable[[], None]) -> None:
        self.run_worker(work, thread=True, exit_on_error=False)

    @property
    def chosen(self) -> Document | None:
        """The process that keys act on: that of the open details, else the one under the cursor."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, DetailScreen):
                return screen.process
        return self.screen_stack[0].query_one(ProcessTable).chosen

    def _refusal(self) -> str:
        if self.reading is None or self.lost_why:
            return "No agent answers: nothing can be asked of it."
        return self.reading.act_refusal

    def action_act(self, name: str) -> None:
        """Show what is known of the process, and ask before anything is done."""
        process = self.chosen
        if why := self._refusal():
            self.say(why)
            return
        if process is None:
            self.say("Choose a process first.")
            return
        act, width = acts.PROCESS_ACTS[name], window_width(self.size.width)
        socket = self.reading.place if self.reading and isinstance(self.reading.place, Path) else None

        def prepare() -> None:
            try:
                prepared = acts.prepare(act, process, socket, width)
            except Refused as error:
                self.call_from_thread(self.show_text, act.title, [f"Refused: {error}"])
            else:
                self.call_from_thread(self.ask, prepared, process, socket)

        self._in_thread(prepare)

    def ask(self, prepared: acts.Prepared, process: Document, socket: Path | None) -> None:
        """Put the question, and act after a yes."""

        def answered(yes: bool | None) -> None:
            if not yes:
                self.say("Nothing was done.")
                return
            self.say(f"pid {prepared.chosen.pid}: {prepared.act.title} ...")
            acting = threading.Thread(
                target=self._perform,
                args=(prepared, process, socket),
                name=f"act on {prepared.chosen.pid}",
                daemon=True,
            )
            self.acting = [*(one for one in self.acting if one.is_alive()), acting]
            acting.start()

        danger = bool(prepared.act.steps)
        self.push_screen(Question(prepared.act.title, prepared.lines, danger=danger), answered)

    def _perform(self, prepared: acts.Prepared, process: Document, socket: Path | None) -> None:
        """Act and show what came of it. The screen may end meanwhile: the agent goes on with what it was asked."""

        def show(call: Callable[..., None], *words: Any) -> None:
            if self.is_running:
                with suppress(RuntimeError):  # the screen has ended since
                    self.call_from_thread(call, *words)

        def say(text: str) -> None:
            show(self.say, text)

        try:
            lines = acts.perform(prepared, socket, say)
        except Refused as error:
            lines = [f"Refused: {error}"]
        else:
            if prepared.act.name == "blame":
                self.blamed[row_key(process)] = lines
        say(lines[0] if lines else f"{prepared.act.title}: done")
        show(self.show_text, prepared.act.title, lines)

    def show_text(self, title: str, lines: Sequence[str]) -> None:
        """Show what an act has brought."""
        width = window_width(self.size.width)
        pieces = [piece for line in lines for part in line.splitlines() or [""] for piece in wrap(part, width)]
        self.push_screen(TextWindow(title, [Text(piece, end="", no_wrap=True) for piece in pieces]))

    def action_alert(self, name: str) -> None:
        """Let a person choose what is acknowledged or silenced."""
        if why := self._refusal():
            self.say(why)
            return
        reading = self.reading
        targets = acts.alert_targets(reading.alerts if reading else None, self.chosen)
        if not targets:
            self.say("No alert fires.")
            return
        socket = reading.place if reading and isinstance(reading.place, Path) else None
        act = acts.acknowledge if name == "acknowledge" else acts.silence

        def chosen(number: int | None) -> None:
            if number is not None:
                self._in_thread(lambda: self._tell(lambda: act(targets[number], socket)))

        title = "Acknowledge: no more repeats" if name == "acknowledge" else "Silence for 2 h"
        self.push_screen(Choice(title, [f"{target.text} ({target.key})" for target in targets]), chosen)

    def _tell(self, act: Callable[[], str]) -> None:
        try:
            said = act()
        except Refused as error:
            said = str(error)
        self.source.alerts_changed()
        self.call_from_thread(self.say, said)

    def fetch_known(self, process: Document) -> ProcessDetails:
        """Return what the agent tells of one process beside its figures. Blocks."""
        reading = self.reading
        if reading is None or reading.place is None or self.lost_why:
            return ProcessDetails()
        place, pid = reading.place, process["pid"]
        remedies = self.source.remedies(place, pid) if isinstance(place, Path) else None
        return ProcessDetails(self.source.explain(place, pid, process["gpu_uuid"]), remedies)
