"""The command line, put together. Messages go to standard error, data to standard output."""

from __future__ import annotations

from gpuagent.cli.alerts import ack, alerts, receivers_app, silence_app
from gpuagent.cli.apps import blame, release
from gpuagent.cli.attach import attach
from gpuagent.cli.base import new_app
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
from gpuagent.cli.workers import workers

app = new_app()

for command in (
    run,
    status,
    top,
    ps,
    alerts,
    ack,
    blame,
    attach,
    release,
    kill,
    workers,
    replay,
    doctor,
    pause,
    resume,
):
    app.command()(command)
app.command(cls=CheckCommand)(check)
app.command(context_settings=COMMAND_SETTINGS)(record)
app.command()(demo)
config_app.command()(reload)
app.add_typer(config_app, name="config")
app.add_typer(leaks_app, name="leaks")
app.add_typer(history_app, name="history")
app.add_typer(remedies_app, name="remedies")
app.add_typer(silence_app, name="silence")
app.add_typer(receivers_app, name="receivers")
app.add_typer(rules_app, name="rules")
app.add_typer(service_app, name="service")
