"""While remedies act for real, nobody but root and the agent's user may change what they go by."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from gpuagent.config.load import ConfigError, load_config
from gpuagent.config.models import Config
from gpuagent.config.rules import load_rules
from gpuagent.service.assemble import StartError, assemble
from gpuagent.service.remedies import RemediesRefused, check_permissions
from gpuagent_alerts.remedies.files.permissions import CheckedFiles
from tests.alerts.remedies.trees import (
    ALICE,
    BOB,
    USER,
    acl,
    as_user,
    give,
    make_directory,
    make_file,
    needs_root,
    replaced,
    set_acl,
    tree,
)

pytestmark = needs_root
__all__ = ["tree"]

KILL: list[dict[str, object]] = [{"kill": {}}]
RULES = "groups: [{name: g, rules: [{alert: Mine, expr: gpuagent_up == 1}]}]\n"
THEIRS = RULES.replace("Mine", "Theirs")


def settings(tree: Path, steps: object = KILL, *, dry_run: bool = False, **keys: object) -> Path:
    """A configuration with one ladder, and an empty state directory."""
    ladder = {"match": ['alertname="Mine"'], "steps": steps}
    remedies = {"dry_run": dry_run, "allow": {"users": ["svc"]}, "ladders": [ladder]}
    return make_file(
        tree / "gpuagent.yaml", json.dumps({"remedies": remedies, "state_dir": str(tree / "state"), **keys})
    )


def refusal(path: Path, files: CheckedFiles | None = None, config: Config | None = None) -> list[str]:
    """The faults of a configuration that is read as the agent reads it; none where it may act."""
    files = files or CheckedFiles(0)
    config = config or load_config(path, is_root=os.geteuid() == 0, read=files.read)
    try:
        check_permissions(config, files)
    except RemediesRefused as refused:
        lines = str(refused).split("\n")
        assert all(line.endswith(" (required while remedies act for real)") for line in lines)
        return [line.removesuffix(" (required while remedies act for real)") for line in lines]
    return []


def test_a_clean_configuration(tree: Path) -> None:
    """Files of root's, linked as administrators do it: remedies may act."""
    make_file(tree / "rules.yaml", RULES)
    (tree / "link.yaml").symlink_to("rules.yaml")
    path = settings(tree, [{"exec": {"command": ["/bin/sleep", "1"]}}, *KILL], rule_files=["link.yaml"])
    assert refusal(path) == []


def test_a_dry_run_needs_no_protected_files(tree: Path) -> None:
    """As long as nothing is done, everybody may write the files; one ladder that is real is enough to refuse them."""
    path = settings(tree, dry_run=True)
    path.chmod(0o666)
    assert refusal(path) == []
    document = json.loads(path.read_text())
    document["remedies"]["ladders"][0]["dry_run"] = False
    path.write_text(json.dumps(document))
    assert len(refusal(path)) == 2
    path.write_text(json.dumps({"remedies": {"dry_run": False}, "state_dir": str(tree / "state")}))
    assert len(refusal(path)) == 2


def test_every_fault_at_once(tree: Path) -> None:
    """The configuration, a rule file, what an `exec` step runs, what a receiver runs: with what to do."""
    rules = make_file(tree / "rules.yaml", RULES, 0o666)
    script = give(make_file(tree / "x.sh", mode=0o755), ALICE)
    path = settings(
        tree, [{"exec": {"command": ["/bin/sh", str(script)]}}, {"exec": {"command": ["no-such-program"]}}],
        rule_files=["rules.yaml"], receivers=[{"name": "ops", "exec": {"command": [str(script)]}}],
    )  # fmt: skip
    set_acl(path, acl((USER, 6, ALICE)))
    missing = "no-such-program is not an absolute path: write where it is, from / on"
    owner = f"{script} belongs to uid {ALICE}: {replaced(script)}"
    assert refusal(path) == [
        f"{path} is writable by uid {ALICE} (ACL): {replaced(path)}",
        f"{rules} is writable by everybody: {replaced(rules)}",
        f"{rules} is writable by its group (gid 0): {replaced(rules)}",
        f"remedies.ladders[0].steps[0].exec: {owner}",
        f"remedies.ladders[0].steps[1].exec: {missing}",
        f"receivers[0].exec: {owner}",
    ]


def test_the_agents_own_user(tree: Path) -> None:
    """An agent of another user goes by root's files and its own; one of root's does not go by that user's."""
    path = give(settings(tree), ALICE)
    assert refusal(path, CheckedFiles(ALICE)) == []
    assert refusal(path, CheckedFiles(0)) == [f"{path} belongs to uid {ALICE}: {replaced(path)}"]
    give(path, 0)
    assert refusal(path, CheckedFiles(ALICE)) == []


def test_an_agent_without_roots_rights(tree: Path) -> None:
    """The shipped unit's agent is not root: it examines, and reads, files with ACLs in directories it cannot list."""
    closed = make_directory(tree / "closed", 0o711)
    rules = make_file(closed / "rules.yaml", RULES)
    path = settings(tree, rule_files=[str(rules)])

    def told() -> str:
        files = CheckedFiles()
        config = load_config(path, is_root=os.geteuid() == 0, read=files.read)
        return "\n".join([*refusal(path, files, config), str(len(load_rules(config, read=files.read)) > 1)])

    set_acl(path, acl((USER, 6, ALICE)))
    assert as_user(ALICE, told) == "True"
    assert as_user(BOB, told) == f"{path} is writable by uid {ALICE} (ACL): {replaced(path)}\nTrue"


@pytest.mark.parametrize("kind", ["rules.yaml", "gpuagent.yaml"])
def test_a_file_is_swapped_after_the_check(tree: Path, kind: str) -> None:
    """What is put in its place before it is read is neither used nor overlooked: remedies are refused at that load."""
    make_file(tree / "rules.yaml", RULES)
    path = settings(tree, rule_files=["rules.yaml"])
    other = {"rules.yaml": THEIRS, "gpuagent.yaml": path.read_text().replace("svc", "bob")}[kind]

    def swap(checked: Path) -> None:
        if checked.name == kind:
            give(make_file(tree / "theirs", other), ALICE).rename(checked)

    files = CheckedFiles(0, checked=swap)
    config = load_config(path, is_root=os.geteuid() == 0, read=files.read)
    swapped = tree / kind
    assert refusal(path, files, config) == [
        f"{swapped} belongs to uid {ALICE}: {replaced(swapped)}",
        f"{swapped} was replaced while it was read: reload again",
    ]
    assert config.remedies.allow.users == ("svc",)
    names = {rule.name for group in load_rules(config, read=files.read) for rule in group.rules}
    assert ("Mine" in names, "Theirs" in names) == (True, False)


def test_a_file_is_rewritten_after_the_check(tree: Path) -> None:
    """The same file with another content is told too."""
    path = settings(tree)
    files = CheckedFiles(0, checked=lambda _: path.write_text(path.read_text() + " "))
    assert refusal(path, files) == [f"{path} was changed while it was read: reload again"]


def test_a_file_is_opened_up_and_closed_again(tree: Path) -> None:
    """Its mode is right before and after, its content is the same, and yet somebody could have written it."""
    path = settings(tree)

    def touch(_: Path) -> None:
        path.chmod(0o666)
        path.chmod(0o644)

    assert refusal(path, CheckedFiles(0, checked=touch)) == [f"{path} was changed while it was read: reload again"]


def test_what_is_used_is_what_was_read(tree: Path) -> None:
    """A rule file that is swapped between the check and the loading of rules is not read a second time."""
    rules = make_file(tree / "rules.yaml", RULES)
    files = CheckedFiles(0)
    path = settings(tree, rule_files=["rules.yaml"])
    config = load_config(path, is_root=os.geteuid() == 0, read=files.read)
    assert refusal(path, files, config) == []
    make_file(rules, THEIRS)
    assert "Mine" in {rule.name for group in load_rules(config, read=files.read) for rule in group.rules}


def test_a_child_parses_what_was_checked(tree: Path) -> None:
    """The process that parses the configuration is given its content, and does not open the path again."""
    path = settings(tree)
    files = CheckedFiles(0)
    content = files.read(path)
    path.write_text("no: configuration")

    def read(asked: Path) -> bytes:
        assert asked == path
        return content

    config = load_config(path, is_root=os.geteuid() == 0, read=read)
    assert config.remedies.allow.users == ("svc",)
    path.unlink()
    assert load_config(path, is_root=os.geteuid() == 0, read=files.read) == config


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOENT])
def test_what_cannot_be_read(tree: Path, error: int) -> None:
    """A directory, or nothing, has the error that reading it has, at every call."""
    if error == errno.EINVAL:
        make_directory(tree / "rules")
    files = CheckedFiles(0)
    for _ in range(2):
        with pytest.raises(OSError, match="rules") as caught:
            files.read(tree / "rules")
        assert caught.value.errno == error


def test_a_fifo_as_configuration(tree: Path) -> None:
    """Nobody waits for who writes into it: it is no configuration, in a dry run either."""
    fifo = tree / "fifo"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(ConfigError, match="fifo: cannot be read: it is a FIFO; only a regular file is read"):
        refusal(fifo)


def test_a_descriptor_as_configuration(tree: Path) -> None:
    """`--config /proc/self/fd/7`: who opened what there cannot be told."""
    with settings(tree).open() as stream:
        told = refusal(Path(f"/proc/self/fd/{stream.fileno()}"))
    assert told == ["/proc lies in /proc, where a name is another file for each process: name a file elsewhere"]


def test_a_path_from_the_working_directory(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative `--config` is examined from the root on."""
    settings(tree)
    monkeypatch.chdir(make_directory(tree / "below"))
    assert refusal(Path("../gpuagent.yaml")) == []
    tree.chmod(0o777)
    assert f"{tree} is writable by everybody: chmod o-w {tree}" in refusal(Path("../gpuagent.yaml"))


def test_the_agent_does_not_start(tree: Path) -> None:
    """The whole agent, with an attack of each kind: it names them all and does not start."""
    make_file(tree / "c", RULES)
    theirs = make_directory(tree / "theirs", owner=ALICE)
    (theirs / "b").symlink_to(tree / "c")
    (tree / "a").symlink_to(theirs / "b")
    path = settings(tree, rule_files=["a"])
    set_acl(path, acl((USER, 6, ALICE)))
    with pytest.raises(StartError) as caught:
        assemble(path, simulate="demo")
    first, second = str(caught.value).split("\n")
    assert first.startswith(f"{path} is writable by uid {ALICE} (ACL): cp ")
    assert second.startswith(f"{theirs} belongs to uid {ALICE}: chown root ")
