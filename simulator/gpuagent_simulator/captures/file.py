"""Read a capture: YAML with `gpuagent-capture: 1`, recorded by `gpuagent doctor --capture` or written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from gpuagent.core.yaml_document import Limits, YamlFault, read_document
from gpuagent_simulator.abi import parse_code
from gpuagent_simulator.captures.lists import field_error, field_key
from gpuagent_simulator.scenario import ScenarioError

MARK = "gpuagent-capture"
VERSION = 1
MAX_FILE_BYTES = 8 * 1024**2
PASSES = "passes"
_LIMITS = Limits(depth=32, values=1_000_000)
_DEFAULT_SECONDS = 5.0
_RANGE = re.compile(r"(\d+)/(\d+)-(\d+)")
_MOST_SCOPES = 256
_HEADER = ("description", "sources", "captured", "host")
KEYS = frozenset({MARK, "base", "system", "gpus", "processes", "seconds_between_passes", "faults", *_HEADER})
GPU_KEYS = frozenset({"base", "count", "calls", "fields", "mig", "latency_us"})


class NotCaptured:
    """Stands for what was not captured: an answer may well be null."""


MISSING = NotCaptured()


class Answers:
    """Answers by key, in one pass or in two. A key with `*` or `?` is for all calls that have none of their own."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._given = given
        self._patterns = [key for key in given if "*" in key or "?" in key]

    def find(self, key: str, number: int) -> Any:
        """Return what was answered in that pass, or else in the other; MISSING if in none."""
        if key in self._given:
            found = self._given[key]
        else:
            pattern = next((each for each in self._patterns if fnmatchcase(key, each)), None)
            if pattern is None:
                return MISSING
            found = self._given[pattern]
        if isinstance(found, Mapping) and PASSES in found:
            both = found[PASSES]
            return both[min(number, len(both) - 1)]
        return found

    def has_symbol(self, symbol: str) -> bool:
        """Return whether any call of a symbol has an answer."""
        return self.find(symbol, 0) is not MISSING or any(key.startswith(f"{symbol}(") for key in self._given)

    def __iter__(self) -> Iterator[str]:
        return iter(self._given)


@dataclass(frozen=True)
class CapturedDevice:
    """What a GPU or a MIG device has answered."""

    calls: Answers
    fields: Answers
    instances: Mapping[int, CapturedDevice] = field(default_factory=dict)
    """MIG devices by their slots."""
    base: Mapping[str, Any] | None = None
    """GPU of a scenario that answers what was not captured; None: nothing does."""


@dataclass(frozen=True)
class Capture:
    """A whole capture."""

    name: str
    description: str
    system: Answers
    gpus: tuple[CapturedDevice, ...]
    processes: Mapping[int, Mapping[str, Any]]
    """Facts of /proc by pid."""
    host: Mapping[str, Any]
    seconds_between_passes: float
    faults: tuple[Any, ...] = ()

    def devices(self) -> Iterator[CapturedDevice]:
        """Yield every GPU and MIG device."""
        for gpu in self.gpus:
            yield gpu
            yield from gpu.instances.values()


def is_capture(text: str) -> bool:
    """Return whether a file is a capture, by its content."""
    return any(line.startswith(f"{MARK}:") for line in text.splitlines())


def parse_capture(text: str, *, file: str, name: str) -> Capture:
    """Parse a capture; `file` is what messages call it.

    Raises:
        ScenarioError: with every mistake that can be told without a call.
    """
    try:
        document = read_document(text, _LIMITS)
    except YamlFault as bad:
        raise ScenarioError([f"{file}:{bad.place.line}: {bad.problem}"]) from None
    problems = [f"{file}:{place.line}: {problem.problem}" for place, problem in document.problems]
    top = document.value
    if not isinstance(top, Mapping):
        raise ScenarioError([*problems, f"{file}:1: a capture is a mapping"])
    problems += [f"{file}: {each}" for each in _problems(top)]
    if problems:
        raise ScenarioError(problems)
    return Capture(
        name=name,
        description=str(top.get("description") or ""),
        system=Answers(top.get("system") or {}),
        gpus=tuple(_gpus(top)),
        processes={int(pid): facts for pid, facts in (top.get("processes") or {}).items()},
        host=top.get("host") or {},
        seconds_between_passes=float(top.get("seconds_between_passes", _DEFAULT_SECONDS)),
        faults=tuple(top.get("faults") or ()),
    )


def _gpus(top: Mapping[str, Any]) -> Iterator[CapturedDevice]:
    for given in top.get("gpus") or ():
        base = given.get("base", top.get("base"))
        device = _device(given, {"model": base} if isinstance(base, str) else base)
        yield from [device] * int(given.get("count", 1))


def _device(given: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> CapturedDevice:
    instances = {int(slot): _device(each) for slot, each in (given.get("mig") or {}).items()}
    fields = {key: answer for name, answer in (given.get("fields") or {}).items() for key in _field_keys(str(name))}
    return CapturedDevice(Answers(given.get("calls") or {}), Answers(fields), instances, base)


def _field_keys(name: str) -> Iterator[str]:
    """Yield the fields that a key is for: `"206/0-17"` is field 206 of 18 links."""
    found = _RANGE.fullmatch(name)
    if found is None:
        yield name.removesuffix("/0")
        return
    field_id, first, last = map(int, found.groups())
    for scope in range(first, min(last, first + _MOST_SCOPES) + 1):
        yield field_key(field_id, scope)


def _problems(top: Mapping[str, Any]) -> Iterator[str]:
    if top.get(MARK) != VERSION:
        yield f"{MARK}: version {top.get(MARK)} is none that this gpuagent reads; it reads {VERSION}"
        return
    yield from _unknown_keys(top, KEYS, "")
    for key, kind in (("system", Mapping), ("processes", Mapping), ("host", Mapping), ("gpus", tuple)):
        if not isinstance(top.get(key) or kind(()) if kind is tuple else top.get(key) or {}, kind):
            yield f"{key}: not a {'list' if kind is tuple else 'mapping'}"
            return
    yield from _codes(top.get("system"), "system")
    for number, gpu in enumerate(top.get("gpus") or ()):
        if not isinstance(gpu, Mapping):
            yield f"gpus[{number}]: not a mapping"
            continue
        yield from _unknown_keys(gpu, GPU_KEYS, f"gpus[{number}].")
        for where, device in [("", gpu), *[(f"mig.{slot}.", each) for slot, each in (gpu.get("mig") or {}).items()]]:
            for part in ("calls", "fields"):
                yield from _codes(device.get(part), f"gpus[{number}].{where}{part}")


def _unknown_keys(given: Iterable[str], known: frozenset[str], where: str) -> Iterator[str]:
    for key in given:
        if key not in known:
            yield f"{where}{key}: unknown key; one of {', '.join(sorted(known))}"


def _codes(answers: Any, where: str) -> Iterator[str]:
    """Find errors that NVML does not have."""
    if answers is not None and not isinstance(answers, Mapping):
        yield f"{where}: not a mapping of calls to answers"
        return
    for key, given in (answers or {}).items():
        each_pass = given[PASSES] if isinstance(given, Mapping) and PASSES in given else (given,)
        for answer in each_pass:
            error = field_error(answer) if where.endswith("fields") or isinstance(answer, Mapping) else None
            if error is not None:
                try:
                    parse_code(error)
                except (ValueError, AttributeError) as error:
                    yield f"{where}.{key}: {error}"
