"""Start gpuagent's client in each program of this environment that imports torch, and in no other.

`gpuagent-client enable` copies this file into an environment's site-packages, beside `gpuagent-client.pth`, which has
Python load it at every start. A program that never imports torch pays for one function call for each module that it
imports. Whatever goes wrong here, the program goes on as if this file did not exist.
"""
# ruff: noqa: PLC0415, UP036 - no package; loads what it needs when it is needed; for any Python 3

import os
import sys

CLIENT = ""
"""Directory that contains the package `gpuagent_client`; written here when the file is copied."""


class Watcher:
    """A finder that finds nothing: it is asked for each module, and waits for torch."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Find nothing."""
        if name == "torch" and self in sys.meta_path:
            sys.meta_path.remove(self)
            try:  # noqa: SIM105 - contextlib may not be loaded
                _start()
            except Exception:  # noqa: BLE001, S110 - the program must not notice
                pass


def _start() -> None:
    """Start the client of the program's own environment, else the one in CLIENT."""
    if sys.version_info < (3, 9):
        return
    from importlib.util import find_spec

    if find_spec("gpuagent_client") is None:
        _load()
    import gpuagent_client

    gpuagent_client.start()


def _load() -> None:
    """Load the client from CLIENT, which is put on no path."""
    from importlib.util import module_from_spec, spec_from_file_location

    folder = CLIENT + "/gpuagent_client"
    spec = spec_from_file_location("gpuagent_client", folder + "/__init__.py", submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        return
    module = sys.modules["gpuagent_client"] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop("gpuagent_client", None)
        raise


def watch() -> None:
    """Wait for torch, unless the environment says that there shall be no client."""
    if os.environ.get("GPUAGENT_DISABLE", "").strip().lower() not in ("1", "true", "yes", "on", "all"):
        sys.meta_path.insert(0, Watcher())
