"""Who may write the rules names the victims: the agent does not start while anybody but root may."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.attack.arena import Arena, ladder
from tests.attack.processes import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EXIT_CONFIGURATION = 78
HARMFUL = "gpuagent_process_memory_used_bytes > 1e9"
HARMLESS = "gpuagent_process_memory_used_bytes > 20e9"
TERMINATE = {"terminate": {"wait": "5s"}}


class Door(NamedTuple):
    """A way in: what the configuration names, and what another user can write by it."""

    rules: Path
    steps: tuple[Mapping[str, object], ...] = (TERMINATE,)


def _rules(path: Path, expression: str) -> Path:
    rule = {"alert": "TooMuch", "expr": expression}
    path.write_text(json.dumps({"groups": [{"name": "g", "interval": "200ms", "rules": [rule]}]}), encoding="utf-8")
    path.chmod(0o600)
    return path


def an_acl(folder: Path, uid: int) -> Door:
    """Give a user the right in an access control list: the mode does not tell whom it is for."""
    if shutil.which("setfacl") is None:
        pytest.skip("no setfacl on the PATH; apt-get install acl")
    rules = _rules(folder / "acl.yaml", HARMFUL)
    subprocess.run(["setfacl", "-m", f"u:{uid}:rw", str(rules)], check=True)
    return Door(rules)


def an_acl_of_the_folder(folder: Path, uid: int) -> Door:
    """Give a user the right to replace the file."""
    if shutil.which("setfacl") is None:
        pytest.skip("no setfacl on the PATH; apt-get install acl")
    (folder / "rules").mkdir()
    subprocess.run(["setfacl", "-m", f"u:{uid}:rwx", str(folder / "rules")], check=True)
    return Door(_rules(folder / "rules" / "rules.yaml", HARMFUL))


def group_0(folder: Path, uid: int) -> Door:
    """Let the group root write: others than root may be in it."""
    assert uid
    rules = _rules(folder / "group.yaml", HARMFUL)
    os.chown(rules, 0, 0)
    rules.chmod(0o660)
    return Door(rules)


def a_link_in_the_middle(folder: Path, uid: int) -> Door:
    """Lead through a folder in which a user can turn a link, to a file that nobody can write."""
    private, theirs = folder / "private", folder / "theirs"
    private.mkdir(mode=0o700)
    theirs.mkdir()
    _rules(private / "rules.yaml", HARMFUL)
    (theirs / "way").symlink_to(private)
    os.chown(theirs, uid, uid)
    (folder / "link.yaml").symlink_to(theirs / "way" / "rules.yaml")
    return Door(folder / "link.yaml")


def a_file_of_the_user(folder: Path, uid: int) -> Door:
    """Name a file that belongs to a user."""
    rules = _rules(folder / "own.yaml", HARMFUL)
    os.chown(rules, uid, uid)
    return Door(rules)


def a_script_for_a_shell(folder: Path, uid: int) -> Door:
    """Run a user's script by a shell of the system."""
    script = folder / "clean.sh"
    script.write_text("#!/bin/sh\nkill $1\n", encoding="utf-8")
    os.chown(script, uid, uid)
    step: dict[str, object] = {"exec": {"command": ["/bin/sh", str(script), "{pid}"], "wait": "5s"}}
    return Door(_rules(folder / "script.yaml", HARMFUL), (step,))


DOORS = (an_acl, an_acl_of_the_folder, group_0, a_link_in_the_middle, a_file_of_the_user, a_script_for_a_shell)


@pytest.mark.parametrize("door", DOORS, ids=lambda each: each.__name__.replace("_", " "))
def test_who_may_write_the_rules(arena: Arena, door: Callable[[Path, int], Door]) -> None:
    """KILL-09: with real steps the agent does not start on what another user can write; with root's own it does."""
    uid, attacker = next(arena.uids), next(arena.uids)
    innocent = arena.innocent(arena.crowd.start(uid))
    arena.driver.hold(innocent.pid, 5)
    rules, steps = door(arena.folder, attacker)
    refused = arena.start(
        ladders=[ladder("TooMuch", *steps)],
        remedies={"top": {"rule_files": [str(rules)]}},
        wait=False,
        users=[str(uid)],
    )
    started = arena.started_or_ended()
    if started:
        arena.let_decide(10)
        arena.stop()
    else:
        assert refused.process.wait(PATIENCE_SECONDS) == EXIT_CONFIGURATION
    guilty = arena.culprit(arena.crowd.start(uid))
    arena.driver.hold(guilty.pid, 30)
    _rules(arena.folder / "mended.yaml", HARMLESS)
    arena.start(remedies={"top": {"rule_files": [str(arena.folder / "mended.yaml")]}}, users=[str(uid)])
    arena.judge()
    assert not started
