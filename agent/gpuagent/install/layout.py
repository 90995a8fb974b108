"""Where the parts of an installed service go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

HOME = Path("/opt/gpuagent")
"""Environments of the service, side by side, and which of them runs: see releases.py."""
CONFIGURATION = Path("/etc/gpuagent")
STATE = Path("/var/lib/gpuagent")
DROP_INS = Path("/etc/systemd/system/gpuagent.service.d")
POLKIT_RULES = Path("/etc/polkit-1/rules.d/50-gpuagent.rules")
UNIT = "gpuagent.service"
USER = "gpuagent"


@dataclass(frozen=True, slots=True)
class Layout:
    """`prefix` is /usr/local for an administrator, and /usr for a package.

    What an administrator changes in /etc/systemd/system wins over both (systemd.unit(5)), and no upgrade touches it.
    """

    root: Path = Path("/")
    """Under which all of it is written; another one than / is a packager's staging folder."""
    prefix: Path = Path("/usr/local")

    def at(self, path: Path) -> Path:
        """Where an absolute path is written."""
        return self.root / path.relative_to("/")

    @property
    def staged(self) -> bool:
        """Nothing of this machine is touched but the folder."""
        return self.root != Path("/")

    @property
    def units(self) -> Path:
        """Systemd's folder of units, below the prefix."""
        return self.prefix / "lib/systemd/system"

    @property
    def sysusers(self) -> Path:
        """What systemd-sysusers reads."""
        return self.prefix / "lib/sysusers.d/gpuagent.conf"

    @property
    def tmpfiles(self) -> Path:
        """What systemd-tmpfiles reads."""
        return self.prefix / "lib/tmpfiles.d/gpuagent.conf"

    @property
    def examples(self) -> Path:
        """Drop-ins and rules that an administrator may want: nothing reads them here."""
        return self.prefix / "share/doc/gpuagent/examples"

    @property
    def command(self) -> Path:
        """What is on everybody's PATH."""
        return self.prefix / "bin/gpuagent"
