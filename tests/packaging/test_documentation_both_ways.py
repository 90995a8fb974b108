"""What exists is documented, and what is documented exists: commands, statuses, variables, outcomes, pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import typer

from gpuagent.cli import reference
from gpuagent.cli.app import app
from gpuagent.cli.reference import leaves
from gpuagent_alerts.remedies.outcome import RunResult
from tests.packaging.documented import PAGES, ROOT

DOCS = ROOT / "docs"
TEXT = "\n".join(page.read_text() for page in PAGES)
INTERNAL = {"GPUAGENT_RENEWALS", "GPUAGENT_COMPLETE", "GPUAGENT_WORKERS"}
"""Set by the agent or the client for themselves, or by the shell's completion."""
FOR_TESTS = {"GPUAGENT_TORTURE"}


def test_commands_are_current() -> None:
    """Every command and option is on its page, no other: `python -m gpuagent.cli.reference` makes it."""
    assert (DOCS / "commands.md").read_text() == reference.render()


def test_every_page_is_in_the_index() -> None:
    """docs/README.md leads to all of them."""
    index = (DOCS / "README.md").read_text()
    assert [page.name for page in DOCS.glob("*.md") if page.name != "README.md" and f"({page.name})" not in index] == []


def test_statuses_of_commands_are_told() -> None:
    """A status other than 0, 1 and 2 is in the help of its command: whoever writes a script needs it."""
    for name, command in leaves("gpuagent", typer.main.get_command(app)):
        told = re.search(r"Exit status: (.*)", " ".join((command.help or "").split()))
        codes = _exit_codes(command)
        assert codes <= {0, 1, 2} or told, name
        assert all(str(code) in told[1] for code in codes - {0, 1, 2} if told), (name, codes)


def _exit_codes(command: object) -> set[int]:
    """Numbers that the command's own function gives to `typer.Exit`; constants of its module are looked up."""
    function: Any = getattr(command, "callback", None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return set()
    tree = ast.parse(Path(code.co_filename).read_text())
    body = next(each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and each.name == code.co_name)
    found: set[int] = set()
    for call in ast.walk(body):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "typer.Exit":
            for argument in call.args:
                value = function.__globals__.get(argument.id) if isinstance(argument, ast.Name) else argument
                value = value.value if isinstance(value, ast.Constant) else value
                found |= {value} if isinstance(value, int) else set()
    return found


def test_variables_of_the_environment() -> None:
    """Each that the program reads is documented, and each that is documented is read."""
    sources = [
        path for root in ("agent", "alerts", "exporters", "client", "simulator") for path in (ROOT / root).rglob("*.py")
    ]
    read = {
        name
        for path in sources
        if "examples" not in path.parts and path.name != "journal.py"  # fields of the journal: see below
        for name in re.findall(r"""["'](?:environ\.)?(GPUAGENT_[A-Z_]*[A-Z])["']""", path.read_text())
    }
    documented = set(re.findall(r"\bGPUAGENT_[A-Z_]*[A-Z]\b", TEXT))
    assert read - documented - INTERNAL == set()
    programs = "\n".join(path.read_text() for path in sources)
    unknown = {name for name in documented - FOR_TESTS if name not in programs}
    assert {name for name in unknown if not _is_field(name.removeprefix("GPUAGENT_"), programs)} == set()


def _is_field(name: str, programs: str) -> bool:
    """Fields of the journal are named without their prefix, as labels some of them in small letters."""
    return f'"{name}"' in programs or f'"{name.lower()}"' in programs


def test_outcomes_of_remedies() -> None:
    """Each result of the audit log is explained on the page of remedies, and no other."""
    text = (DOCS / "remedies.md").read_text()
    table = text.partition("| result | meaning |")[2].partition("\n\n")[0]
    named = {name for row in table.splitlines() if row.startswith("| `") for name in _ticked(row.split("|")[1])}
    assert named == set(RunResult)


def _ticked(cell: str) -> list[str]:
    return re.findall(r"`([a-z_]+)`", cell)


def test_pages_name_no_file_that_is_gone() -> None:
    """A path in code marks that looks like one of this repository is there."""
    roots = "agent|alerts|client|deploy|docs|exporters|grafana|scripts|simulator|systemd|tests"
    for page in PAGES:
        for path in re.findall(rf"`((?:{roots})/[\w./-]+)(?:::[\w\[\]-]+)?`", page.read_text()):
            places = (ROOT, *(ROOT / root for root in ("agent", "alerts", "exporters", "client", "simulator")))
            assert any((place / path).exists() for place in places), f"{page.name}: {path}"
