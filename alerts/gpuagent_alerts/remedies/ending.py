"""What a remedy did that ended a process or freed its memory, as the end of an alert tells it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuagent.core.units import format_bytes, format_duration


@dataclass(frozen=True, slots=True)
class RemedyEnding:
    """A remedy that helped. Never a dry run, and never one about another process."""

    step: str
    """The last step that was taken, as the record names it: `SIGTERM`, `restart_unit`, `release_cache` ..."""
    released_bytes: int | None = None
    seconds: float | None = None
    """From that step to the memory's return."""
    unit: str = ""

    def __str__(self) -> str:
        took = f" after {format_duration(self.seconds)}" if self.seconds is not None else ""
        freed = f"; {format_bytes(self.released_bytes)} came back{took}" if self.released_bytes else ""
        return f"{self._act()}{freed}"

    def _act(self) -> str:
        match self.step:
            case "SIGTERM":
                return "gpuagent terminated it (SIGTERM)"
            case "SIGKILL":
                return "gpuagent killed it (SIGKILL)"
            case "restart_unit":
                return f"gpuagent restarted {self.unit or 'its unit'}"
            case "release_cache":
                return "gpuagent had it release its cache"
            case step:
                return f"gpuagent acted on it ({step})"


def no_remedy(_pid: str, _uuid: str) -> RemedyEnding | None:
    """Return None: no remedy is known."""
    return None
