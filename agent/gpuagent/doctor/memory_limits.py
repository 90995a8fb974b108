"""Check whether memory limits can be set here: the driver, the version of cgroups, and who may set a limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuagent.config.models import Config
from gpuagent.core.memory_limits import FIRST_DRIVER
from gpuagent.core.snapshot import Snapshot
from gpuagent.doctor.finding import Finding, Level
from gpuagent.driver.memory_limits.client import refusal_here

_SUBJECT = "memory limits"


def memory_limits(config: Config, snapshot: Snapshot, refusal: Callable[[], str] = refusal_here) -> Iterator[Finding]:
    """Find what keeps limits off; where the configuration asks for none, that is only worth knowing."""
    version = snapshot.node.driver_version
    if not snapshot.gpus or not version:
        return
    is_wanted = any(step.limit is not None for ladder in config.remedies.ladders for step in ladder.steps)
    level = Level.WARNING if is_wanted else Level.INFO
    major = version.partition(".")[0]
    if not major.isdigit() or int(major) < FIRST_DRIVER:
        text = f"driver {version} keeps no memory limits for cgroups: none is set"
        yield Finding(_SUBJECT, level, text, f"driver {FIRST_DRIVER} or newer" if is_wanted else "")
    elif why := refusal():
        yield Finding(_SUBJECT, level, why)
    elif all(gpu.mig for gpu in snapshot.gpus):
        yield Finding(_SUBJECT, level, "the driver keeps none for MIG devices: none is set")
    else:
        yield Finding(_SUBJECT, Level.OK, f"driver {version} keeps them for cgroups, and the agent may set them")
