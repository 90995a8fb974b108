"""Which boot of the machine this is, and when it began."""

from __future__ import annotations

from pathlib import Path


def boot_id(root: str = "/proc") -> str:
    """Kernel's random id of this boot; "" where it may not be read."""
    try:
        return Path(root, "sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def boot_time_seconds(root: str = "/proc") -> float:
    """Unix time of the boot (`btime` of /proc/stat), whole seconds; 0 where it may not be read."""
    try:
        with Path(root, "stat").open("rb") as lines:
            for line in lines:
                if line.startswith(b"btime "):
                    return float(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return 0.0
