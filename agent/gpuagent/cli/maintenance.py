"""`gpuagent doctor` (with `--capture` and `--bundle`), `pause`, `resume` and `demo`."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from gpuagent.cli.agent import Socket, ask_agent
from gpuagent.core.units import format_duration, parse_duration

_MARKS = {"ok": "ok     ", "info": "info   ", "warning": "WARNING", "failure": "FAILURE"}


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Configuration file; default: /etc/gpuagent/gpuagent.yaml")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(help="Examine a simulated node instead of this one", metavar="SCENARIO")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array")] = False,
    capture: Annotated[
        Path | None,
        typer.Option(help="Write what the driver answers into a new file instead, to be replayed elsewhere"),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Write a report with capture, configuration, log and alerts into a new .tar.gz")
    ] = None,
    redact: Annotated[
        bool,
        typer.Option("--redact/--no-redact", help="With --capture or --bundle: replace names, commands and serials"),
    ] = True,
    log: Annotated[Path | None, typer.Option(help="With --bundle: the agent's log, if not in the journal")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --bundle: write without asking")] = False,
) -> None:
    """Check configuration, driver, permissions, namespaces, sockets and clock, with advice for each problem.

    Exit status: 0 the agent can run here, 1 it cannot.
    """
    if capture is not None or bundle is not None:
        if capture is not None:
            write_capture(capture, simulate=simulate, redact=redact)
        if bundle is not None:
            write_bundle(bundle, config=config, simulate=simulate, log=log, redact=redact, yes=yes)
        return
    from gpuagent.doctor.examine import examine
    from gpuagent.doctor.finding import Level
    from gpuagent.node import NoSuchNode

    findings = []
    try:
        for finding in examine(config, simulate):
            findings.append(finding)
            if not as_json:
                typer.echo(f"{_MARKS[finding.level]}  {finding.subject}: {finding.text}")
                if finding.advice and finding.level is not Level.OK:
                    typer.echo(f"           -> {finding.advice}")
    except NoSuchNode as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(json.dumps([finding._asdict() for finding in findings], indent=1))
    if any(finding.level is Level.FAILURE for finding in findings):
        raise typer.Exit(1)


_RELEASED_WITHIN_SECONDS = 10.0


def pause(
    duration: Annotated[str, typer.Option("--for", help="Resume automatically after this duration")] = "10m",
    socket: Socket = None,
) -> None:
    """Close NVML, so that the driver can be reloaded, a GPU reset or MIG changed. Nothing is measured until resumed.

    Exit status: 0 every handle is closed, 1 the agent does not answer, or did not close NVML in time.
    """
    try:
        seconds = parse_duration(duration)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--for") from None
    answer = ask_agent("POST", f"/api/v1/pause?seconds={seconds}", socket)
    deadline = time.monotonic() + _RELEASED_WITHIN_SECONDS
    while not answer.get("released"):
        if time.monotonic() > deadline:
            typer.echo("The agent has not closed NVML yet: a driver call is stuck.", err=True)
            raise typer.Exit(1)
        time.sleep(0.1)
        answer = ask_agent("GET", "/api/v1/pause", socket)
    typer.echo(f"Paused for {format_duration(seconds)}: the GPUs are released. To resume earlier: gpuagent resume")


def resume(socket: Socket = None) -> None:
    """Resume measuring after `gpuagent pause`."""
    ask_agent("POST", "/api/v1/resume", socket)
    typer.echo("Resumed.")


def demo() -> None:
    """Demonstrate leak detection, alerting and a remedy in about a minute, without a GPU.

    Three real processes are started; one of them leaks simulated GPU memory. The agent detects it and delivers a
    webhook to a receiver on this machine, the process gets a real SIGTERM, its memory is freed, and the alert resolves.

    Exit status: 0 every step succeeded, 1 a step failed, 130 interrupted.
    """
    from gpuagent.demo.story import NotSeen, StageError, running, tell

    def say(text: str) -> None:
        typer.echo(f"demo: {text}")

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    signal.signal(signal.SIGHUP, interrupt)
    # Below /tmp, whatever TMPDIR says: the path of a socket has room for 107 bytes.
    with tempfile.TemporaryDirectory(prefix="gpuagent-demo-", dir="/tmp") as name:
        folder = Path(name)
        try:
            with running(folder) as stage:
                tell(stage, say)
        except KeyboardInterrupt:
            say("interrupted; everything that was started has ended")
            raise typer.Exit(130) from None
        except (NotSeen, StageError) as error:
            say(f"FAILED: {error}")
            log = folder / "agent.log"
            if log.exists():
                say("the agent said:")
                typer.echo(log.read_text(errors="replace"))
            raise typer.Exit(1) from None
    say("every step was seen")


def write_capture(path: Path, *, simulate: str | None, redact: bool) -> None:
    """Capture this machine, or a simulated one, into a new file.

    Raises:
        typer.Exit: with status 1, if the file cannot be made or there is no such scenario.
    """
    from gpuagent.core.units import format_bytes
    from gpuagent.doctor.capture.redaction import CaptureRedactor
    from gpuagent.doctor.capture.session import capture, simulated_machine, this_machine
    from gpuagent.node import NoSuchNode

    try:
        machine = simulated_machine(simulate) if simulate else this_machine()
    except NoSuchNode as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        typer.echo(f"{path}: {error.strerror}: give the name of a new file", err=True)
        raise typer.Exit(1) from None
    typer.echo("Asking the driver twice, with some seconds in between ...", err=True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        captured = capture(machine, CaptureRedactor.with_new_key() if redact else CaptureRedactor(None))
        file.write(captured.text)
    for problem in captured.problems:
        typer.echo(f"not captured: {problem}", err=True)
    typer.echo(
        f"Wrote {path}: {captured.gpus} GPUs, {captured.calls} answers, {format_bytes(len(captured.text.encode()))}."
    )
    if redact:
        typer.echo("Names and command lines of processes, users, serial numbers and UUIDs are digests.")
    else:
        typer.echo("Nothing is redacted: it has names, command lines, users, serial numbers and UUIDs as they are.")
    typer.echo(f"To replay it: gpuagent run --simulate {path}")


def write_bundle(
    path: Path, *, config: Path | None, simulate: str | None, log: Path | None, redact: bool, yes: bool
) -> None:
    """Gather a report about this machine, list it, ask, and write it into a new archive.

    Raises:
        typer.Exit: with status 1, if the file cannot be made, there is no such scenario, or the answer is no.
    """
    from gpuagent.doctor import bundle, service
    from gpuagent.doctor.capture.redaction import CaptureRedactor
    from gpuagent.doctor.capture.session import capture, simulated_machine, this_machine
    from gpuagent.doctor.examine import examine
    from gpuagent.node import NoSuchNode

    try:
        bundle.check_new(path)
        machine = simulated_machine(simulate) if simulate else this_machine()
        typer.echo("Gathering; the driver is asked twice, with some seconds in between ...", err=True)
        gathered = bundle.gather(
            bundle.BundleSources(
                config=service.configuration(config, simulated=simulate is not None)[0],
                findings=lambda: list(examine(config, simulate)),
                capture=lambda redactor: capture(machine, redactor).text,
                log=log,
            ),
            CaptureRedactor.with_new_key() if redact else CaptureRedactor(None),
        )
        typer.echo(f"{path} will contain:")
        for line in gathered.lines():
            typer.echo(line)
        if redact:
            typer.echo("Names of processes and users, command lines, serial numbers and UUIDs are digests.")
            typer.echo("Addresses and names in configuration and log may be left: read them before you send the file.")
        if not yes and not typer.confirm("Write it?"):
            raise typer.Exit(1)
        bundle.write(gathered, path)
    except NoSuchNode as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None
    except OSError as error:
        typer.echo(f"{path}: {error.strerror}: give the name of a new file", err=True)
        raise typer.Exit(1) from None
    typer.echo(f"Wrote {path}.")
