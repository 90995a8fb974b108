"""Whether the service's user, inside the unit's sandbox, can run an environment."""

from __future__ import annotations

import stat
from pathlib import Path

from gpuagent.install.fault import InstallFault

_HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  by ProtectHome= and PrivateTmp=
_ADVICE = "Take the distribution's Python, and a folder such as /opt/gpuagent."


def check_environment(prefix: Path, base_prefix: Path) -> None:
    """Both the environment and the Python that it was made of have to be within reach.

    Raises:
        InstallFault: it is no environment of its own, or the service could not read it.
    """
    if prefix == base_prefix:
        raise InstallFault(f"gpuagent is not in an environment of its own, but in {prefix}. {_ADVICE}")
    for path in (prefix, base_prefix):
        check_reach(path)


def check_reach(path: Path) -> None:
    """Every folder on the way can be entered by everybody, and the unit does not hide it.

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
