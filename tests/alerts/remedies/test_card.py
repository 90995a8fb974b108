"""What a person was shown has to be so still at their yes: all that a ladder compares, by a keyed digest."""

from __future__ import annotations

import inspect
import os
from dataclasses import fields, replace
from typing import Any

import pytest

from gpuagent.cli import kill as kill_prompt
from gpuagent.core.identity import ProcessId
from gpuagent.core.snapshot import ProcessInfo
from gpuagent_alerts.remedies.facts.command_digests import CommandDigests
from gpuagent_alerts.remedies.facts.fresh_lookup import FreshProcess
from gpuagent_alerts.remedies.manual_requests import NAMES, facts_of, identity_card, read_identified
from gpuagent_alerts.remedies.target import CHANGES, Identity, differences

DIGESTS = CommandDigests(b"k" * 32)
INFO = ProcessInfo(
    ProcessId("boot", 7, 70), "python3", 1000, "alice", command="serve", pid_namespace=1, unit="a.service",
    container_id="c" * 64, slurm_job="7",
)  # fmt: skip
IDENTITY = Identity(
    INFO.id, 1000, "python3", "k-1", "/a", "/usr/bin/python3", frozenset({"unit", "place"}), 77, 70, (1000,) * 4, 1,
    b"0::/a\n", (23, 1001), (b"140", b"150", b"160", b"2048"),
)  # fmt: skip
CHANGED: dict[str, Any] = {
    "id": ProcessId("boot", 7, 71), "uid": 8, "name": "production-db", "command_digest": "k-2", "cgroup": "/b",
    "executable": "/opt/python3", "proven_names": frozenset({"place"}), "handle_inode": 78, "process_group": 71,
    "uids": (1000, 0, 1000, 1000), "pid_namespace": 2, "cgroups": b"0::/a/b\n", "executable_file": (23, 1002),
    "image": (b"141", b"150", b"160", b"2048"),
}  # fmt: skip
MISSING: dict[str, Any] = {
    "command_digest": "", "cgroup": "", "executable": None, "proven_names": frozenset(), "handle_inode": 0, "uids": (),
    "process_group": 0,
    "pid_namespace": 0, "cgroups": b"", "executable_file": (), "image": (b"",),
}  # fmt: skip
HERE = [("GPU-0", -1)]
DERIVED = {"command", "unit", "container_id", "slurm_job"}
"""They are shown of the whole command line and of the cgroups, which are compared themselves."""
FIGURES = {"id", "parent_pid", "container_name"}  # a parent on the GPU, and a name that is told late
ROW_NAMES = {"name": "process"}
"""How the prompt calls a field."""


def fresh(**changes: Any) -> FreshProcess:
    """The process, with another identity."""
    return FreshProcess(INFO, replace(IDENTITY, **changes))


def request(now: FreshProcess) -> dict[str, Any]:
    """What the command sends back of what it was given."""
    card = identity_card(now, HERE, DIGESTS)
    return {"start_ticks": 70, "boot_id": "boot", "pid_namespace": 1, "card": card}


def refused(shown: FreshProcess, now: FreshProcess) -> str:
    """Why it is not the one that was shown; "" if it is."""
    return read_identified(request(shown)).difference(7, now, HERE, DIGESTS)


def test_every_fact_that_a_ladder_compares_is_in_the_card() -> None:
    """KILL-01: there is one list. No field of an identity is left out of a ladder's comparison, or of the card."""
    names = {each.name for each in fields(Identity)}
    assert names == set(CHANGED) == set(CHANGES) | {"id"}
    assert names | {"user", "gpus"} == set(facts_of(fresh(), HERE)) == set(NAMES)
    assert refused(fresh(), fresh()) == ""
    for name, value in CHANGED.items():
        assert NAMES[name] in refused(fresh(), fresh(**{name: value})).partition("changed since: ")[2]
        assert list(differences(IDENTITY, replace(IDENTITY, **{name: value})))


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_has_to_be_missing_again(name: str) -> None:
    """A fact that cannot be read is none that is as it was, in either direction; missing twice, it is no difference."""
    without = fresh(**{name: MISSING[name]})
    assert refused(without, without) == ""
    assert NAMES[name] in refused(without, fresh())
    assert NAMES[name] in refused(fresh(), without)
    if name == "command_digest":  # state D; where the image is seen to be the same, there was no exec
        assert not list(differences(IDENTITY, without.identity))
        without = FreshProcess(INFO, replace(without.identity, image=(b"2048",)))
    assert list(differences(IDENTITY, without.identity))
    assert list(differences(without.identity, IDENTITY))


def test_an_upgrade_makes_no_other_program() -> None:
    """The file of a running program that a package replaces is the same file, by a name that the kernel marks."""
    assert refused(fresh(), fresh(executable="/usr/bin/python3 (deleted)")) == ""


def test_the_user_database_and_a_further_gpu() -> None:
    """A uid that is called otherwise by then, and a process that is on other GPUs than were shown, are refused."""
    asked = read_identified(request(fresh()))
    renamed = FreshProcess(replace(INFO, user="mail"), IDENTITY)
    assert "changed since: name of its user" in asked.difference(7, renamed, HERE, DIGESTS)
    assert "changed since: GPUs" in asked.difference(7, fresh(), [*HERE, ("GPU-1", -1)], DIGESTS)


def test_the_prompt_shows_nothing_that_is_not_compared() -> None:
    """Each text by which the prompt describes a process is in the digest, or follows from what is."""
    source = inspect.getsource(kill_prompt)
    shown = {each.name for each in fields(ProcessInfo) if f'"{ROW_NAMES.get(each.name, each.name)}"' in source}
    assert shown - FIGURES - DERIVED <= set(facts_of(fresh(), HERE))


def test_figures_are_no_part_of_it() -> None:
    """What changes all the time makes no other process."""
    assert refused(fresh(), FreshProcess(replace(INFO, resident_bytes=5, state="D"), IDENTITY)) == ""


def test_a_digest_tells_nothing() -> None:
    """By a key of the agent's, and another of each process: like facts of two processes, or two agents, look unlike."""
    other = replace(IDENTITY, id=ProcessId("boot", 8, 70))
    here, there = (identity_card(each, HERE, DIGESTS) for each in (fresh(), FreshProcess(INFO, other)))
    size = 16
    parts = [{card[at : at + size] for at in range(9, len(card), size)} for card in (here, there)]
    assert len(parts[0]) == len(NAMES)
    assert not parts[0] & parts[1]
    elsewhere = CommandDigests(os.urandom(32))
    assert "changed since: start" in read_identified(request(fresh())).difference(7, fresh(), HERE, elsewhere)


@pytest.mark.parametrize("card", ["x", "", 3, None])
def test_a_card_that_is_none(card: object) -> None:
    """A text that no agent made fits nothing; anything else is refused in words."""
    given = {**request(fresh()), "card": card}
    if card == "x":
        assert "not what was shown any more" in read_identified(given).difference(7, fresh(), HERE, DIGESTS)
        return
    with pytest.raises(ValueError, match="card must be a text"):
        read_identified(given)
