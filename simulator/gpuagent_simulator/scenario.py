"""Load a scenario: a shipped one by its name, or any YAML file by its path."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import resources
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from gpuagent.core.problems import KeyPath, write_path
from gpuagent.core.regular_files import read_regular_file
from gpuagent.core.yaml_document import Document, Limits, YamlFault, read_document
from gpuagent_simulator.faults import Fault
from gpuagent_simulator.library import unknown_calls
from gpuagent_simulator.spec import FaultList, Scenario

MAX_FILE_BYTES = 1024**2
LIMITS = Limits(depth=64, values=200_000, typed=True)
"""Of a scenario."""

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
    return scenario.model_copy(update={"faults_file": str(path.parent / scenario.faults_file)})


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
    try:
        document = read_document(text, LIMITS)
    except YamlFault as fault:
        raise ScenarioError([f"{file}:{fault.place.line}: {fault.problem}"]) from None
    if not isinstance(document.value, dict):
        raise ScenarioError([f"{file}:1: a {model.noun} is a mapping with {model.parts}"])
    if document.problems:
        raise ScenarioError(
            [f"{file}:{place.line}: {write_path(found.path)}: {found.problem}" for place, found in document.problems]
        )
    try:
        parsed = model.model_validate({**defaults, **document.value})
    except ValidationError as error:
        raise ScenarioError(_problems(error, document, file)) from None
    problems = [
        f"{file}:{document.place_of(('faults', position, 'calls')).line}: faults[{position}].calls: {problem}"
        for position, fault in enumerate(parsed.faults)
        for problem in unknown_calls(fault.calls)
    ]
    if problems:
        raise ScenarioError(problems)
    return parsed


def check_calls(fault: Fault) -> None:
    """Refuse a fault for calls that no library has: it would never show.

    Raises:
        ValueError: with the nearest name.
    """
    for problem in unknown_calls(fault.calls):
        raise ValueError(problem)


# ---- mistakes, in words --------------------------------------------------------------------------


def _problems(error: ValidationError, document: Document, file: str) -> list[str]:
    found = []
    for detail in error.errors(include_url=False):
        path = _path_in(document, detail["loc"])
        line = document.place_of(path).line
        where = f"{write_path(path)}: " if path else ""
        found.append((line, f"{file}:{line}: {where}{_words(dict(detail), detail['loc'])}"))
    return [text for _, text in sorted(found, key=itemgetter(0))]


def _words(detail: dict[str, Any], loc: KeyPath) -> str:
    kind = detail["type"]
    if kind in ("missing", "missing_argument"):
        return f"{loc[-1]} is missing"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return "unknown key"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "union_tag_not_found":
        return "say which shape: shape: ramp, plateau, saw_tooth..."
    if kind == "union_tag_invalid":
        context = detail["ctx"]
        near = get_close_matches(str(context["tag"]), context["expected_tags"].replace("'", "").split(", "), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"unknown shape {context['tag']}{hint} (one of {context['expected_tags']})"
    message = str(detail["msg"])
    return message[0].lower() + message[1:]


def _path_in(document: Document, loc: KeyPath) -> KeyPath:
    """Return the path as it stands in the file: pydantic adds parts (names of shapes) that it has not."""
    path: KeyPath = ()
    for part in loc:
        if (*path, part) in document.places:
            path = (*path, part)
    return path
