"""Where the parts of an installed service go, and whether its user can run an environment there."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path


class InstallFault(Exception):
    """The text says what to do, and what has been left as it was."""


HOME = Path("/opt/gpuagent")
"""Environments of the service, side by side, and which of them runs: see placing.py."""
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
        """Return where an absolute path is written."""
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


_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  by ProtectHome= and PrivateTmp=
_ADVICE = "Take the distribution's Python, and a folder such as /opt/gpuagent."


def check_environment(prefix: Path, base_prefix: Path) -> None:
    """Check that the environment and the Python it was made of are within the service's reach. Raises InstallFault.

    Raises:
        InstallFault: it is no environment of its own, or the service could not read it.
    """
    if prefix == base_prefix:
        raise InstallFault(f"gpuagent is not in an environment of its own, but in {prefix}. {_ADVICE}")
    for path in (prefix, base_prefix):
        check_reach(path)


def check_reach(path: Path) -> None:
    """Check that everybody can enter every folder on the way, and that the unit hides none. Raises InstallFault.

    Raises:
        InstallFault: the service would end with 203/EXEC.
    """
    resolved = path.resolve()
    for hidden in _HIDDEN:
        if resolved.is_relative_to(hidden):
            raise InstallFault(f"{resolved} is below {hidden}, which the unit hides from the service. {_ADVICE}")
    for folder in (resolved, *resolved.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise InstallFault(f"{folder} cannot be entered by the service's user: chmod o+x {folder}")
