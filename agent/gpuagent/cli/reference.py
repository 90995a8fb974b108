"""The reference of all commands, made from the commands themselves: `docs/commands.md`.

Run `python -m gpuagent.cli.reference > docs/commands.md` after a change of a command.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import typer

from gpuagent.cli.app import app
from gpuagent.cli.manual import argument_usage

_INTRODUCTION = """\
# Commands

<!-- Made by `python -m gpuagent.cli.reference`: change the commands, not this file. -->

What `gpuagent COMMAND --help` says, on one page; `man gpuagent` has it too, once the service is installed. Data goes to
standard output, messages to standard error. Where no status is named, 0 is done and 1 is not; a wrong command line is
2, unless something else is said.
"""


def render() -> str:
    """Return the whole page."""
    commands = list(leaves("gpuagent", typer.main.get_command(app)))
    lines = [_INTRODUCTION, "| command | |", "|---|---|"]
    for name, command in commands:
        first, _, _ = _paragraphs(command)[0].partition(". ")
        lines.append(f"| [`{name}`](#{name.replace(' ', '-')}) | {_cell(first.rstrip('.:'))} |")
    lines.append("")
    for name, command in commands:
        lines += _section(name, command)
    return "\n".join(lines)


def leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, under its full name. A group may be one, too."""
    below = getattr(command, "commands", None)
    if below is None or getattr(command, "invoke_without_command", False):
        yield name, command
    for word, each in (below or {}).items():
        if not each.hidden:
            yield from leaves(f"{name} {word}", each)


def _section(name: str, command: Any) -> Iterator[str]:
    arguments = [argument_usage(each) for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.name != "help"]
    yield f"## {name}\n"
    yield f"`{' '.join([name, *(['[OPTION]...'] if options else []), *arguments])}`\n"
    for paragraph in _paragraphs(command):
        yield textwrap.fill(paragraph, 120) + "\n"
    described = [each for each in command.params if not getattr(each, "hidden", False) and each.name != "help"]
    if described:
        yield "| argument or option | | default |"
        yield "|---|---|---|"
        for each in described:
            yield f"| {_name(each)} | {_cell(each.help or '')} | {_default(each)} |"
        yield ""


def _paragraphs(command: Any) -> list[str]:
    text = textwrap.dedent(command.help or "").strip()
    return [" ".join(part.split()) for part in text.split("\n\n")]


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{argument_usage(parameter)}`"
    return ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))


def _default(parameter: Any) -> str:
    default = parameter.default
    return "" if callable(default) or not default else f"`{default}`"


def _cell(text: str) -> str:
    """Return text that cannot break out of a table, without the marks of rich markup."""
    return " ".join(text.split()).replace("\\[", "[").replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(render())
