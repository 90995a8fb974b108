"""What the documentation names exists: links, commands with their options, keys, metrics. And the other way round."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from gpuagent.cli.app import app
from gpuagent.config.load import load_config
from gpuagent.config.models import Config
from gpuagent.config.rules import load_rules
from gpuagent.config_notes.notes import route_notes
from gpuagent.core.metrics import FAMILIES
from gpuagent_alerts.rules.alert_labels import labels_of_rules
from gpuagent_alerts.rules.file import load_rule_text
from tests.packaging.documented import PAGES, ROOT

GENERATED = {"metrics.md", "configuration.md"}
NO_METRIC = {
    "gpuagent_client", "gpuagent_alerts", "gpuagent_exporters", "gpuagent_simulator",  # packages
    "gpuagent_missing_data",  # an annotation
}  # fmt: skip


def name_of(page: Path) -> str:
    """For the names of the tests."""
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """What stands between the fences."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """Lines of indented blocks that begin with the command, without what the shell does to them."""
    for line in page.read_text().splitlines():
        found = re.fullmatch(r" {4}(?: {3})?(?:\.venv/bin/)?gpuagent( [^#]*?)?(?: {2,}#.*)?", line)
        if found is not None and found[1]:
            yield shlex.split(re.split(r" [&|>]( |$)", found[1])[0])


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that is meant, and what is left for it. Typer has a click of its own, so types say nothing."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link is a file of the repository."""
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_exist(page: Path) -> None:
    """Each has this name, and takes these options."""
    for words in commands(page):
        if words[0].startswith("-"):
            continue
        command, rest = command_of(words)
        assert not hasattr(command, "commands") or not rest, f"gpuagent {' '.join(words)}: there is no such command"
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if "--" in rest:
            rest = rest[: rest.index("--")]
        used = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert used <= known, f"gpuagent {' '.join(words)}"


def test_every_command_is_documented() -> None:
    """Somebody who reads all pages has met every one of them."""
    text = "\n".join(page.read_text() for page in PAGES)
    group: Any = typer.main.get_command(app)
    assert [name for name in group.commands if f"gpuagent {name}" not in text] == []


def test_the_first_configuration_tells_of_a_leak(tmp_path: Path) -> None:
    """Who copies the README's configuration hears of a leak, which is a warning, and not only of a full GPU."""
    (block,) = blocks(ROOT / "README.md", "yaml")
    file = tmp_path / "gpuagent.yaml"
    file.write_text(block)
    config = load_config(file, is_root=True)
    alerts = labels_of_rules(load_rules(config))
    assert "GpuProcessMemoryLeak" in {name for alert in alerts for name in alert.values("alertname") or ()}
    assert "GpuProcessMemoryLeak" not in "\n".join(route_notes(config, alerts, {}, most_named=100))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_yaml_is_what_it_says(page: Path, tmp_path: Path) -> None:
    """Configuration loads, rules load, and nothing else is shown but scrape configurations and other tools' files."""
    for block in blocks(page, "yaml"):
        keys = yaml.safe_load(block)
        assert isinstance(keys, dict)
        if "groups" in keys:
            load_rule_text(block, file="page")
        elif set(keys) <= set(Config.keys):
            file = tmp_path / "gpuagent.yaml"
            file.write_text(block)
            file.chmod(0o600)
            load_config(file, environ={}, is_root=True)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_compiles(page: Path) -> None:
    """Each block by itself."""
    for block in blocks(page, "python"):
        compile(block, name_of(page), "exec")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in GENERATED], ids=name_of)
def test_metrics_exist(page: Path) -> None:
    """EXP-09: a name that looks like a metric is one."""
    known = {family.name for family in FAMILIES} | NO_METRIC
    named = set(re.findall(r"(?<![\w/.:-])gpuagent_[a-z0-9_]+(?![\w/.*{(-]|\.\w)", page.read_text()))
    assert {name for name in named if name not in known and not name.endswith("_")} == set()


def test_ladders_against_leaks_ask_for_more_than_one_witness() -> None:
    """Every ladder that is shown, and the demo's, leaves a cache that fills for days alone: it asks for `confirmed`."""
    files = [*PAGES, *(ROOT / "examples").rglob("*.yaml"), ROOT / "agent/gpuagent/demo/story.py"]
    asked = [
        (name_of(file), matchers)
        for file in files
        for matchers in re.findall(r"match\"?: (\[.*GpuProcessMemoryLeak.*?\])", file.read_text())
    ]

    assert {"README.md", "docs/remedies.md", "docs/configuration.md", "agent/gpuagent/demo/story.py"} <= {
        page for page, _ in asked
    }
    assert [(page, matchers) for page, matchers in asked if 'evidence="confirmed"' not in matchers] == []
