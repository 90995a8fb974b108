"""Taking the service away: all but what cannot be had again, unless that is asked for.

With the standard library alone: it must work where the installed environment does not.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from gpuagent.install.layout import CONFIGURATION, DROP_INS, HOME, POLKIT_RULES, STATE, UNIT, Layout
from gpuagent.install.placing import Manifest, remove
from gpuagent.install.system import System

_RUNTIME = (Path("/run/gpuagent"), Path("/run/gpuagent-client"))


def uninstall(system: System | None = None, layout: Layout | None = None, *, purge: bool = False) -> Iterator[str]:
    """Do it, and tell it in lines as it goes on.

    Without `purge` the configuration, drop-ins, state and the user stay: another installation goes on with them.
    """
    system, layout = system or System(), layout or Layout()
    home = layout.at(HOME)
    manifest = Manifest(home)
    there = manifest.exists
    if system.booted:
        system.stop_for_good()
    remove(layout, manifest.read())
    shutil.rmtree(home, ignore_errors=True)
    for path in _RUNTIME:
        shutil.rmtree(layout.at(path), ignore_errors=True)
    if system.booted:
        system.reload()
    if there:
        yield f"{UNIT}: stopped, and removed with {home}, the command, its manual and completion"
    else:
        yield f"{home} has no installed service"
    kept = (CONFIGURATION, DROP_INS, POLKIT_RULES, STATE)
    if purge:
        for path in map(layout.at, kept):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        system.remove_user()
        yield f"{', '.join(map(str, kept))} and the user gpuagent: removed"
    elif left := [str(path) for path in kept if layout.at(path).exists()]:
        yield f"kept: {', '.join(left)} (make uninstall PURGE=1 removes these too)"
