"""The manual page and the completion of the command, made from the commands themselves, for whoever installs it."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

from gpuagent import __version__
from gpuagent.install.placing import Placed

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
    words = [argument_usage(each) for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    return " ".join([name, *(["[OPTION]..."] if options else []), *words])


def argument_usage(parameter: Any) -> str:
    """Return an argument as a line of usage has it: `[PID]...` for any number of them."""
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
            yield f".I {_text(argument_usage(parameter))}"
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
