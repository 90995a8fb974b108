"""`gpuagent doctor --capture` and `--bundle`: what the driver answers, and all else that a report needs, as a file."""

from __future__ import annotations

import os
from pathlib import Path

import typer


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
