"""Lines beside a census: recorded while it waits, and joined with what it finds."""

from __future__ import annotations

from contextlib import ExitStack
from types import ModuleType

from gpuagent_client.blame.join import join
from gpuagent_client.blame.lines import places_by_block, told, torch_folder
from gpuagent_client.blame.recording import Snapshot, recording, snapshot
from gpuagent_client.blame.request import Context, Refused


class Recorder:
    """Which lines allocate, beside the census; where that cannot be recorded, the census goes on without."""

    def __init__(self, torch: ModuleType, context: Context) -> None:
        self._torch = torch
        self._snapshots: list[Snapshot] = []
        self._stack = ExitStack()
        self._problem = ""
        try:
            self._stack.enter_context(recording(torch, context))
        except (Refused, RuntimeError) as error:
            self._problem = str(error)

    def look(self) -> None:
        """Take a snapshot: after the second look, and before the third."""
        if not self._problem:
            try:
                self._snapshots.append(snapshot(self._torch))
            except RuntimeError as error:
                self._problem = str(error)

    def end(self) -> None:
        """Record no more."""
        self._stack.close()

    def told(self, groups: list[dict[str, object]]) -> tuple[list[dict[str, object]], list[str]]:
        """The lines and what there is to say; the groups get theirs."""
        if self._problem:
            join(groups, {})
            return [], [f"lines: {self._problem}"]
        first, second = self._snapshots
        folder = torch_folder(self._torch)
        join(groups, places_by_block(second, folder))
        return told(first, second, folder)
