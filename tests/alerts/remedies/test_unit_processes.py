"""Whose processes a unit runs: seen in its cgroup and in /proc, over trees made for the test."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuagent.core.identity import ProcessId
from gpuagent.procfs.files import ProcFiles
from gpuagent_alerts.remedies.facts.process_scan import ProcessScan
from gpuagent_alerts.remedies.facts.terminals import OpenFiles
from gpuagent_alerts.remedies.facts.ties import Tie, TieFinder
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.observation import ProcessEnded, UnitPermission
from gpuagent_alerts.remedies.safeguards.never_list import NEVER
from tests.fakes.cgroups import CGROUP, OWN_ROOT, START_TICKS, UNIT, CgroupTree, unit_target
from tests.fakes.proc import stat_text

NAMES = {0: "root", 1000: "svc", 1001: "alice", 1002: "bob", 1003: "carol", 1004: "dave"}
CONTAINER = "ab" * 32
ALICE = (1001, 1001, 1001, 1001)

PERMISSION = UnitPermission(never_processes=NEVER)


def user_of(uid: int) -> pwd.struct_passwd:
    """The user database of this machine. Raises KeyError."""
    return pwd.struct_passwd((NAMES[uid], "x", uid, uid, "", "/", "/bin/sh"))


@pytest.fixture(params=[False, True], ids=["v2", "v1"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> CgroupTree:
    """With the main process of the unit, in a hierarchy of either version."""
    made = CgroupTree(tmp_path, legacy=request.param)
    made.add(100)
    return made


def processes(tree: CgroupTree, files: ProcFiles | None = None) -> UnitProcesses:
    """A look at that machine."""
    return UnitProcesses(files or tree.proc, mountinfo=tree.mountinfo, user_of=user_of)


def shared(tree: CgroupTree, own_uid: int = 1000, cgroup: str = CGROUP) -> str:
    """The verdict on the unit."""
    return processes(tree).shared_with(UNIT, cgroup, own_uid)


NEVER_IN_IT: dict[str, tuple[dict[str, Any], str]] = {
    "by its name": ({"name": b"sshd"}, "sshd runs in"),
    "below the unit": ({"name": b"slurmd", "cgroup": f"{CGROUP}/user/x"}, "slurmd runs in"),
    "spared by the kernel": ({"oom_score_adjust": -1000}, "oom_score_adj -1000"),
}


@pytest.mark.parametrize(("process", "words"), NEVER_IN_IT.values(), ids=NEVER_IN_IT)
def test_the_never_list_stands_for_everybody_in_the_unit(tree: CgroupTree, process: dict[str, Any], words: str) -> None:
    """KILL-01: a restart ends all of its processes: one that no remedy may end forbids it, whoever asks."""
    look = processes(tree)
    tree.add(101)
    tree.add(102, "/system.slice/other.service", name=b"sshd", oom_score_adjust=-1000)
    assert look.never_ended(UNIT, CGROUP, PERMISSION) == ""
    tree.add(103, **process)
    assert words in look.never_ended(UNIT, CGROUP, PERMISSION)


def test_a_program_of_the_never_list_under_another_name(tree: CgroupTree) -> None:
    """KILL-01: by its executable too, also where an upgrade has replaced that."""
    tree.add(101)
    tree.proc.files[101]["exe"] = b"/usr/sbin/sshd (deleted)"
    assert "sshd runs in" in processes(tree).never_ended(UNIT, CGROUP, PERMISSION)
    tree.proc.files[101]["exe"] = PermissionError(13, "no right to trace it")
    assert processes(tree).never_ended(UNIT, CGROUP, PERMISSION) == ""


def test_a_leader_that_has_ended_hides_nobody(tree: CgroupTree) -> None:
    """KILL-01: a process whose first thread has ended has no link to its program, and is judged all the same."""
    tree.add(101, name=b"sshd")
    del tree.proc.files[101]["exe"]
    assert "sshd runs in" in processes(tree).never_ended(UNIT, CGROUP, PERMISSION)


def test_who_is_spared_stands_for_the_unit(tree: CgroupTree) -> None:
    """KILL-03: who must not end along with another keeps the whole unit; not who has the number of one that ended."""
    tree.add(101)
    for start, against in ((START_TICKS, f"pid 101 runs in {UNIT}: it works"), (START_TICKS - 1, "")):
        permission = replace(PERMISSION, spared={(101, start): "it works"})
        assert processes(tree).never_ended(UNIT, CGROUP, permission) == against


def test_the_agent_in_the_unit(tree: CgroupTree) -> None:
    """KILL-01: a supervisor that runs the agent too is not restarted by it."""
    tree.add(os.getpid())
    assert "the agent itself" in processes(tree).never_ended(UNIT, CGROUP, PERMISSION)


@pytest.mark.parametrize("name", ["MainPID", "ControlPID"])
def test_a_main_process_elsewhere(tree: CgroupTree, name: str) -> None:
    """KILL-03: systemd ends the main and the control process with their unit, wherever they run: that withholds."""
    tree.add(101, "/system.slice/other.service", uids=ALICE, name=b"serve")
    look = processes(tree)
    assert look.not_of_unit(UNIT, CGROUP, {}) == look.not_of_unit(UNIT, CGROUP, {name: 100}) == ""
    against = look.not_of_unit(UNIT, CGROUP, {name: 101})
    assert f"systemd has {name}=101 for {UNIT}, and would end that as well (serve of alice, in /system" in against
    assert "does not run in the unit" in look.not_of_unit(UNIT, CGROUP, {name: 102})
    tree.add(103, f"{CGROUP}/below")
    assert look.not_of_unit(UNIT, CGROUP, {"MainPID": 100, name: 103}) == ""


def test_who_is_in_the_unit_cannot_be_seen(tree: CgroupTree) -> None:
    """No answer is no permission."""
    tree.add(101)
    tree.proc.files[101]["oom_score_adj"] = PermissionError(13, "hidden")
    assert "it cannot be seen what pid 101" in processes(tree).never_ended(UNIT, CGROUP, PERMISSION)


def test_a_unit_of_its_own(tree: CgroupTree) -> None:
    """Its user's processes, wherever below it, without login or terminal; others' beside it do not count."""
    tree.add(101, f"{CGROUP}/workers/1")
    tree.add(102, f"{CGROUP}2", uids=ALICE, login_uid=1001)
    tree.add(103, "/system.slice/other.service", uids=ALICE)
    assert shared(tree) == ""


@pytest.mark.parametrize("uids", [ALICE, *((*(1000,) * n, 1001, *(1000,) * (3 - n)) for n in range(4))])
@pytest.mark.parametrize("cgroup", [CGROUP, f"{CGROUP}/user/alice/notebook"])
def test_a_process_of_another_user(tree: CgroupTree, uids: tuple[int, int, int, int], cgroup: str) -> None:
    """Any of its four user ids makes it another user's, however far down it is."""
    tree.add(101, cgroup, uids=uids)
    assert shared(tree) == f"{UNIT} runs processes of other users: alice (1)"


def test_many_users(tree: CgroupTree) -> None:
    """Three are named with their processes, the rest is counted; a uid without a name is its number."""
    for pid, uid in enumerate([1001, 1001, 1002, 1003, 1004, 4242], start=200):
        tree.add(pid, uids=(uid, uid, uid, uid))
    assert shared(tree).endswith("other users: 4242 (1), alice (2), bob (1) and 2 others")


def test_a_daemon_that_gave_up_root(tree: CgroupTree) -> None:
    """A unit of root's with a process of a user: what that user's work is, nobody can tell."""
    tree.add(101, uids=(0, 0, 0, 0))
    assert "other users: svc (1)" in shared(tree, own_uid=0)


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ({"login_uid": 1000}, "pid 101 comes from a login of svc"),
        ({"login_uid": 0}, "pid 101 comes from a login of root"),
        ({"session": 7}, "pid 101 comes from a login"),
        ({"terminal": 34816}, "pid 101 has a terminal"),
        ({"terminal": -2147483648}, "pid 101 has a terminal"),
    ],
)
def test_a_session(tree: CgroupTree, fact: dict[str, Any], words: str) -> None:
    """A login or a terminal is a person at work, also one who logged in as the unit's own user."""
    tree.add(101, **fact)
    assert shared(tree) == f"somebody's session runs in {UNIT}: {words}"


@pytest.mark.parametrize("own_uid", [0, 1000])
@pytest.mark.parametrize(
    ("fact", "words"),
    [
        ({"namespace_pids": (102, 1)}, "is in a pid namespace of its own"),
        ({"mountinfo": OWN_ROOT}, "has a root directory of its own"),
        ({"cgroup": f"{CGROUP}/docker/{CONTAINER}"}, f"is in container {CONTAINER[:12]}"),
        ({"cgroup": f"{CGROUP}/libpod-payload-{CONTAINER}"}, f"is in container {CONTAINER[:12]}"),
        ({"cgroup": f"{CGROUP}/lxc.payload.web/init.scope"}, "is in container lxc/web"),
    ],
)
def test_containers(tree: CgroupTree, own_uid: int, fact: dict[str, Any], words: str) -> None:
    """P7: a container in a unit has the unit's own user: its namespace, root or cgroup show that it is another's."""
    uids = (own_uid,) * 4
    for pid in (100, 101):
        tree.add(pid, uids=uids)
    assert shared(tree, own_uid) == ""
    tree.add(102, uids=uids, **fact)
    assert shared(tree, own_uid) == f"{UNIT} runs containers: pid 102 {words}"


def add_monitored(tree: CgroupTree, pid: int, parent: int, name: bytes = b"conmon", **facts: Any) -> None:
    """Start a process of a quadlet, by default a conmon of root's."""
    uid_map = facts.pop("uid_map", b"0 1004 1000\n2000 1001 1\n")
    tree.add(pid, **({"uids": (0, 0, 0, 0), "name": name} | facts))
    tree.proc.files[pid]["uid_map"] = uid_map
    stat = stat_text(pid, name, parent_pid=parent, start_ticks=START_TICKS, terminal=facts.get("terminal", 0))
    tree.proc.files[pid]["stat"] = stat
    tree.proc.files[pid]["exe"] = b"/usr/bin/" + name


PAYLOAD = f"{CGROUP}/libpod-payload-{CONTAINER}"
QUADLET: dict[str, tuple[int, tuple[int, int, dict[str, Any]] | None, str, str]] = {
    "its own container": (200, None, "", ""),
    "its main process is another": (100, None, "runs processes of other users", ""),
    "another container": (200, (300, 1, {}), "pid 300 monitors one that is not the unit's own", ""),
    "one called so": (200, (300, 1, {"uids": ALICE}), "other users: alice", "conmon runs in"),
    "in the container, of the same path": (
        200, (300, 201, {"namespace_pids": (300, 2), "mountinfo": OWN_ROOT, "cgroup": PAYLOAD}), "", "conmon runs in"
    ),
    "a container in the container": (
        200, (300, 201, {"name": b"sh", "namespace_pids": (300, 2, 1)}), "pid 300 is in a pid namespace", ""
    ),
    "who came into the container": (
        200, (300, 1, {"name": b"sh", "namespace_pids": (300, 2), "cgroup": PAYLOAD}), "is in a pid namespace", ""
    ),
    "a second user in it": (
        200, (300, 201, {"name": b"sh", "namespace_pids": (300, 2), "uids": (1002, 1003, 1003, 1003)}),
        "the container of whisper.service runs processes of several users: alice (1), bob (1), carol (1)", "",
    ),
    "a second user in it, root in a user namespace": (
        200, (300, 201, {"name": b"sh", "namespace_pids": (300, 2), "uids": (1002,) * 4, "uid_map": b"0 1002 1\n"}),
        "several users: alice (1), bob (1)", "",
    ),
    "root, and the container's own": (
        200, (300, 201, {"name": b"sh", "namespace_pids": (300, 2), "uids": (0, 1004, 0, 0)}), "", "",
    ),
    "a terminal in it": (
        200, (300, 201, {"name": b"sh", "namespace_pids": (300, 2), "terminal": 34816}), "pid 300 has a terminal", ""
    ),
}  # fmt: skip


@pytest.mark.parametrize(("main", "other", "sharing", "never"), QUADLET.values(), ids=QUADLET)
def test_the_container_that_a_unit_is_made_of(
    tmp_path: Path, main: int, other: tuple[int, int, dict[str, Any]] | None, sharing: str, never: str
) -> None:
    """A quadlet's conmon and container are the unit's own; another's are not, and who is called conmon is spared."""
    tree = CgroupTree(tmp_path)
    add_monitored(tree, 200, 1)
    inside = {"uids": ALICE, "namespace_pids": (201, 1), "mountinfo": OWN_ROOT, "cgroup": PAYLOAD}
    add_monitored(tree, 201, 200, b"python3", **inside)
    if other is not None:
        pid, parent, facts = other
        add_monitored(tree, pid, parent, **dict(facts))
    look = processes(tree)
    words = look.shared_with(UNIT, CGROUP, 0, main)
    assert sharing in words if sharing else words == ""
    against = look.never_ended(UNIT, CGROUP, PERMISSION, main)
    assert never in against if never else against == ""
    own = replace(PERMISSION, never_processes=(*NEVER, "conmon*"))
    assert "conmon runs in" in look.never_ended(UNIT, CGROUP, own, main)
    tree.proc.files[201]["uid_map"] = PermissionError(13, "hidden")
    assert look.shared_with(UNIT, CGROUP, 0, main)


def test_a_root_directory_that_cannot_be_seen(tree: CgroupTree) -> None:
    """What hides its root directory may be a container; a zombie has none any more."""
    tree.add(101, state="Z", mountinfo=b"")
    assert shared(tree) == ""
    tree.add(101, mountinfo=b"")
    assert "pid 101: its root directory is unknown" in shared(tree)
    tree.proc.end(1)
    assert "cannot be seen whose" in shared(tree)


@pytest.mark.parametrize("name", ["stat", "status", "loginuid", "sessionid", "cgroup", "mountinfo"])
def test_a_fact_is_missing(tree: CgroupTree, name: str) -> None:
    """What the kernel does not tell, or hides, is not taken for good news."""
    tree.add(101)
    tree.proc.files[101][name] = PermissionError(1, "Operation not permitted")
    assert "cannot be seen whose" in shared(tree)
    del tree.proc.files[101][name]
    assert "cannot be seen whose" in shared(tree)


def test_a_process_that_proc_does_not_show(tree: CgroupTree) -> None:
    """With hidepid=2 others' processes seem to have ended; the cgroup still lists them."""
    tree.put(101)
    assert "/proc does not show pid 101" in shared(tree)


@pytest.mark.parametrize("cgroup", ["", "/", "system.slice", "/system.slice/../x", "/none.service"])
def test_no_cgroup(tree: CgroupTree, cgroup: str) -> None:
    """Without a cgroup, or with one that is none, nothing can be seen."""
    assert "cannot be seen whose" in shared(tree, cgroup=cgroup)


def test_an_empty_cgroup(tree: CgroupTree) -> None:
    """A unit without processes is not one that runs only its own."""
    (tree.root / CGROUP[1:] / "cgroup.procs").write_text("")
    assert "has no processes" in shared(tree)


def test_cgroups_are_not_mounted(tree: CgroupTree) -> None:
    """Where no hierarchy is seen, or mountinfo is hidden, neither is a unit's."""
    tree.mountinfo.write_text("")
    assert "there is no cgroup" in shared(tree)
    tree.mountinfo.unlink()
    assert "cannot be seen whose" in shared(tree)


def test_one_that_moved_away(tree: CgroupTree) -> None:
    """A process that was listed and is elsewhere by the kernel's word is looked for again, and never judged."""
    tree.add(101, "/system.slice/other.service", uids=ALICE)
    tree.put(101)
    assert "cannot be seen whose" in shared(tree)


class Forking:
    """A /proc whose every read of a process lets one end, and another begin: as a service that runs short programs."""

    def __init__(self, tree: CgroupTree, births: int, **last: Any) -> None:
        self._tree, self._births, self._last = tree, births, last
        self._next = 1000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree.proc, name)

    def read(self, pid: int, name: str) -> bytes:
        if name == "stat" and self._births:
            self._births -= 1
            self._next += 1
            self._tree.add(self._next, **(self._last if not self._births else {}))
        return self._tree.proc.read(pid, name)


def test_processes_that_begin_meanwhile(tree: CgroupTree) -> None:
    """The list is read again until it has no unknown process: one that came late is judged too."""
    assert processes(tree, Forking(tree, 3)).shared_with(UNIT, CGROUP, 1000) == ""
    late = Forking(tree, 3, uids=ALICE)
    assert "alice (1)" in processes(tree, late).shared_with(UNIT, CGROUP, 1000)


def test_processes_that_never_stop_beginning(tree: CgroupTree) -> None:
    """Who cannot be looked at to the end is not known."""
    verdict = processes(tree, Forking(tree, 1000)).shared_with(UNIT, CGROUP, 1000)
    assert "come and go too fast" in verdict


def test_the_target_is_in_the_unit(tree: CgroupTree) -> None:
    """By the kernel's path and systemd's: in the unit, or in a cgroup below it."""
    tree.add(101, f"{CGROUP}/worker")
    look = processes(tree)
    assert [look.not_in_unit(unit_target(pid), UNIT, CGROUP) for pid in (100, 101)] == ["", ""]


def test_the_target_is_elsewhere(tree: CgroupTree) -> None:
    """In another unit, in none, under another number, or not to be seen: never taken for a part of this one."""
    tree.add(101, "/system.slice/other.service")
    look = processes(tree)
    assert "pid 101 does not run in" in look.not_in_unit(unit_target(101), UNIT, CGROUP)
    earlier = replace(unit_target(), id=ProcessId("boot", 100, START_TICKS - 1))
    assert "pid 100 is another process now" in look.not_in_unit(earlier, UNIT, CGROUP)
    assert "cannot be seen" in look.not_in_unit(unit_target(), UNIT, "/")
    tree.proc.files[100]["cgroup"] = PermissionError(1, "Operation not permitted")
    assert "cannot be seen" in look.not_in_unit(unit_target(), UNIT, CGROUP)
    tree.proc.end(100)
    with pytest.raises(ProcessEnded):
        look.not_in_unit(unit_target(), UNIT, CGROUP)


class OtherProcesses:
    """Real processes of others, and which of them depend on those of a unit."""

    def __init__(self, tree: CgroupTree, names: dict[int, bytes]) -> None:
        self.seen = [1, 100, *names]
        for pid, name in names.items():
            tree.add(pid, "/user.slice/session-1.scope", uids=ALICE, name=name)
            tree.proc.files[pid]["stat"] = stat_text(pid, name, parent_pid=100, start_ticks=START_TICKS)
        self.finder = TieFinder(tree.proc, pids=lambda: self.seen, open_files=NoOpenFiles())

    def tied(self, tree: CgroupTree, *, shared: bool = False, never: Collection[str] = NEVER) -> str:
        """The verdict."""
        look = UnitProcesses(tree.proc, mountinfo=tree.mountinfo, user_of=user_of, ties=self.finder)
        return look.tied_with(UNIT, CGROUP, UnitPermission(shared=shared, never_processes=tuple(never)))


class NoOpenFiles(OpenFiles):
    """Nobody has any."""

    def list(self, pid: int, folder: str) -> list[int]:
        return []


def test_who_depends_on_a_unit(tree: CgroupTree) -> None:
    """KILL-03: a process elsewhere that descends from one in the unit withholds its restart, by name and reason."""
    others = OtherProcesses(tree, {201: b"bash"})
    wanted = "the end of whisper.service would also end, or hang up, pid 201 (bash of alice, started by pid 100, and of"
    assert others.tied(tree).startswith(wanted)
    assert others.tied(tree, shared=True) == ""
    others.seen.remove(201)
    assert others.tied(tree) == ""


def test_who_depends_on_a_unit_and_on_another_that_ends(tree: CgroupTree) -> None:
    """KILL-03: one that only the end of both takes along counts once the end of the other was asked for."""

    class OfBoth(TieFinder):
        def find(self, pids: Collection[int], scan: ProcessScan | None = None) -> Mapping[int, Tie]:
            seen = scan or self.scan()
            return {201: Tie(seen.rows[201], "held by both")} if {100, 300} <= set(pids) else {}

    tree.add(201, "/user.slice/session-1.scope", uids=ALICE, name=b"bash")
    tree.add(300, "/user.slice/session-1.scope", uids=ALICE, name=b"train")
    finder = OfBoth(tree.proc, pids=lambda: [1, 100, 201, 300], open_files=NoOpenFiles())
    look = UnitProcesses(tree.proc, mountinfo=tree.mountinfo, user_of=user_of, ties=finder)
    other = ProcessId("boot", 300, START_TICKS)
    assert look.tied_with(UNIT, CGROUP, PERMISSION) == ""
    refusal = look.tied_with(UNIT, CGROUP, replace(PERMISSION, ending=[other]))
    assert "pid 201 (bash of alice, held by both, if pid 300 ends too" in refusal
    assert look.tied_with(UNIT, CGROUP, replace(PERMISSION, ending=[other._replace(start_ticks=1)])) == ""


def test_many_depend_on_a_unit(tree: CgroupTree) -> None:
    """Three are named, the rest is counted."""
    assert (
        OtherProcesses(tree, dict.fromkeys(range(201, 207), b"bash"))
        .tied(tree)
        .split("; ")[0]
        .endswith(" and 3 others")
    )


def test_the_never_list_stands_for_who_depends_on_a_unit(tree: CgroupTree) -> None:
    """KILL-01: one of the never-list forbids it, also where the unit may be restarted with others' work in it."""
    for shared in (False, True):
        tied = OtherProcesses(tree, {201: b"sshd"}).tied(tree, shared=shared)
        assert "sshd runs in the work that depends on whisper.service (pid 201), and is on the never-list" in tied


def test_who_depends_on_a_unit_cannot_be_seen(tree: CgroupTree) -> None:
    """No answer is no permission."""
    others = OtherProcesses(tree, {201: b"bash"})
    others.seen.remove(1)
    assert "it cannot be told whom the end of whisper.service would end" in others.tied(tree, shared=True)
