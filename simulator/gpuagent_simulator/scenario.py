"""Load a scenario: a shipped one by its name, or any YAML file by its path."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import TypeVar

from gpuagent.core.problems import Problem, explain, write_path
from gpuagent.core.regular_files import read_regular_file
from gpuagent.core.sections import read_section
from gpuagent.core.yaml_document import Document, Place, YamlFault, read_document
from gpuagent_simulator.faults import Fault
from gpuagent_simulator.library import unknown_calls
from gpuagent_simulator.spec import LIMITS, FaultList, Scenario

MAX_FILE_BYTES = 1024**2

S = TypeVar("S", Scenario, FaultList)


class ScenarioError(Exception):
    """Why a scenario cannot be used.

    Every mistake on a line of its own, with file, line and key.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


def shipped_scenarios() -> list[str]:
    """Return the names of the scenarios that come with gpuagent."""
    files = resources.files(__package__).joinpath("scenarios").iterdir()
    return sorted(file.name.removesuffix(".yaml") for file in files if file.name.endswith(".yaml"))


def load_scenario(name_or_path: str) -> Scenario:
    """Load a shipped scenario (`leak`) or a file (`./mine.yaml`).

    Raises:
        ScenarioError: there is no such scenario, or it has mistakes.
    """
    if name_or_path in shipped_scenarios():
        text = resources.files(__package__).joinpath("scenarios", f"{name_or_path}.yaml").read_text(encoding="utf-8")
        return parse_scenario(text, file=f"{name_or_path}.yaml", name=name_or_path)
    path = Path(name_or_path)
    if not path.suffix and not path.exists():
        known = ", ".join(shipped_scenarios())
        raise ScenarioError([f"no scenario {name_or_path!r}: give a path to a YAML file or one of {known}"])
    text = _read_text(path)
    scenario = parse_scenario(text, file=str(path), name=path.stem)
    if not scenario.faults_file:
        return scenario
    return replace(scenario, faults_file=str(path.parent / scenario.faults_file))


def load_faults(path: Path, gpu_count: int) -> tuple[Fault, ...]:
    """Load the faults of a scenario's `faults_file`; an empty file has none.

    Raises:
        ScenarioError: it cannot be read, or has mistakes.
    """
    text = _read_text(path)
    if not text.strip():
        return ()
    faults = _parse(FaultList, text, str(path), {}).faults
    problems = [
        f"{path}: faults[{position}] is for GPU {fault.gpu} of {gpu_count}"
        for position, fault in enumerate(faults)
        if fault.gpu is not None and fault.gpu >= gpu_count
    ]
    if problems:
        raise ScenarioError(problems)
    return faults


def _read_text(path: Path) -> str:
    try:
        raw = read_regular_file(path, MAX_FILE_BYTES)
        text = raw.decode("utf-8")
    except OSError as error:
        raise ScenarioError([f"{path}: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ScenarioError([f"{path}: not UTF-8 text: {error}"]) from error
    if len(raw) > MAX_FILE_BYTES:
        raise ScenarioError([f"{path}: larger than {MAX_FILE_BYTES // 1024} KiB"])
    return text


def parse_scenario(text: str, *, file: str = "scenario", name: str = "unnamed") -> Scenario:
    """Parse a scenario from its text; `file` is what messages call it, `name` its name if it gives none.

    Raises:
        ScenarioError: with every mistake.
    """
    return _parse(Scenario, text, file, {"name": name})


def _parse(model: type[S], text: str, file: str, defaults: dict[str, str]) -> S:
    document = _read_document(text, file)
    if not isinstance(document.value, dict):
        raise ScenarioError([f"{file}:1: a {model.noun} is a mapping with {model.parts}"])
    parsed, problems = read_section(model, document.value, defaults=defaults)
    problems += _unknown_calls(parsed.faults if parsed is not None else ())
    found = document.problems + [(document.place_of(problem.path), problem) for problem in problems]
    if parsed is None or found:
        lines = dict.fromkeys(_line(file, place, problem) for place, problem in sorted(found, key=_line_number))
        raise ScenarioError(list(lines))
    return parsed


def _unknown_calls(faults: tuple[Fault, ...]) -> list[Problem]:
    return [
        Problem(("faults", position, "calls"), problem)
        for position, fault in enumerate(faults)
        for problem in unknown_calls(fault.calls)
    ]


def _read_document(text: str, file: str) -> Document:
    try:
        return read_document(text, LIMITS)
    except YamlFault as bad:
        raise ScenarioError([f"{file}:{bad.place.line}: {bad.problem}"]) from None


def _line_number(found: tuple[Place, Problem]) -> int:
    return found[0].line


def _line(file: str, place: Place, problem: Problem) -> str:
    where = f"{write_path(problem.path)}: " if problem.path else ""
    return f"{file}:{place.line}: {where}{explain(problem.problem, problem.allowed, problem.suggestion)}"


def check_calls(fault: Fault) -> None:
    """Refuse a fault for calls that no library has: it would never show.

    Raises:
        ValueError: with the nearest name.
    """
    for problem in unknown_calls(fault.calls):
        raise ValueError(problem)
