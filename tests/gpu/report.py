"""What a run of the suite found: a line for each thing that was compared, a table of them, and the exit status."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Verdict(StrEnum):
    """What became of one comparison."""

    AGREES = "agrees"
    MEASURED = "measured"
    """A figure that is right or wrong by nothing, such as a latency."""
    DIFFERS = "differs"
    FAILED = "failed"
    """The experiment broke: it proves nothing, and is to be mended."""
    NOT_RUN = "not run"


BAD = frozenset({Verdict.DIFFERS, Verdict.FAILED})
ALL_AGREES, SOMETHING_DIFFERS, SOMETHING_NOT_RUN = 0, 1, 3
"""Exit statuses; 2 is a wrong option, or a machine on which nothing can be run."""


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    experiment: str
    check: str
    compared: str
    figures: str
    verdict: Verdict
    values: Mapping[str, Any] = field(default_factory=dict)
    """The same figures for programs, in the units that their names say."""


class CannotRun(Exception):
    """Raised by an experiment whose remaining checks this machine cannot do, with the reason."""


class Report:
    """Takes the results of one experiment and writes each down at once: a process that is killed leaves what it had.

    `compared` says for each check that the experiment has promised what is compared.
    """

    def __init__(self, experiment: str, compared: Mapping[str, str], path: Path) -> None:
        self._experiment = experiment
        self._compared = compared
        self._path = path
        self.done: set[str] = set()

    def agrees(self, check: str, agree: bool, figures: str, **values: Any) -> None:
        """Write down a comparison, and whether both sides agree."""
        self._write(check, Verdict.AGREES if agree else Verdict.DIFFERS, figures, values)

    def measured(self, check: str, figures: str, **values: Any) -> None:
        """Write down a figure."""
        self._write(check, Verdict.MEASURED, figures, values)

    def not_run(self, check: str, reason: str) -> None:
        """Write down that a check cannot be done here."""
        self._write(check, Verdict.NOT_RUN, reason, {})

    @contextmanager
    def part(self, *checks: str) -> Iterator[None]:
        """Let what breaks in the block cost these checks, and nothing that comes after them."""
        try:
            yield
        except CannotRun as reason:
            write, why = self.not_run, str(reason)
        except Exception as error:  # noqa: BLE001  whatever it is, the other checks go on
            traceback.print_exc()
            write, why = self.failed, f"{type(error).__name__}: {error}"
        else:
            write, why = self.failed, "the experiment did not report it"
        for check in checks:
            if check not in self.done:
                write(check, why)

    def failed(self, check: str, reason: str) -> None:
        """Write down that the experiment broke before this check."""
        self._write(check, Verdict.FAILED, reason, {})

    def _write(self, check: str, verdict: Verdict, figures: str, values: Mapping[str, Any]) -> None:
        if check in self.done:
            raise ValueError(f"{check} was reported before")
        self.done.add(check)
        line = Line(self._experiment, check, self._compared[check], figures, verdict, values)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(line)) + "\n")


def read_lines(path: Path) -> list[Line]:
    """Return what a report wrote down; a row that was cut off by a kill is left out."""
    if not path.exists():
        return []
    found = []
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(text)
        except ValueError:
            continue
        found.append(Line(**{**row, "verdict": Verdict(row["verdict"])}))
    return found


def table(facts: Mapping[str, str], lines: Sequence[Line], *, dry: bool) -> str:
    """Return the table in Markdown, with what is known of the machine above it."""
    about = "; ".join(f"{name} {text}" for name, text in facts.items() if text)
    counts = [f"{sum(line.verdict is verdict for line in lines)} {verdict}" for verdict in Verdict]
    heading = "**Dry run over the simulator: nothing here says anything about a GPU.** " if dry else ""
    rows = [
        "| experiment | what was compared | figures | verdict |",
        "|---|---|---|---|",
        *(f"| {_cell(line.experiment)} | {_cell(line.compared)} | {_cell(line.figures)} | {line.verdict} |"
          for line in lines),
    ]  # fmt: skip
    return "\n".join([f"{heading}{about}.", "", *rows, "", ", ".join(counts) + "."])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def exit_status(lines: Iterable[Line]) -> int:
    """Return 0 only if everything ran and nothing differs."""
    verdicts = {line.verdict for line in lines}
    if verdicts & BAD or not verdicts:
        return SOMETHING_DIFFERS
    return SOMETHING_NOT_RUN if Verdict.NOT_RUN in verdicts else ALL_AGREES
