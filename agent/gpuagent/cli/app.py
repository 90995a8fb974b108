"""The command line, put together. Messages go to standard error, data to standard output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from gpuagent.cli.alerts import ack, alerts, receivers_app, silence_app
from gpuagent.cli.apps import attach, blame, release
from gpuagent.cli.base import joined_help, new_app
from gpuagent.cli.check import CheckCommand, check
from gpuagent.cli.config import config_app, reload, rules_app
from gpuagent.cli.kill import kill
from gpuagent.cli.leaks import leaks_app
from gpuagent.cli.maintenance import demo, doctor, pause, resume
from gpuagent.cli.ps import ps
from gpuagent.cli.record import COMMAND_SETTINGS, history_app, record
from gpuagent.cli.remedies import remedies_app
from gpuagent.cli.replay import replay
from gpuagent.cli.run import run
from gpuagent.cli.service import service_app
from gpuagent.cli.status import status
from gpuagent.cli.top import top
from gpuagent.cli.usage import usage
from gpuagent.cli.workers import workers

app = new_app()

_LOOK, _ACT, _SET_UP, _TRY = "Look", "Act", "Set up and run", "Record and try"


def _add(panel: str, about: str, command: Callable[..., None], **settings: Any) -> None:
    """Hang a command below `gpuagent`, with its line in `gpuagent --help`."""
    app.command(help=joined_help(command), short_help=about, rich_help_panel=panel, **settings)(command)


def _add_group(panel: str, about: str, name: str, group: typer.Typer) -> None:
    for each in group.registered_commands:
        each.help = each.help or (joined_help(each.callback) if each.callback is not None else None)
    app.add_typer(group, name=name, short_help=about, rich_help_panel=panel)


_add(_LOOK, "The node on one page: problems, GPUs, processes", status)
_add(_LOOK, "The screen to work in: sort, filter, details, acts by key", top)
_add(_LOOK, "List the processes on the GPUs", ps)
_add(_LOOK, "Show who has used the GPUs: time, energy and cost", usage)
_add(_LOOK, "What fires, who is told, and what is silenced", alerts)
_add_group(_LOOK, "Explain leak verdicts, tune them, give feedback", "leaks", leaks_app)
_add_group(_LOOK, "Show past remedies: who did what to which process", "remedies", remedies_app)
_add_group(_LOOK, "Export the memory history that the agent keeps", "history", history_app)

_add(_ACT, "End processes and wait until their memory is free", kill)
_add(_ACT, "Ask an app to release its cached GPU memory", release)
_add(_ACT, "Find the line of code that holds growing memory", blame)
_add(_ACT, "The same in an app without the client (Python 3.14)", attach)
_add(_ACT, "Stop repeat notifications for a firing alert", ack)
_add_group(_ACT, "Suppress notifications of some alerts for a while", "silence", silence_app)
_add(_ACT, "Close NVML, for work on the driver or on a GPU", pause)
_add(_ACT, "Resume measuring after `gpuagent pause`", resume)

_add(_SET_UP, "Run the agent in the foreground", run)
config_app.command()(reload)
_add_group(_SET_UP, "Check, show or reload the configuration", "config", config_app)
_add_group(_SET_UP, "Check rule files, or run their unit tests", "rules", rules_app)
_add_group(_SET_UP, "Show and test receivers, resend undelivered messages", "receivers", receivers_app)
_add_group(_SET_UP, "Install, roll back or uninstall the systemd service", "service", service_app)
_add(_SET_UP, "Check driver, permissions and setup, with advice", doctor)
_add(_SET_UP, "Check all GPUs, as a Nagios plugin", check, cls=CheckCommand)
_add(_SET_UP, "Print how many workers fit on this machine", workers)

_add(_TRY, "Watch a leak found, reported and ended, without a GPU", demo)
_add(_TRY, "Record the GPU memory of a process or command", record, context_settings=COMMAND_SETTINGS)
_add(_TRY, "Run the leak detector over recorded traces", replay)
