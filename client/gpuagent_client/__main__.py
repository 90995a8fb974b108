"""Run an app with the client in it, without a change to its code.

python -m gpuagent_client app.py ARGS
python -m gpuagent_client -m uvicorn app:app --workers 4
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from gpuagent_client import lifecycle
from gpuagent_client.settings import default_name

USAGE = """\
usage: python -m gpuagent_client SCRIPT [ARGS...]
       python -m gpuagent_client -m MODULE [ARGS...]

Runs a Python program with gpuagent's client in it, and in the Python processes that it starts.

  GPUAGENT_APP      the app's name in metrics and alerts (else the name of the script or module)
  GPUAGENT_SOCKET   where the agent listens (else /run/gpuagent-client/client.sock)
  GPUAGENT_DISABLE  1: no client; or commands that are not obeyed, such as census,lines
"""
INHERITED = Path(__file__).with_name("inherit")


def main(arguments: list[str]) -> int:
    """Start the client, then become the program; return the exit code where there is no program to become."""
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0
    as_module = arguments[:1] == ["-m"]
    program = arguments[1:] if as_module else arguments
    if not program or (not as_module and program[0].startswith("-")):
        sys.stderr.write(USAGE)
        return 2
    name = program[0]
    if not as_module and not Path(name).exists():
        sys.stderr.write(f"gpuagent_client: there is no {name}\n")
        return 2
    sys.argv = program
    # Children inherit the name too, whatever they are called themselves.
    os.environ.setdefault("GPUAGENT_APP", name if as_module else default_name(name))
    _reach_children()
    lifecycle.start()
    if as_module:
        # As `python -m` has it: the working directory is the first place to look, which it is here already.
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = str(Path(name).resolve().parent)  # as `python SCRIPT` has it
        runpy.run_path(name, run_name="__main__")
    return 0


def _reach_children() -> None:
    """Let Python load `inherit/sitecustomize.py` in every Python process below this one.

    Servers start their workers as new interpreters (uvicorn --workers, torchrun), which a fork hook never sees.
    https://docs.python.org/3/library/site.html#module-sitecustomize
    """
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(INHERITED), *([before] if before else [])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
