"""Replayed processes as a picture: memory over time, alarms as lines. The only user of matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuagent.core.units import GIB

if TYPE_CHECKING:
    from gpuagent_alerts.leak.replay.run import Replayed


def draw(shown: list[tuple[Path, Replayed]], plot: Path) -> None:
    """A panel for each process, in the format that the file's name asks for.

    Raises OSError if it cannot be written, ValueError for a format that matplotlib does not have.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.6 * len(shown)), layout="constrained")
    FigureCanvasAgg(figure)
    for place, (file, one) in enumerate(shown):
        panel = figure.add_subplot(len(shown), 1, place + 1)
        points = one.sketch.points()
        hours = [(point.seconds - one.first_seconds) / 3600 for point in points]
        for name, values in (
            ("used", [point.used_bytes for point in points]),
            ("free", [point.free_bytes for point in points]),
            ("allocated", [point.allocated_bytes for point in points]),
        ):
            if any(value is not None for value in values):
                panel.plot(hours, [float("nan") if value is None else value / GIB for value in values], label=name)
        for alarm in one.alarms:
            panel.axvline((alarm.alarm_seconds - one.first_seconds) / 3600, color="red", linewidth=1)
            panel.axvspan(
                (alarm.onset_seconds - one.first_seconds) / 3600,
                ((alarm.cleared_seconds or one.last_seconds) - one.first_seconds) / 3600,
                color="red",
                alpha=0.08,
            )
        panel.set_title(f"{file.name} {one.process}: {one.growth.verdict}", fontsize=9, parse_math=False)
        panel.set_ylabel("GiB")
        panel.legend(fontsize=7, loc="upper left")
    figure.supxlabel("hours")
    figure.savefig(plot, dpi=110)
