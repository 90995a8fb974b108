"""`python3 -m gpuagent.install`: take an installed service away, also when its own command does not work any more.

It and what it imports need the standard library alone.
"""

from __future__ import annotations

import argparse
import os
import sys

from gpuagent.install.install import uninstall
from gpuagent.install.placing import InstallFault


def main() -> None:
    """Take the service away, for `make uninstall`."""
    parser = argparse.ArgumentParser(prog="make uninstall", description="Take the service away.")
    parser.add_argument("--purge", action="store_true", help="configuration, state and the user, too")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("this needs root")
    try:
        for line in uninstall(purge=arguments.purge):
            print(line)  # noqa: T201  it is a command
    except InstallFault as fault:
        sys.exit(str(fault))


if __name__ == "__main__":
    main()
