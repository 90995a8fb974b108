"""What else remedies go by: all that lies in the state directory, the container runtime's socket, open files."""

from __future__ import annotations

import os
import pwd
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent.clients.commands import ClientCommands
from gpuagent.clients.server import client_server
from gpuagent.config.load import load_config
from gpuagent.doctor.service import agent_may_trace, agent_uid, examine_config
from gpuagent.node import simulated_node
from gpuagent.procfs.containers import docker_container, docker_names
from gpuagent.procfs.machine import may_trace
from gpuagent.service.remedies import remedy_service_of, settings_maker, state_faults
from gpuagent_alerts.remedies.files.permissions import CheckedFiles
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.test_permissions import RULES, refusal, settings
from tests.alerts.remedies.trees import ALICE, BOB, as_user, give, make_directory, make_file, needs_root, replaced, tree
from tests.fakes.answering import answering, says

pytestmark = needs_root
__all__ = ["tree"]

NAMES = ("state.db", "state.db-wal", "state.db-shm", "gpus.json", "listings.json", "state.db.new")


def aside(entry: Path) -> str:
    """What takes an entry out of the agent's way without deleting it."""
    return f"move it aside: mv {entry} {entry.parent}/aside-{entry.name}"


def mended(entry: Path) -> str:
    """What the agent advises for a file of its own that others could write."""
    copied = f"install -o 0 -m 600 {entry} {entry}.new && mv {entry}.new {entry}"
    return f"if you trust what it says, {copied}; if not, {aside(entry)}"


def faults(path: Path) -> list[str]:
    """Those of the state that this configuration names; none of them is one of the configuration."""
    assert refusal(path) == []
    return list(state_faults(load_config(path, is_root=os.geteuid() == 0, read=CheckedFiles(0).read), 0))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_entry_of_the_state_directory(tree: Path, name: str) -> None:
    """A file that was planted while the directory was open to others is named, with what mends it."""
    path = settings(tree)
    state = make_directory(tree / "state", 0o700)
    for each in NAMES:
        make_file(state / each)
    make_directory(state / "below")
    assert faults(path) == []
    entry = give(state / name, ALICE)
    assert faults(path) == [f"{entry} belongs to uid {ALICE}: {mended(entry)}"]
    give(entry, 0).chmod(0o606)
    assert faults(path) == [f"{entry} is writable by everybody: {mended(entry)}"]
    entry.unlink()
    os.link(make_file(tree / "elsewhere"), entry)
    assert faults(path) == [f"{entry} has 2 names (hard links): {mended(entry)}"]
    entry.unlink()
    entry.symlink_to(tree / "elsewhere")
    assert faults(path) == [f"{entry} is a symbolic link: {aside(entry)}"]
    entry.unlink()
    os.mkfifo(entry, 0o600)
    assert faults(path) == [f"{entry} is neither a file nor a directory: {aside(entry)}"]


@pytest.mark.parametrize("trusted", [True, False])
def test_what_is_advised_mends_it_and_deletes_nothing(tree: Path, trusted: bool) -> None:
    """Both ways out, as they are written, by a shell: the agent's user has its files again, and nothing is lost."""
    path = settings(tree)
    state = give(make_directory(tree / "state", 0o700), BOB)
    entry = give(make_file(state / "state.db", "what was kept"), ALICE)
    config = load_config(path, is_root=os.geteuid() == 0, read=CheckedFiles(0).read)
    (fault,) = state_faults(config, BOB)
    assert "rm " not in fault
    keep, _, move = fault.partition("if you trust what it says, ")[2].partition("; if not, move it aside: ")
    subprocess.run(keep if trusted else move, shell=True, check=True)
    assert state_faults(config, BOB) == ()
    kept = entry if trusted else state / "aside-state.db"
    assert kept.read_text() == "what was kept"
    if trusted:
        assert entry.stat().st_uid == BOB
    state.chmod(0o707)
    give(state, ALICE)
    assert f"chown {BOB} {state}" in "\n".join(state_faults(config, BOB))


def test_root_asks_about_the_agents_files(tree: Path) -> None:
    """A check by root goes by the user of the service: the agent's own state is no stranger's."""
    path = settings(tree, runtime_dir=str(tree / "run"))
    state = give(make_directory(tree / "state", 0o700), BOB)
    give(make_file(state / "state.db"), BOB)
    config = load_config(path, is_root=os.geteuid() == 0, read=CheckedFiles(0).read)
    assert examine_config(config, path, own_uid=agent_uid(config, lambda: "", 0)).faults == ()
    assert any("belongs to uid" in fault for fault in examine_config(config, path, own_uid=ALICE).faults)


@pytest.mark.parametrize(
    ("unit", "asks", "found"),
    [
        ("LoadState=loaded\nUser=nobody\n", 0, pwd.getpwnam("nobody").pw_uid),
        ("LoadState=loaded\nUser=4711\n", 0, 4711),
        ("LoadState=loaded\nUser=\n", 0, 0),
        ("LoadState=loaded\nUser=no-such-user-here\n", 0, BOB),
        ("LoadState=not-found\nUser=\n", 0, BOB),
        ("", 0, BOB),
        ("LoadState=loaded\nUser=nobody\n", 1234, 1234),
    ],
)
def test_whose_the_state_is(tree: Path, unit: str, asks: int, found: int) -> None:
    """Where no agent runs: the unit's user, else the owner of the directory; who is not root has an agent alone."""
    path = settings(tree, runtime_dir=str(tree / "run"))
    give(make_directory(tree / "state", 0o700), BOB)
    config = load_config(path, is_root=os.geteuid() == 0, read=CheckedFiles(0).read)
    assert agent_uid(config, lambda: unit, asks) == found
    make_directory(tree / "run", 0o755)
    with _listening_as(ALICE, tree / "run" / "control.sock"):
        assert agent_uid(config, lambda: unit, asks) == ALICE


@pytest.mark.parametrize(
    ("unit", "asks", "found"),
    [
        ("LoadState=loaded\nUser=nobody\nAmbientCapabilities=cap_kill cap_sys_ptrace\n", 0, True),
        ("LoadState=loaded\nUser=nobody\nAmbientCapabilities=cap_kill\n", 0, False),
        ("LoadState=loaded\nUser=root\nAmbientCapabilities=\n", 0, None),
        ("", 0, None),
    ],
)
def test_what_the_agent_may_see(tree: Path, unit: str, asks: int, found: bool | None) -> None:
    """Root's own rights are not the service's: the unit says them, and the kernel those of an agent that runs."""
    path = settings(tree, runtime_dir=str(tree / "run"))
    config = load_config(path, is_root=os.geteuid() == 0, read=CheckedFiles(0).read)
    assert agent_may_trace(config, lambda: unit, asks) is found
    make_directory(tree / "run", 0o755)
    with socket.socket(socket.AF_UNIX) as bound:  # the agent is this process
        bound.bind(str(tree / "run" / "control.sock"))
        bound.listen()
        assert agent_may_trace(config, lambda: unit, asks) is may_trace()


def test_what_the_agent_never_reads_is_no_fault(tree: Path) -> None:
    """Other files and sockets in the directory are nobody's lever: only the agent's own files are examined."""
    path = settings(tree)
    state = make_directory(tree / "state", 0o700)
    give(make_file(state / "notes.txt"), ALICE)
    os.mkfifo(state / "control.sock")
    assert faults(path) == []


def test_state_that_others_may_write_does_not_end_the_start(tree: Path) -> None:
    """Alerts go on; remedies are off, also once the fault is mended: what was read may be forged. It is told."""
    path = settings(tree)
    make_directory(tree / "state", 0o770)
    config = load_config(path, is_root=os.geteuid() == 0, read=CheckedFiles(0).read)
    found = dict.fromkeys(state_faults(config, 0))
    store = Store(None)
    node = simulated_node(config, "healthy")
    commands = ClientCommands(client_server(config, node.clock, node.place.boot_id), node.clock)
    made = settings_maker(node.clock.speed, durable=True, faults=found)
    service = remedy_service_of(made(config), config, node, store, commands, durable=True, config_file=path)

    assert service.remedies.ladders == ()
    assert service.figures().stopped
    assert "remedies are off: others may have written the state: " in store.problem_text
    assert f"chmod g-w {tree / 'state'}; then restart gpuagent" in store.problem_text
    (tree / "state").chmod(0o700)
    found.update(dict.fromkeys(state_faults(config, 0)))
    service.use(made(config))
    assert service.remedies.ladders == ()
    assert store.problem_text.count("remedies are off") == 1
    dry = load_config(settings(tree, dry_run=True), is_root=os.geteuid() == 0, read=CheckedFiles(0).read)
    service.use(made(dry))
    assert len(service.remedies.ladders) == 1
    assert store.problem_text == ""
    store.close()


def test_the_container_socket(tree: Path) -> None:
    """A socket of somebody else's, or where others put one, names containers as its owner likes: refused."""
    folder = make_directory(tree / "sockets")
    place = folder / "docker.sock"
    path = settings(tree, processes={"container_socket": str(place)})
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place))
        place.chmod(0o660)
        assert refusal(path) == []
        give(place, ALICE)
        assert refusal(path) == [f"{place} belongs to uid {ALICE}: chown root {place}"]
        give(place, 0)
        folder.chmod(0o757)
        assert refusal(path) == [f"{folder} is writable by everybody: chmod o-w {folder}"]


def test_who_answers_for_the_container_runtime(tree: Path) -> None:
    """The kernel says who listens: another user's answer, were it right, is none for root and for a third user."""
    identity = "a" * 64
    document = {"Id": identity, "Name": "/web", "State": {"Pid": 4242}}
    with answering(says(document)) as place:
        assert isinstance(place, Path)
        found = docker_container(place, identity)
        assert found is not None
        assert found.main_pid == 4242
        assert docker_names(place)(identity) == "web"
    with _listening_as(ALICE, tree / "theirs.sock") as theirs:
        with pytest.raises(OSError, match=f"a process of uid {ALICE} listens there"):
            docker_container(theirs, identity)
        with pytest.raises(OSError, match=f"a process of uid {ALICE} listens there"):
            docker_names(theirs)(identity)


@contextmanager
def _listening_as(uid: int, path: Path) -> Iterator[Path]:
    """A socket on which another user called listen(2); nobody answers there."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))

        def listen() -> str:
            bound.listen()
            return ""

        assert as_user(uid, listen) == ""
        yield path


@pytest.mark.parametrize("kind", ["rules.yaml", "gpuagent.yaml"])
def test_a_file_that_its_old_owner_has_open(tree: Path, kind: str) -> None:
    """Owner and mode are root's by now, and who opened it before writes on: refused until the file is replaced."""
    make_file(tree / "rules.yaml", RULES)
    path = settings(tree, rule_files=["rules.yaml"])
    file = tree / kind
    with file.open("r+"):
        assert refusal(path) == [f"{file} is open for writing in some process: {replaced(file)}"]
        subprocess.run(replaced(file), shell=True, check=True)
        assert refusal(path) == []
    with file.open():  # a reader is no writer
        assert refusal(path) == []


def test_a_lease_does_not_outlive_the_reading(tree: Path) -> None:
    """An administrator's editor opens the file for writing right after it was read, and does not wait."""
    path = settings(tree)
    CheckedFiles(0).read(path)
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
