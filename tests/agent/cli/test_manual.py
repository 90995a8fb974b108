"""The manual page, and completion: made from the commands, so that neither can lag behind them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import typer

from gpuagent.cli.app import app
from gpuagent.cli.manual import completion_scripts, manual


@pytest.fixture(scope="module")
def page() -> str:
    """The page's source."""
    return manual(typer.main.get_command(app), date(2026, 1, 2))


def commands(group: Any, name: str = "gpuagent") -> Iterator[tuple[str, Any]]:
    """Every command by its full name."""
    for word, command in group.commands.items():
        yield f"{name} {word}", command
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} {word}")


def plain(text: str) -> str:
    """As it is shown."""
    return text.replace("\\-", "-").replace("\\e", "\\")


def test_every_command_with_every_option(page: str) -> None:
    """Each has a section of its own, in which each of its options is explained."""
    sections = {part.split("\n", 1)[0].split(" [")[0]: part for part in plain(page).split("\n.SS ")}
    found = list(commands(typer.main.get_command(app)))
    assert len(found) > 20
    for name, command in found:
        section = next(part for head, part in sections.items() if head == name or head.startswith(f"{name} "))
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert f"\\fB{option}\\fR" in section, f"{name} {option}"


def test_no_line_is_taken_for_a_request(page: str) -> None:
    """A line of roff that begins with a dot is an instruction: only ours do."""
    known = (".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".I", ".BR")
    assert {line.split(" ")[0] for line in page.splitlines() if line.startswith((".", "'"))} <= set(known)


@pytest.mark.needs("man")
def test_man_reads_it_without_a_warning(page: str, tmp_path: Path) -> None:
    """With groff's warnings on, as Debian's lintian has it."""
    file = tmp_path / "gpuagent.1"
    file.write_text(page, encoding="utf-8")
    environ = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANROFFSEQ": ""}
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", file], capture_output=True, text=True, check=True, env=environ
    )
    assert done.stderr == ""
    assert "gpuagent - node agent for GPU memory" in done.stdout


@pytest.mark.needs("lexgrog")
def test_whatis_finds_it(page: str, tmp_path: Path) -> None:
    """The line that `whatis` and `apropos` show."""
    file = tmp_path / "gpuagent.1"
    file.write_text(page, encoding="utf-8")
    done = subprocess.run(["lexgrog", file], capture_output=True, text=True, check=True)
    assert "gpuagent - node agent for GPU memory" in done.stdout


def test_bash_completes(tmp_path: Path) -> None:
    """The script that is installed, in a real bash: the words that follow, from the command itself."""
    scripts = {file.path.name: file for file in completion_scripts(Path("/usr/local"))}
    script = tmp_path / "completion"
    script.write_text(scripts["gpuagent"].text)
    program = Path(sys.executable).with_name("gpuagent")
    ask = f'COMP_WORDS=(gpuagent con) COMP_CWORD=1; _gpuagent_completion {program}; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", f". {script}; {ask}"], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.split() == ["config"]


def test_places_of_the_shells() -> None:
    """Where bash-completion, zsh and fish look by themselves."""
    assert [str(file.path) for file in completion_scripts(Path("/usr/local"))] == [
        "/usr/local/share/bash-completion/completions/gpuagent",
        "/usr/local/share/zsh/site-functions/_gpuagent",
        "/etc/fish/completions/gpuagent.fish",
    ]
    assert str(list(completion_scripts(Path("/usr")))[2].path) == "/usr/share/fish/vendor_completions.d/gpuagent.fish"
