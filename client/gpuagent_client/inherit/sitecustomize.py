"""Loaded by every Python with this folder on PYTHONPATH: what `python -m gpuagent_client` starts, and what that starts.

Such a Python may be older than the client, or without it: the syntax is plain, and nothing here may fail.
"""
# ruff: noqa: INP001, UP036 - no package, and for any Python 3

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def load_shadowed_sitecustomize() -> None:
    """Load the sitecustomize of a distribution or an administrator: Python takes the first only."""
    here = Path(__file__).resolve().parent
    elsewhere = [path for path in sys.path if Path(path or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


def start() -> None:
    """Start the client, except in Python's own helper processes."""
    if b"multiprocessing.resource_tracker" in Path("/proc/self/cmdline").read_bytes():
        return
    if os.environ.get("GPUAGENT_START") == "torch":
        watch_for_torch()
        return
    import gpuagent_client  # noqa: PLC0415 - after the check, and only where it is installed

    gpuagent_client.start()


def watch_for_torch() -> None:
    """Start the client that this file is a part of, once the program imports torch: as a unit's drop-in asks for."""
    package = Path(__file__).resolve().parent.parent
    spec = spec_from_file_location("gpuagent_client_on_torch", package / "enable" / "gpuagent_client_on_torch.py")
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module)["CLIENT"] = str(package.parent)
    module.watch()


if sys.version_info >= (3, 9):
    try:
        load_shadowed_sitecustomize()
    finally:
        with contextlib.suppress(Exception):
            start()
