"""Make the text of a capture: YAML with one call a line, each answer as JSON, for people to read and compare."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from gpuagent.doctor.capture.recorder import RecordedDevice
from gpuagent.doctor.capture.redaction import CaptureRedactor
from gpuagent_simulator.captures.file import MARK, PASSES, VERSION
from gpuagent_simulator.captures.lists import field_key

_PASSES = (0, 1)
_LONG = 200
"""Characters of an answer that is worth an anchor."""


def render(
    header: Mapping[str, Any],
    system: RecordedDevice,
    gpus: Mapping[int, RecordedDevice],
    processes: Mapping[int, Mapping[str, Any]],
    redactor: CaptureRedactor,
) -> str:
    """Return the file. `header` has the keys above the answers, in their order."""
    lines = [f"{MARK}: {VERSION}"]
    for key, value in header.items():
        lines += _block(key, value, "") if isinstance(value, Mapping) and value else [f"{key}: {_json(value)}"]
    lines += ["system:", *_answers(system.calls, "  ", redactor), "gpus:"]
    count = max(gpus, default=-1) + 1
    for index in range(count):
        lines += [f"  # GPU {index}", "  -", *_device(gpus.get(index, RecordedDevice()), "    ", redactor)]
    if not count:
        lines[-1] = "gpus: []"
    lines += _block("processes", {pid: dict(facts) for pid, facts in processes.items()}, "")
    return "\n".join(_without_repetition(lines)) + "\n"


def _without_repetition(lines: list[str]) -> Iterator[str]:
    """Write a long answer once: the forms of a process list mostly say the same (`&name` and `*name` in YAML)."""
    counts = Counter(value for _, _, value in (line.partition(": ") for line in lines) if len(value) > _LONG)
    names: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(": ")
        if value in names:
            yield f"{key}: *{names[value]}"
        elif counts.get(value, 0) > 1:
            names[value] = f"a{len(names) + 1}"
            yield f"{key}: &{names[value]} {value}"
        else:
            yield f"{key}{colon}{value}"


def _device(device: RecordedDevice, indent: str, redactor: CaptureRedactor) -> Iterator[str]:
    below = indent + "  "
    yield from _section("calls", indent, _answers(device.calls, below, redactor))
    yield from _section("fields", indent, _fields(device.fields, below))
    latency = {key: [passes[number] for number in sorted(passes)] for key, passes in device.latency.items()}
    yield from _section("latency_us", indent, (f"{below}{key}: {_json(latency[key])}" for key in sorted(latency)))
    if device.instances:
        yield f"{indent}mig:"
        for slot, instance in sorted(device.instances.items()):
            yield f"{below}{slot}:"
            yield from _device(instance, below + "  ", redactor)


def _section(name: str, indent: str, lines: Iterator[str]) -> Iterator[str]:
    found = list(lines)
    yield f"{indent}{name}:{'' if found else ' {}'}"
    yield from found


def _answers(calls: Mapping[str, Mapping[int, Any]], indent: str, redactor: CaptureRedactor) -> Iterator[str]:
    for key in sorted(calls):
        passes = {number: redactor.answer(key, answer) for number, answer in calls[key].items()}
        yield f"{indent}{key}: {_both(passes)}"


def _both(passes: Mapping[int, Any]) -> str:
    """Return what was answered in both passes: once, if it was the same or asked in one of them alone."""
    first, second = (passes.get(number, next(iter(passes.values()))) for number in _PASSES)
    return _json(first if first == second else {PASSES: [first, second]})


def _fields(fields: Mapping[str, Mapping[int, Any]], indent: str) -> Iterator[str]:
    """Write field values; links that follow each other and answer the same are one line: `"206/0-17"`."""
    run: list[tuple[int, int]] = []
    told = ""
    for field, scope in sorted(_parts(key) for key in fields):
        answer = _both(fields[field_key(field, scope)])
        if run and run[-1] == (field, scope - 1) and answer == told:
            run.append((field, scope))
            continue
        if run:
            yield f"{indent}{_range(run)}: {told}"
        run, told = [(field, scope)], answer
    if run:
        yield f"{indent}{_range(run)}: {told}"


def _parts(key: str) -> tuple[int, int]:
    field, _, scope = key.partition("/")
    return int(field), int(scope or 0)


def _range(run: list[tuple[int, int]]) -> str:
    field, first = run[0]
    return json.dumps(f"{field}/{first}-{run[-1][1]}" if len(run) > 1 else field_key(field, first))


def _block(key: str, value: Mapping[Any, Any], indent: str) -> list[str]:
    if not value:
        return [f"{indent}{key}: {{}}"]
    return [f"{indent}{key}:", *(f"{indent}  {name}: {_json(each)}" for name, each in value.items())]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
