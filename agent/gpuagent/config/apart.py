"""The configuration, read by a child: what checks it (pydantic and the models) takes some 9 MiB, for a moment's work.

Memory that Python code once took is never given back: it is spread over everything that came later. The agent runs for
months on nodes that are short of memory, so it never loads those modules; at its start and at each reload a child does.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpuagent.config.faults import ConfigError
from gpuagent.config.record import Record

if TYPE_CHECKING:
    from gpuagent.config.models import Config

log = logging.getLogger(__name__)


def load_config_apart(path: Path | None, *, python: str = sys.executable) -> Config:
    """As `load_config`, but what comes is a `Record` that has all that a `Config` has.

    Where no child can be had, or it does not answer, the file is read in this process.

    Raises:
        ConfigError: with every fault.
    """
    # -P: modules are never taken from the folder that the agent was started in.
    command = [python, "-P", "-m", "gpuagent.config.child", *([] if path is None else [str(path)])]
    try:
        child = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)  # noqa: S603  ours
        outcome = pickle.loads(child.stdout)  # noqa: S301  our own child wrote it
    except (OSError, subprocess.SubprocessError, EOFError, pickle.UnpicklingError) as error:
        log.warning("no child could read the configuration (%s): it is read here", error)
        from gpuagent.config.load import load_config  # noqa: PLC0415  the child is there to avoid it

        return load_config(path, is_root=os.geteuid() == 0)
    if isinstance(outcome, ConfigError):
        raise outcome
    if not isinstance(outcome, Record):
        raise TypeError(f"the child read a configuration and told {type(outcome).__name__}")
    return cast("Config", outcome)
