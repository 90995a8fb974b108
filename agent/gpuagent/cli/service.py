"""`gpuagent service`: place this version on the machine as a service, go back to the one before, take it away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpuagent import __version__

if TYPE_CHECKING:
    from gpuagent.install.placing import Placed


service_app = typer.Typer(no_args_is_help=True, help="Install, roll back or uninstall the systemd service.")


@service_app.command()
def install(
    context: typer.Context,
    root: Annotated[
        Path, typer.Option(help="Staging directory for packagers; nothing else is changed", metavar="FOLDER")
    ] = Path("/"),
    prefix: Annotated[
        Path,
        typer.Option(help="Prefix for unit, command, man page and completion; /usr for a package", metavar="FOLDER"),
    ] = Path("/usr/local"),
    start: Annotated[bool, typer.Option("--start/--no-start", help="Start the service now and at every boot")] = True,
) -> None:
    """Install this version as the systemd service of this machine, and start it.

    Installs the environment this command runs from, the unit, its user and directories, the command, the man page and
    completion for bash, zsh and fish. An existing configuration is kept. If this version rejects it or does not start,
    the previous version keeps running. Run it again to repair an installation.

    Exit status: 0 done, 1 failed.
    """
    from gpuagent.config.reference import starter
    from gpuagent.install.install import Installation, System
    from gpuagent.install.placing import Layout, Placed

    layout = Layout(root.resolve(), prefix)
    if not layout.staged:
        _need_root()
    # Of a package: the day of its source (https://reproducible-builds.org/specs/source-date-epoch/).
    made = datetime.fromtimestamp(float(os.environ.get("SOURCE_DATE_EPOCH") or time.time()), UTC).date()
    files = [
        *completion_scripts(prefix),
        Placed(prefix / "share/man/man1/gpuagent.1", manual(context.find_root().command, made)),
    ]
    installation = Installation(
        layout, System(), files, starter(), Path(sys.prefix), Path(sys.base_prefix), sys.executable
    )
    _tell(installation.run(start=start))


@service_app.command()
def rollback() -> None:
    """Switch back to the version that ran before the last installation. Running it twice returns to the current one.

    Exit status: 0 done, 1 failed.
    """
    from gpuagent.install.placing import InstallFault, Layout, Releases, check_not_packaged

    _need_root()
    try:
        check_not_packaged(Layout())
    except InstallFault as fault:
        typer.echo(fault, err=True)
        raise typer.Exit(1) from None
    previous = Releases(Layout()).previous
    if previous is None:
        typer.echo("No previous version is installed.", err=True)
        raise typer.Exit(1)
    done = subprocess.run([previous / "bin/gpuagent", "service", "install"], check=False)  # noqa: S603
    raise typer.Exit(1 if done.returncode else 0)


@service_app.command()
def uninstall(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove the configuration, the state and the user")
    ] = False,
) -> None:
    """Stop and uninstall the service. Configuration and state are kept.

    Exit status: 0 done, 1 failed.
    """
    from gpuagent.install.install import uninstall as take_away

    _need_root()
    _tell(take_away(purge=purge))


def _need_root() -> None:
    if os.geteuid() != 0:
        typer.echo(f"This needs root: sudo {' '.join(['gpuagent', *sys.argv[1:]])}", err=True)
        raise typer.Exit(1)


def _tell(lines: Iterator[str]) -> None:
    from gpuagent.install.placing import InstallFault

    try:
        for line in lines:
            typer.echo(line)
    except (InstallFault, OSError) as error:
        typer.echo(error, err=True)
        raise typer.Exit(1) from None


_ETC_FISH = Path("/etc/fish/completions")
_ZSH_AT_ONCE = """
# zsh loads this file when it completes the command for the first time: it wants an answer then, too.
if [ "$funcstack[1]" = "_gpuagent" ]; then
  _gpuagent_completion "$@"
fi
"""


def completion_scripts(prefix: Path) -> Iterator[Placed]:
    """Yield what each shell loads to complete the command: typer's own scripts, where shells look by themselves.

    `gpuagent --install-completion` writes to one user's start-up files instead; a machine-wide installation must not.
    """
    from typer._completion_shared import get_completion_script  # what --show-completion prints; has no public name

    from gpuagent.install.placing import Placed

    share = prefix / "share"
    places = {
        "bash": share / "bash-completion/completions/gpuagent",
        "zsh": share / "zsh/site-functions/_gpuagent",
        # fish looks below /usr and in /etc, and not below /usr/local.
        "fish": (share / "fish/vendor_completions.d" if prefix == Path("/usr") else _ETC_FISH) / "gpuagent.fish",
    }
    for shell, place in places.items():
        text = get_completion_script(prog_name="gpuagent", complete_var="_GPUAGENT_COMPLETE", shell=shell) + "\n"
        yield Placed(place, text + _ZSH_AT_ONCE if shell == "zsh" else text)


_FILES = {
    "/etc/gpuagent/gpuagent.yaml": "The configuration. Not needed; see \\fBgpuagent config show\\fR.",
    "/etc/gpuagent/secrets/": "A file for each secret that the configuration names as secrets/NAME.",
    "/run/gpuagent/control.sock": "Commands; for root and the group gpuagent.",
    "/run/gpuagent-client/client.sock": "Apps with the embedded client; for everybody.",
    "/var/lib/gpuagent/": "Alerts, messages, silences, what the leak detector remembers, and the record of remedies.",
    "/opt/gpuagent/": "The environment of the service: \\fBcurrent\\fR, and \\fBprevious\\fR to go back to.",
}


def manual(group: Any, made: date) -> str:
    """Return the manual page gpuagent(1), as `man` reads it; `made` stands in its last line.

    What is registered is in it, and nothing else. The format is man(7):
    https://man7.org/linux/man-pages/man7/man.7.html
    """
    return "\n".join([
        f'.TH GPUAGENT 1 "{made}" "gpuagent {_text(__version__)}" "User Commands"',
        ".SH NAME",
        "gpuagent \\- node agent for GPU memory",
        ".SH SYNOPSIS",
        ".B gpuagent",
        "\\fICOMMAND\\fR [\\fIOPTION\\fR]... [\\fIARGUMENT\\fR]...",
        ".SH DESCRIPTION",
        _text(group.help),
        ".PP",
        "Messages go to standard error, data to standard output.",
        ".SH OPTIONS",
        *_parameters(group),
        ".SH COMMANDS",
        *_commands("gpuagent", group),
        ".SH FILES",
        *(line for path, about in _FILES.items() for line in (".TP", f".I {_text(path)}", about)),
        ".SH SEE ALSO",
        ".BR systemctl (1),",
        ".BR journalctl (1),",
        ".BR nvidia\\-smi (1)",
        "",
    ])  # fmt: skip


def _commands(name: str, group: Any) -> Iterator[str]:
    """Yield each command, those of groups under their full names."""
    for word, command in group.commands.items():
        if command.hidden:
            continue
        whole = f"{name} {word}"
        yield f".SS {_text(_usage(whole, command))}"
        yield from _paragraphs(command.help or "")
        yield from _parameters(command)
        if hasattr(command, "commands"):
            yield from _commands(whole, command)


def _usage(name: str, command: Any) -> str:
    if hasattr(command, "commands"):
        return f"{name} [OPTION]... [COMMAND]" if command.invoke_without_command else f"{name} COMMAND"
    words = [_argument(each) for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    return " ".join([name, *(["[OPTION]..."] if options else []), *words])


def _argument(parameter: Any) -> str:
    word = parameter.metavar or parameter.name.upper()
    if not parameter.required and not word.startswith("["):
        word = f"[{word}]"
    return f"{word}..." if parameter.nargs == -1 else word


def _parameters(command: Any) -> Iterator[str]:
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        yield ".TP"
        if parameter.param_type_name == "argument":
            yield f".I {_text(_argument(parameter))}"
        else:
            yield ", ".join(f"\\fB{_text(each)}\\fR" for each in (*parameter.opts, *parameter.secondary_opts)) + (
                "" if parameter.is_flag else f" \\fI{_text(_value(parameter))}\\fR"
            )
        yield _text((parameter.help or "").replace("\\[", "[")) or "."  # the help is rich markup


def _value(parameter: Any) -> str:
    """Return what an option takes, in a word."""
    if parameter.metavar:
        return str(parameter.metavar)
    name = type(parameter.type).__name__.lower()
    return next((word for mark, word in (("path", "FILE"), ("int", "N"), ("float", "NUMBER")) if mark in name), "TEXT")


def _paragraphs(help_text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", textwrap.dedent(help_text).strip())):
        if number:
            yield ".PP"
        yield _text(paragraph)


def _text(words: str) -> str:
    """Words as roff takes them: no request begins in them, a hyphen is one that can be copied, code stands out."""
    plain = " ".join(words.split()).replace("\\", "\\e").replace("-", "\\-")
    plain = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", plain)
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain
