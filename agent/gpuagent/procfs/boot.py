"""Which machine this is, which boot of it, and when that began."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

_MACHINE_IDS = (("firmware", "sys/class/dmi/id/product_uuid"), ("system", "etc/machine-id"))
"""The surest first: in a container the second may be the image's, and the first is for root alone to read."""


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


def machine_id(root: str = "/") -> str:
    """What tells this machine from others, as `KIND ID`; "" where it may not be read.

    The id is a hash: machine-id(5) asks that what stands in the file be told to nobody.
    """
    for kind, path in _MACHINE_IDS:
        with suppress(OSError):
            said = Path(root, path).read_bytes().strip().lower()
            if said and said != b"uninitialized":
                return f"{kind} {hashlib.sha256(b'gpuagent' + said).hexdigest()[:32]}"
    return ""
