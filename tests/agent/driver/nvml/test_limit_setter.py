"""Memory limits as root sets them: one where there is none, and never a change of anybody else's."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuagent.core.memory_limits import NO_LIMIT_BYTES, LimitHolder, LimitRefused, LimitUnknown
from gpuagent.driver.memory_limits.client import LimitHelperClient
from gpuagent.driver.memory_limits.folders import CgroupFolders
from gpuagent.driver.memory_limits.helper import lift_all, serve
from gpuagent.driver.memory_limits.ledger import LimitLedger
from gpuagent.driver.memory_limits.nvml import NvmlMemoryLimits
from gpuagent.driver.memory_limits.setter import MemoryLimitSetter
from gpuagent_simulator.abi import Code
from gpuagent_simulator.faults import FaultKind
from tests.agent.driver.nvml.conftest import Bench, Open

GIB = 2**30
DRIVER = "615.36.01"
UNIT, OTHER = "/system.slice/a.service", "/system.slice/b.service"
HELD = f"{{name: a, memory: 2GiB, cgroup: {UNIT}}}, {{name: b, memory: 4GiB, cgroup: {OTHER}}}"
GPU = f"{{model: h100, processes: [{HELD}]}}"
OWNER = "key-state"
HOLDER = LimitHolder("run", "alert", OWNER, pid=7, start_ticks=70)


class Root:
    """The driver of one GPU, folders of cgroups, and what sets limits there."""

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench = bench
        self.uuid = bench.device.identity.uuid
        self.cgroups = folder / "cgroup"
        for cgroup in (UNIT, OTHER):
            (self.cgroups / cgroup.lstrip("/")).mkdir(parents=True)
        (self.cgroups / "cgroup.controllers").touch()
        self.gpu = bench.node.session.gpus[0]
        self.gpu.memory_limits.root = str(self.cgroups)
        self.ledger = folder / "ledger.json"
        self.driver = NvmlMemoryLimits(bench.library)
        self.setter = self.anew()

    def anew(self, boot_id: str = "boot") -> MemoryLimitSetter:
        """As a process that has just been started."""
        folders = CgroupFolders(str(self.cgroups), os.getuid())
        return MemoryLimitSetter(self.driver, LimitLedger(self.ledger, boot_id), folders, lambda: 5.0)

    def path(self, cgroup: str) -> str:
        """The folder of a cgroup."""
        return f"{self.cgroups}{cgroup}"

    def hard_bytes(self, cgroup: str) -> int | None:
        """The limit that holds for it, by the driver's word."""
        with self.driver.session():
            found = self.driver.read(self.uuid, self.path(cgroup))
        return None if found is None else found.hard_bytes

    def others(self, cgroup: str, hard_bytes: int = GIB, soft_bytes: int = 0) -> None:
        """Somebody else sets a limit, as by nvidia-smi."""
        with self.driver.session():
            self.driver.write(self.uuid, self.path(cgroup), soft_bytes, hard_bytes)

    def set(self, cgroup: str = UNIT, hard_bytes: int = 3 * GIB, *, rehearse: bool = False) -> int:
        """Set a limit; return what the driver counts against it."""
        inode = self.inode(cgroup)
        return self.setter.set(self.uuid, cgroup, inode, hard_bytes, HOLDER, rehearse=rehearse).used_bytes

    def inode(self, cgroup: str = UNIT) -> int:
        """The inode of a cgroup's folder, as the agent's look finds it; 0 for none."""
        folder = self.cgroups / cgroup.lstrip("/")
        return folder.lstat().st_ino if folder.exists() else 0


@pytest.fixture
def root(open_gpu: Open, tmp_path: Path) -> Root:
    """One GPU of a driver with limits."""
    return Root(open_gpu(GPU, driver=DRIVER), tmp_path)


def test_it_is_set_read_back_and_lifted(root: Root) -> None:
    """The answer has what the driver counts against it, the ledger whose it is, and lifted there is nothing left."""
    assert root.set() == 2 * GIB
    assert (root.hard_bytes(UNIT), root.hard_bytes(OTHER)) == (3 * GIB, None)
    (limit,) = root.setter.limits()
    assert (limit.cgroup, limit.hard_bytes, limit.holder, limit.is_set) == (UNIT, 3 * GIB, HOLDER, True)
    assert "is lifted" in root.setter.lift(root.uuid, UNIT, OWNER)
    assert (root.hard_bytes(UNIT), root.setter.limits()) == (None, ())


def test_a_rehearsal_sets_nothing(root: Root) -> None:
    """All is checked, and neither the driver nor the ledger has a limit after it."""
    root.set(rehearse=True)
    assert (root.hard_bytes(UNIT), root.setter.limits()) == (None, ())
    root.others(UNIT)
    with pytest.raises(LimitRefused, match="already"):
        root.set(rehearse=True)


@pytest.mark.parametrize(
    ("cgroup", "hard_bytes", "soft_bytes"),
    [(UNIT, GIB, 0), (UNIT, 60 * GIB, 0), (UNIT, NO_LIMIT_BYTES, GIB), ("/system.slice", 60 * GIB, 0)],
    ids=["lower", "higher", "guarantee", "above"],
)
def test_a_limit_of_anothers_stands(root: Root, cgroup: str, hard_bytes: int, soft_bytes: int) -> None:
    """A cgroup that has one, its own or one above, gets none of ours: neither a lower nor a higher one is replaced."""
    root.others(cgroup, hard_bytes, soft_bytes)
    with pytest.raises(LimitRefused, match="changes no limit that others have set"):
        root.set()
    assert root.hard_bytes(UNIT) == hard_bytes
    with pytest.raises(LimitRefused, match="has set no memory limit"):
        root.setter.lift(root.uuid, UNIT, OWNER)


def test_a_limit_inside_stands(root: Root) -> None:
    """A cgroup with one inside that has a limit gets none: ours would not hold for it."""
    (root.cgroups / UNIT.lstrip("/") / "inner").mkdir()
    root.others(f"{UNIT}/inner")
    with pytest.raises(LimitRefused, match="inner has a memory limit already"):
        root.set()


def test_a_limit_that_somebody_has_changed_is_left(root: Root) -> None:
    """What was ours and is another value now is somebody's word: it stays, and is ours no longer."""
    root.set()
    root.others(UNIT, 5 * GIB)
    assert "somebody else has changed" in root.setter.lift(root.uuid, UNIT, OWNER)
    assert (root.hard_bytes(UNIT), root.setter.limits()) == (5 * GIB, ())


def test_a_cgroup_made_anew_has_no_limit_of_ours(root: Root) -> None:
    """A unit that was started again has another cgroup of the same name: a limit on it is not taken for ours."""
    root.set()
    folder = root.cgroups / UNIT.lstrip("/")
    kept = folder.rename(folder.with_name("old"))  # its inode is not given to the new one
    folder.mkdir()
    assert "is gone" in root.setter.lift(root.uuid, UNIT, OWNER)
    assert root.setter.limits() == ()
    assert kept.is_dir()


def test_it_survives_an_end_at_any_moment(root: Root) -> None:
    """Killed after the call into the driver and before its answer: the next process knows the limit, and lifts it."""
    root.set()
    (limit,) = root.setter.limits()
    LimitLedger(root.ledger, "boot").put(replace(limit, is_set=False))
    later = root.anew()
    assert len(later.limits()) == 1
    later.lift(root.uuid, UNIT, OWNER)
    assert root.hard_bytes(UNIT) is None


def test_killed_before_the_call(root: Root) -> None:
    """Written down and never set: lifting finds none, or one of somebody else's, and changes nothing."""
    root.set()
    (limit,) = root.setter.limits()
    root.setter.lift(root.uuid, UNIT, OWNER)
    LimitLedger(root.ledger, "boot").put(replace(limit, is_set=False))
    root.others(UNIT, 40 * GIB)
    root.anew().lift(root.uuid, UNIT, OWNER)
    assert root.hard_bytes(UNIT) == 40 * GIB


def test_the_ledger_is_of_one_boot(root: Root) -> None:
    """After a reboot no limit is left, and none of the ledger counts."""
    root.set()
    assert root.anew("another boot").limits() == ()


@pytest.mark.parametrize("text", ["", "{", "[1]", '[{"gpu_uuid": 5}]', "null", '{"a": 1}'])
def test_a_damaged_ledger_sets_and_lifts_nothing(root: Root, text: str) -> None:
    """Where it is not known what is ours, nothing is touched, and the way out is told."""
    root.ledger.write_text(text)
    for act in (root.set, root.setter.limits, lambda: root.setter.lift(root.uuid, UNIT, OWNER)):
        with pytest.raises(LimitRefused, match="remove the file"):
            act()
    assert root.hard_bytes(UNIT) is None


@pytest.mark.parametrize(
    ("call", "code", "word"),
    [
        ("nvmlDeviceSetMemoryLimits_v1", Code.NO_PERMISSION, "only root"),
        ("nvmlDeviceSetMemoryLimits_v1", Code.NOT_FOUND, "dmem.max"),
        ("nvmlDeviceSetMemoryLimits_v1", Code.NOT_SUPPORTED, "dmem.max"),
        ("nvmlDeviceGetMemoryLimits_v1", Code.NOT_SUPPORTED, "tells of none"),
        ("nvmlDeviceGetMemoryLimits_v1", Code.UNKNOWN, "unknown error"),
    ],
)
def test_a_driver_that_refuses(root: Root, call: str, code: Code, word: str) -> None:
    """Its refusal is told in words; a limit that is not read back is taken off again, and nothing is left behind."""
    root.bench.fail(FaultKind.ERROR, calls=(call,), code=code)
    with pytest.raises(LimitRefused, match=word):
        root.set()
    root.bench.node.clear()
    assert (root.hard_bytes(UNIT), root.setter.limits()) == (None, ())


def test_an_older_driver(open_gpu: Open, tmp_path: Path) -> None:
    """Before 615 there are no limits, and that is said."""
    root = Root(open_gpu(GPU), tmp_path)
    with pytest.raises(LimitRefused, match="driver 615 or newer"):
        root.set()


def test_mig_has_no_limits(open_gpu: Open, tmp_path: Path) -> None:
    """Where MIG is on, the driver keeps none."""
    gpu = "{model: h100, mig: [{profile: 1g.10gb, gpu_instance: 1, memory: 10GiB}]}"
    root = Root(open_gpu(gpu, driver=DRIVER), tmp_path)
    with pytest.raises(LimitRefused, match="MIG is on"):
        root.set()


@pytest.mark.parametrize(
    "cgroup",
    [
        "/", "", "system.slice/a.service", "/system.slice/../a.service", "/system.slice", "/init.scope", "//",
        "/user.slice/user-1000.slice/user@1000.service/app.slice/a.service", "/user.slice/user-1000.slice",
        "/user.slice/user-1000.slice/session-3.scope", "/kubepods.slice/kubepods-pod12ab.slice", "/none.service",
    ],
)  # fmt: skip
def test_cgroups_that_get_none(root: Root, cgroup: str) -> None:
    """No root, slice, pod or login, nothing of a user's own manager, no path that leads elsewhere."""
    if ".." not in cgroup and cgroup.startswith("/") and "none" not in cgroup:
        (root.cgroups / cgroup.lstrip("/")).mkdir(parents=True, exist_ok=True)
    with pytest.raises(LimitRefused):
        root.set(cgroup)
    assert root.setter.limits() == ()


@pytest.mark.parametrize(
    "cgroup",
    ["/docker", "/machine", "/slurm/uid_1000", "/system.slice/slurmstepd.scope", "/system.slice/gpuagent.service"],
)
def test_cgroups_of_many_get_none(root: Root, cgroup: str) -> None:
    """What holds all containers or jobs, and the agent's own unit, is no place for a limit."""
    (root.cgroups / cgroup.lstrip("/")).mkdir(parents=True)
    with pytest.raises(LimitRefused, match=r"for all of them|gpuagent's own"):
        root.set(cgroup)


def test_a_link_is_no_cgroup(root: Root) -> None:
    """Where a name leads is not followed."""
    (root.cgroups / "system.slice/c.service").symlink_to(root.path(UNIT))
    with pytest.raises(LimitRefused, match="is no cgroup"):
        root.set("/system.slice/c.service")


def test_a_cgroup_that_others_may_write_above(root: Root) -> None:
    """Who may write to those above can move processes out of a limit."""
    (root.cgroups / "system.slice").chmod(0o777)
    with pytest.raises(LimitRefused, match="not root's alone"):
        root.set()


def test_without_version_2(root: Root) -> None:
    """Where the driver's place for cgroups of version 2 has none, nothing is tried, and the way out is told."""
    (root.cgroups / "cgroup.controllers").unlink()
    assert "systemd.unified_cgroup_hierarchy=1" in root.setter.refusal()
    with pytest.raises(LimitRefused, match="version 2"):
        root.set()


def test_a_limit_that_the_driver_has_lost_is_none(root: Root) -> None:
    """A driver that was loaded anew, a GPU reset, a hand that took it off: it is told no more, and can be set again."""
    root.set()
    root.others(UNIT, NO_LIMIT_BYTES)
    assert root.setter.limits() == ()
    root.set()
    root.others(UNIT, NO_LIMIT_BYTES)
    root.set()
    assert root.hard_bytes(UNIT) == 3 * GIB


def test_a_limit_that_the_driver_does_not_tell_of(root: Root) -> None:
    """Where the driver cannot be asked nobody knows whether it is there: it stays in the ledger, and is told so."""
    root.set()
    root.bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMemoryLimits_v1",), code=Code.UNKNOWN)
    (limit,) = root.setter.limits()
    assert not limit.is_set
    root.bench.node.clear()
    (limit,) = root.setter.limits()
    assert limit.is_set


def test_a_gpu_that_is_not_found_has_its_limit_still(root: Root) -> None:
    """That the driver does not find the GPU says nothing of its limits: none is taken for lifted."""
    root.set()
    root.bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetHandleByUUID",), code=Code.NOT_FOUND)
    with pytest.raises(LimitRefused):
        root.setter.lift(root.uuid, UNIT, OWNER)
    root.bench.node.clear()
    assert [each.cgroup for each in root.setter.limits()] == [UNIT]
    assert root.hard_bytes(UNIT) == 3 * GIB


def test_a_value_near_ours_is_left(root: Root) -> None:
    """Of a call whose end was not seen only the very value is ours; one near it may be somebody else's."""
    root.set()
    (limit,) = root.setter.limits()
    root.setter.lift(root.uuid, UNIT, OWNER)
    LimitLedger(root.ledger, "boot").put(replace(limit, is_set=False))
    root.others(UNIT, 3 * GIB + 32 * 2**20)
    with pytest.raises(LimitRefused, match="not known whether"):
        root.setter.lift(root.uuid, UNIT, OWNER)
    assert root.hard_bytes(UNIT) == 3 * GIB + 32 * 2**20


def test_another_agents_limit_is_left(root: Root) -> None:
    """Whoever has another state lifts nothing of it, whatever they ask."""
    root.set()
    with pytest.raises(LimitRefused, match="another agent"):
        root.setter.lift(root.uuid, UNIT, "key-other")
    assert root.hard_bytes(UNIT) == 3 * GIB


def test_the_cgroup_is_the_one_that_was_looked_at(root: Root) -> None:
    """A unit that was started again since has another cgroup, in which nobody was looked at."""
    with pytest.raises(LimitRefused, match="made anew since it was looked at"):
        root.setter.set(root.uuid, UNIT, root.inode() + 1, 3 * GIB, HOLDER)
    assert (root.hard_bytes(UNIT), root.setter.limits()) == (None, ())


def test_what_nobody_waits_for_is_not_done(root: Root) -> None:
    """A driver that was so slow that the agent has given up: nothing is set, and nothing is in the ledger."""
    with pytest.raises(LimitRefused, match="nobody waits"):
        root.setter.set(root.uuid, UNIT, root.inode(), 3 * GIB, HOLDER, is_wanted=lambda: False)
    assert (root.hard_bytes(UNIT), root.setter.limits()) == (None, ())


def test_a_call_of_which_nobody_knows_stays_in_the_ledger(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set, and then the driver answers nothing any more: that is no refusal, and the limit is lifted later."""
    write = root.driver.write

    def hangs(*asked: Any) -> None:
        write(*asked)
        root.bench.fail(FaultKind.ERROR, calls=("nvmlDeviceGetMemoryLimits_v1",), code=Code.UNKNOWN)

    monkeypatch.setattr(root.driver, "write", hangs)
    with pytest.raises(LimitUnknown, match="not known whether"):
        root.set()
    monkeypatch.undo()
    root.bench.node.clear()
    assert len(json.loads(root.ledger.read_text())) == 1
    root.setter.limits()  # taken back in vain or not: what the driver tells counts


CGROUPS = ("/system.slice", UNIT, OTHER)
ACTS = st.lists(
    st.tuples(st.sampled_from(["others", "set", "lift", "restart"]), st.sampled_from(CGROUPS), st.integers(1, 8)),
    max_size=14,
)


@given(acts=ACTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nobody_elses_limit_is_ever_changed(root: Root, acts: list[tuple[str, str, int]]) -> None:
    """Whatever is set and lifted in whatever order: a limit that others have set is as they have set it."""
    theirs: dict[str, int] = {}
    try:
        for act, cgroup, gib in acts:
            if act == "others":
                root.others(cgroup, gib * GIB)
                theirs[cgroup] = gib * GIB
            elif act == "set":
                with suppress(LimitRefused):
                    root.set(cgroup, (10 + gib) * GIB)
            elif act == "lift":
                with suppress(LimitRefused):
                    root.setter.lift(root.uuid, cgroup, OWNER)
            else:
                root.setter = root.anew()
            assert {each: root.hard_bytes(each) for each in theirs} == theirs
    finally:
        root.ledger.unlink(missing_ok=True)
        for cgroup in CGROUPS:
            root.others(cgroup, NO_LIMIT_BYTES)


@pytest.fixture
def helper(root: Root, tmp_path: Path) -> Iterator[LimitHelperClient]:
    """The helper on a socket, for as long as it is asked."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        serving = (listener, root.setter, lambda: {os.getuid()}, 60.0)
        threading.Thread(target=serve, args=serving, daemon=True).start()
        yield LimitHelperClient(path, str(root.cgroups))


def test_through_the_helper(root: Root, helper: LimitHelperClient) -> None:
    """The agent, which is no root, has it done: set, told and lifted, with every refusal in its words."""
    done = helper.set(root.uuid, UNIT, root.inode(), 3 * GIB, HOLDER)
    assert (done.used_bytes, done.limit) == (2 * GIB, helper.limits()[0])
    with pytest.raises(LimitRefused, match="already"):
        helper.set(root.uuid, UNIT, root.inode(), 3 * GIB, HOLDER)
    assert "is lifted" in helper.lift(root.uuid, UNIT, OWNER)
    assert (helper.limits(), root.hard_bytes(UNIT)) == ((), None)


@pytest.mark.parametrize(
    "line",
    [
        b"\n", b"{}\n", b'{"do": "kill"}\n', b"[]\n", b'{"do": "set"}\n', b"\xff\n", b"x" * 20_000,
        b"[" * 15_000 + b"\n", b'{"until": 1e999, "do": "set", "gpu_uuid": "a", "cgroup": "/a", "inode": 1e999}\n',
    ],
)  # fmt: skip
def test_what_is_no_request(root: Root, helper: LimitHelperClient, line: bytes) -> None:
    """It is refused, and the helper answers the next one."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(helper._socket)
        connection.sendall(line)
        assert "refused" in json.loads(connection.recv(4096))
    assert helper.limits() == ()


def test_a_holder_that_is_none_poisons_no_ledger(root: Root, helper: LimitHelperClient) -> None:
    """What could not be read again is not written: the limits of others could not be lifted any more."""
    helper.set(root.uuid, UNIT, root.inode(), 3 * GIB, HOLDER)
    wrong = LimitHolder("run", pid="7")  # type: ignore[arg-type]
    with pytest.raises(LimitRefused, match="a number no number"):
        helper.set(root.uuid, OTHER, root.inode(OTHER), 5 * GIB, wrong)
    assert [each.cgroup for each in helper.limits()] == [UNIT]
    assert root.hard_bytes(OTHER) is None


def test_a_sub_cgroup_with_any_name(root: Root) -> None:
    """A name that is not UTF-8 is asked about as it is."""
    Path(os.fsdecode(os.fsencode(root.path(UNIT)) + b"/\xff")).mkdir()
    assert root.set() == 2 * GIB


def test_a_request_that_comes_too_late_is_not_done(root: Root, tmp_path: Path) -> None:
    """Given up while the helper was busy: nothing is done later, and the agent says that it does not know."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        client = LimitHelperClient(path, str(root.cgroups), ask_seconds=0.05)
        with pytest.raises(LimitUnknown, match="has not answered"):
            client.set(root.uuid, UNIT, root.inode(), 3 * GIB, HOLDER)  # nobody serves yet
        threading.Thread(target=serve, args=(listener, root.setter, lambda: {os.getuid()}, 60.0), daemon=True).start()
        assert LimitHelperClient(path, str(root.cgroups)).limits() == ()  # served after it
    assert root.hard_bytes(UNIT) is None


def test_all_are_lifted_before_an_uninstall(root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    """Whichever agent has set them; what cannot be lifted is told, and is the exit status."""
    root.set()
    root.setter.set(root.uuid, OTHER, root.inode(OTHER), 5 * GIB, replace(HOLDER, owner="another"))
    root.bench.fail(FaultKind.ERROR, calls=("nvmlDeviceSetMemoryLimits_v1",), code=Code.UNKNOWN)
    assert lift_all(root.setter) == 1
    assert "could not be lifted" in capsys.readouterr().err
    root.bench.node.clear()
    assert lift_all(root.setter) == 0
    assert (root.hard_bytes(UNIT), root.hard_bytes(OTHER)) == (None, None)


def test_who_may_ask(root: Root, tmp_path: Path) -> None:
    """Nobody but root and the agent's user, whatever the mode of the socket."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        threading.Thread(target=serve, args=(listener, root.setter, frozenset, 60.0), daemon=True).start()
        with pytest.raises(LimitRefused, match="only root and the agent's user"):
            LimitHelperClient(path, str(root.cgroups)).set(root.uuid, UNIT, root.inode(), 3 * GIB, HOLDER)
    assert root.hard_bytes(UNIT) is None


def test_without_a_helper(tmp_path: Path) -> None:
    """The way out is told, and no limit is known."""
    (tmp_path / "cgroup.controllers").touch()
    client = LimitHelperClient(tmp_path / "none", str(tmp_path))
    assert "gpuagent-limit.socket" in client.refusal()
    assert client.limits() == ()
    (tmp_path / "ledger.json").touch()
    with pytest.raises(LimitRefused, match="limits were set through it"):
        client.limits()
    with pytest.raises(LimitRefused, match=r"gpuagent-limit\.socket"):
        client.set("GPU-0", UNIT, 5, GIB, HOLDER)
