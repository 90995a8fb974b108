"""Overrides of the leak detector's sensitivity: each fault with its line, and what an app may not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.config.loading import faults_of, load, write


def lines(folder: Path, text: str) -> list[str]:
    """Return the faults of a text as a person reads them, without the file's name."""
    file = write(folder, text)
    return [str(fault).removeprefix(f"{file}:") for fault in faults_of(file)]


def test_each_fault_has_its_line(tmp_path: Path) -> None:
    """All at once, with what is allowed, and with what was probably meant."""
    text = (
        "leaks:\n  overrides:\n"
        "    - match: {ap: x}\n      sensitivity: off\n"
        "    - match: {user: bob}\n      sensitivity: stict\n"
        "    - match: {}\n      sensitivity: strict\n"
        "    - sensitivity: strict\n"
        "    - match: {unit: web}\n      sensitivity: strict\n"
    )
    found = lines(tmp_path, text)
    assert [line.partition(":")[0] for line in found] == ["3", "6", "7", "9", "10"]
    assert "unknown key; did you mean app? (allowed: app, unit, user, process_name, container)" in found[0]
    assert "'stict' is unknown; did you mean strict? (allowed: off, strict, balanced or sensitive)" in found[1]
    assert "is empty: it would match every process" in found[2]
    assert "leaks.overrides[3].match" in found[3]
    assert "write web.service" in found[4]


@pytest.mark.parametrize(("written", "read"), [("off", "off"), ('"off"', "off"), ("strict", "strict")])
def test_off_is_a_word_here(tmp_path: Path, written: str, read: str) -> None:
    """YAML takes a bare off for false, and nobody who writes it means that."""
    text = f"leaks: {{overrides: [{{match: {{app: thumbs}}, sensitivity: {written}}}]}}\n"
    (override,) = load(write(tmp_path, text)).leaks.overrides
    assert (override.match.app, override.sensitivity) == ("thumbs", read)


@pytest.mark.parametrize(
    ("leaks", "refused"),
    [
        ("{overrides: [{match: {app: a}, sensitivity: sensitive}]}", True),
        ("{overrides: [{match: {app: a, unit: a.service}, sensitivity: sensitive}]}", True),
        ("{sensitivity: strict, overrides: [{match: {app: a}, sensitivity: balanced}]}", True),
        ("{sensitivity: sensitive, overrides: [{match: {app: a}, sensitivity: balanced}]}", False),
        ("{overrides: [{match: {app: a}, sensitivity: strict}, {match: {user: b}, sensitivity: sensitive}]}", False),
        ("{overrides: [{match: {process_name: a}, sensitivity: sensitive}]}", False),
    ],
)
def test_an_app_only_lowers(tmp_path: Path, leaks: str, refused: bool) -> None:
    """By the name that it gives itself an app is never judged more sensitively: such an override is a fault."""
    text = f"leaks: {leaks}\n"
    if refused:
        (fault,) = lines(tmp_path, text)
        assert "may only make the detector less sensitive" in fault
    else:
        assert load(write(tmp_path, text)).leaks.overrides


def test_what_is_never_reached(tmp_path: Path) -> None:
    """The first that matches is taken: a second for the same match is a mistake."""
    text = "leaks: {overrides: [{match: {user: b}, sensitivity: off}, {match: {user: b}, sensitivity: strict}]}\n"
    (fault,) = lines(tmp_path, text)
    assert "is the same as that of overrides[0], which comes first" in fault
