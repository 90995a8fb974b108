"""Who ends by what systemd and logind do once processes have ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from tests.alerts.remedies.unit_node import (
    ALICE,
    BOB,
    CONTAINER,
    MANAGER,
    SESSION,
    Node,
    bound_node,
)


@pytest.fixture
def bound(tmp_path: Path) -> Node:
    """Return a scope of Alice, and a service of Bob that is bound to it."""
    return bound_node(tmp_path)


def test_a_process_of_a_scope(bound: Node) -> None:
    """A scope is taken to end with any process of it: who waits for whom in there cannot be seen."""
    (tie,) = bound.tied(10).values()
    assert (tie.row.pid, tie.may_be_own) == (20, False)
    assert tie.why == "in other.service; systemd stops it once job.scope has ended"
    bound.add(11, "system.slice/job.scope")
    bound.add(12, "system.slice/job.scope", uid=0)
    assert set(bound.tied(10)) == set(bound.tied(10, 11)) == {20}
    bound.add(30, "system.slice/another.scope")
    bound.systemd.units["another.scope"] = {}
    assert not bound.tied(30)


@pytest.mark.parametrize("waiting_uid", [ALICE, 0])
def test_who_waits_in_a_scope(bound: Node, waiting_uid: int) -> None:
    """The script that waits for the job does not keep a scope, nor does sudo, nor the other side of a pipe."""
    bound.add(9, "system.slice/job.scope", waiting_uid)
    bound.add(10, "system.slice/job.scope", parent=9)
    bound.add(13, "system.slice/job.scope", parent=9)
    assert set(bound.tied(10)) == {20}


@pytest.mark.parametrize(
    ("starter", "main", "name", "tied"),
    [
        ("starter.service", 8, "sh", {9, 20}),  # its script waits
        ("starter.service", 0, "sh", {9, 20}),  # it may have ended: the service ends with the last process
        ("starter.scope", 0, "sh", {9, 20}),
        ("podman-web.service", 8, "conmon", {9, 20}),
        ("docker.service", 8, "sh", {9, 20}),
        ("docker.service", 8, "containerd", set()),  # it goes on, as what starts the work of others does
        ("any.service", 8, "sshd", set()),
        ("docker.service", 10, "containerd", {8, 9, 20}),  # but for its main process, wherever that was moved
        ("starter.service", 10, "sh", {8, 9, 20}),
        ("starter.service", 9, "sh", set()),  # its main process is another, which does not wait by descent
        ("slurmstepd.scope", 0, "slurmstepd", set()),
    ],
)
def test_a_unit_in_which_somebody_waits(tmp_path: Path, starter: str, main: int, name: str, tied: set[int]) -> None:
    """KILL-03: a service may end with its main process, or with what that waits for, whatever unit that is in."""
    node = Node(tmp_path, job_scope={}, other_service={})
    node.systemd.units[starter] = {"MainPID": str(main), "BoundBy": "other.service"}
    node.add(8, f"system.slice/{starter}", 0, name=name)
    node.add(9, f"system.slice/{starter}", BOB)
    node.add(10, "system.slice/job.scope", parent=8)
    node.add(20, "system.slice/other.service", BOB)
    assert set(node.tied(10)) == tied
    if name == "containerd" and main == 8:
        node.add(8, f"system.slice/{starter}", BOB, name=name)  # a name that not root has given
        assert set(node.tied(10)) == {9, 20}


@pytest.mark.parametrize("unit", ["jenkins.service", "atd.service", "jupyterhub.service"])
@pytest.mark.parametrize(
    ("name", "uid", "tied"),
    [("sh", 0, {8, 9}), ("java", BOB, {8, 9}), ("atd", BOB, {8, 9}), ("atd", 0, set()), ("gitlab-runner", 0, set())],
)
def test_a_job_in_the_unit_of_a_daemon(tmp_path: Path, unit: str, name: str, uid: int, tied: set[int]) -> None:
    """KILL-03: where the main process is not known to go on, all of the unit may end with the job."""
    node = Node(tmp_path)
    node.systemd.units[unit] = {"MainPID": "8"}
    node.add(8, f"system.slice/{unit}", uid, name=name)
    node.add(9, f"system.slice/{unit}", BOB)
    node.add(10, f"system.slice/{unit}", parent=8)
    assert set(node.tied(10)) == tied
    node.systemd.units["own.service"] = {"MainPID": "18"}
    node.add(18, "system.slice/own.service", name="sh")
    node.add(19, "system.slice/own.service", parent=18)
    assert not node.tied(19)  # supervised: no remedy ends it alone


PYTHON, SHELL = "/usr/bin/python3.11", "/usr/bin/dash"


@pytest.mark.parametrize(
    ("name", "executable", "command", "goes_on"),
    [
        ("containerd-web", SHELL, "/bin/sh /usr/local/bin/containerd-web", False),
        ("containerd", SHELL, "/bin/sh /usr/local/bin/containerd", False),
        ("k3s-train-job", SHELL, "/bin/sh /opt/k3s-train-job", False),
        ("containerd-web", "/usr/local/bin/containerd-web", "containerd-web", False),
        ("containerd", "/home/root/containerd", "/home/root/containerd", False),
        ("containerd", "/usr/../home/containerd", "containerd", False),
        ("containerd", "/usr/bin/containerd (deleted)", "/usr/bin/containerd", True),  # after an upgrade
        ("k3s-server", "/var/lib/rancher/k3s/data/5d/bin/k3s", "/usr/local/bin/k3s server", True),
        ("jupyterhub", PYTHON, "/usr/bin/python3 /opt/hub/bin/jupyterhub -f x.py", True),
        ("python3", PYTHON, "/opt/tljh/hub/bin/python3 -m jupyterhub.app -f x.py", True),
        ("supervisord", PYTHON, "/usr/bin/python3 /usr/bin/supervisord -n", True),
        ("jupyterhub", PYTHON, "/usr/bin/python3 /opt/hub.py", False),
        ("jupyterhub", SHELL, "/bin/sh /opt/jupyterhub", False),
        ("sshd", None, "sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", True),
        ("cron", None, "/usr/sbin/cron -f", True),
        ("jupyterhub", None, "/usr/bin/python3 /opt/hub/bin/jupyterhub", True),
        ("containerd", None, "/bin/sh /usr/local/bin/containerd", False),
        ("web", None, "containerd: x", False),
        ("containerd", None, "containerd", False),
    ],
)
def test_who_goes_on(tmp_path: Path, name: str, executable: str | None, command: str, *, goes_on: bool) -> None:
    """KILL-03: a starter of others' jobs is known by its program's file, or by its arguments where that is hidden."""
    node = Node(tmp_path, web_service={"MainPID": "8", "BoundBy": "other.service"}, job_scope={}, other_service={})
    node.add(8, "system.slice/web.service", 0, name=name)
    node.add(10, "system.slice/job.scope", parent=8)
    node.add(20, "system.slice/other.service", BOB)
    node.proc.files[8]["exe"] = PermissionError() if executable is None else executable.encode()
    node.proc.files[8]["cmdline"] = command.replace(" ", "\0").encode() + b"\0"
    if ": " in command:
        node.proc.files[8]["cmdline"] = command.encode() + b"\0"
    assert set(node.tied(10)) == (set() if goes_on else {20})


@pytest.mark.parametrize(
    "command", ["/usr/sbin/cron\0-f", "sshd: /usr/sbin/sshd -D [listener]", "python3\0-m\0jupyterhub"]
)
@pytest.mark.parametrize(
    ("whose", "name", "content"),
    [
        (8, "loginuid", b"1000"), (8, "sessionid", b"3"), (7, "loginuid", b"1000"), (7, "sessionid", b"3"),
        (8, "loginuid", FileNotFoundError()), (7, "uid", b"1000"), (8, "", b""),
    ],
)  # fmt: skip
def test_arguments_of_what_a_user_has_started(
    tmp_path: Path, whose: int, name: str, content: bytes | OSError, command: str
) -> None:
    """KILL-03: a user chooses the arguments of a setuid program, which is root's: they do not make it a starter."""
    node = Node(tmp_path, web_service={"MainPID": "8", "BoundBy": "other.service"}, job_scope={}, other_service={})
    node.add(7, "system.slice/web.service", 1000 if name == "uid" else 0, name="sh")
    node.add(8, "system.slice/web.service", 0, name="sshd", parent=7)
    node.add(10, "system.slice/job.scope", parent=8)
    node.add(20, "system.slice/other.service", BOB)
    node.proc.files[8]["exe"] = b"/usr/bin/python3" if command.startswith("python") else PermissionError()
    node.proc.files[8]["cmdline"] = command.encode() + b"\0"
    if name not in {"", "uid"}:
        node.proc.files[whose][name] = content
    assert (20 in node.tied(10)) == bool(name)


@pytest.mark.parametrize(
    ("listens", "parent", "tied"),
    [("none", 8, set()), ("main", 8, set()), ("all", 8, {8, 9}), ("exec", 8, {8, 9}), ("all", 1, {8, 9})],
)
def test_a_unit_that_listens_to_any_process(tmp_path: Path, listens: str, parent: int, tied: set[int]) -> None:
    """KILL-03: with NotifyAccess=all the keep-alive of a watchdog may be the job's: the unit may fail without it."""
    node = Node(tmp_path, sshd_service={"MainPID": "18", "NotifyAccess": listens}, job_scope={})
    node.systemd.units["jupyterhub.service"] = {"MainPID": "8", "NotifyAccess": listens}
    node.add(8, "system.slice/jupyterhub.service", 0, name="gitlab-runner")
    node.add(9, "system.slice/jupyterhub.service", BOB)
    node.add(10, "system.slice/jupyterhub.service", parent=parent)
    assert set(node.tied(10)) == tied
    node.add(18, "system.slice/sshd.service", 0, name="sshd")
    node.add(19, "system.slice/sshd.service", 0, parent=18)
    node.add(20, "system.slice/job.scope", parent=18)
    assert set(node.tied(20)) == ({19} if tied else set())


@pytest.mark.parametrize(
    ("main", "listens", "named", "tied"),
    [
        (8, "none", "ml.service", set()),
        (8, "none", "other.service", {20}),
        (8, "all", "ml.service", {8, 9, 20}),
        (10, "none", "ml.service", {8, 9, 20}),  # its main process is the job itself
        (7, "none", "ml.service", {20}),  # another, for which the job does not wait
    ],
)
def test_a_unit_that_root_names(tmp_path: Path, main: int, listens: str, named: str, tied: set[int]) -> None:
    """KILL-03: what root calls a supervisor goes on, but for its own main process and for whom systemd listens to."""
    node = Node(tmp_path, other_service={"MainPID": "20"}, job_scope={})
    node.supervisors.use([named])
    of_unit = {"MainPID": str(main), "NotifyAccess": listens}
    node.systemd.units["ml.service"] = of_unit
    node.add(8, "system.slice/ml.service", BOB, name="python3")
    node.add(9, "system.slice/ml.service", BOB, parent=8)
    node.add(10, "system.slice/ml.service", parent=8)
    node.add(20, "system.slice/other.service", BOB)
    assert set(node.tied(10)) == tied - {20}
    node.add(11, "system.slice/job.scope", parent=8)
    node.systemd.units["ml.service"] = of_unit | {"BoundBy": "other.service"}
    if main != 10 and listens == "none":  # a job that was moved: the unit that waits for it goes on as well
        assert set(node.tied(11)) == (set() if named == "ml.service" or main == 7 else {9, 10, 20})


def test_everybody_beside_it_in_its_unit(tmp_path: Path) -> None:
    """KILL-03: who answers for a unit is shown all of it, and who depends on those; its main process is left out."""
    node = Node(tmp_path, own_service={"MainPID": "8", "BoundBy": "next.service"}, next_service={"MainPID": "20"})
    node.add(8, "system.slice/own.service", BOB)
    node.add(10, "system.slice/own.service", parent=8)
    node.add(11, "system.slice/own.service", 0, parent=8)
    node.add(20, "system.slice/next.service", BOB)
    node.add(12, "system.slice/elsewhere.service", BOB)
    node.systemd.units["own.service"] = {**node.systemd.units["own.service"], "ControlPID": "12"}
    assert node.with_units(10).keys() == {8, 11, 12, 20}
    with pytest.raises(UnseenProcesses, match=r"pid 8 is the main process of own\.service"):
        node.with_units(8, 10)
    pkill = "{ path=/usr/bin/pkill ; argv[]=/usr/bin/pkill -f vllm ; }"
    node.systemd.units["own.service"] = {**node.systemd.units["own.service"], "ExecStopPost": pkill}
    with pytest.raises(UnseenProcesses, match=r"own\.service has ExecStopPost= runs pkill"):
        node.with_units(10)
    node.supervisors.use(["own.service"])
    assert not node.with_units(10)  # judged as the job of a unit that goes on
    for cgroup in (CONTAINER, f"{MANAGER}/app.slice/x.service", "system.slice/cron.service", "elsewhere"):
        node.add(30, cgroup, parent=8)
        assert not node.with_units(30)


def test_a_job_that_made_itself_the_main_process(tmp_path: Path) -> None:
    """KILL-03: a daemon's unit ends with its main process, whichever process has told systemd that it is that one."""
    node = Node(tmp_path)
    node.systemd.units["jupyterhub.service"] = {"MainPID": "10"}
    node.add(8, "system.slice/jupyterhub.service", 0, name="gitlab-runner")
    node.add(10, "system.slice/jupyterhub.service", parent=8)
    assert set(node.tied(10)) == {8}


def test_an_action_at_the_failure_of_a_daemon(tmp_path: Path) -> None:
    """KILL-03: what the unit of a job would do to the machine keeps the job, though the daemon may go on."""
    node = Node(tmp_path)
    node.systemd.units["jupyterhub.service"] = {"MainPID": "8", "FailureAction": "reboot"}
    node.add(8, "system.slice/jupyterhub.service", 0, name="gitlab-runner")
    node.add(10, "system.slice/jupyterhub.service", parent=8)
    with pytest.raises(UnseenProcesses, match="FailureAction=reboot"):
        node.tied(10)


def test_a_parent_that_was_moved(bound: Node) -> None:
    """The script that waits may be the main process of a service in another cgroup, and the job in no unit at all.

    systemd ends the main and the control process of a unit that ends, wherever they run.
    """
    bound.systemd.units["starter.service"] = {"MainPID": "9", "ControlPID": "7", "BoundBy": "other.service"}
    bound.add(7, "elsewhere", 0)
    bound.add(9, "elsewhere", 0)
    for job, parent in ((50, 9), (51, 7)):
        bound.add(job, "somewhere", parent=parent)
        assert set(bound.tied(job)) == {7, 9, 20}
        bound.proc.end(job)


def test_a_main_process_of_two_units(tmp_path: Path) -> None:
    """A stale `PIDFile=` names the main process of another unit: each unit ends with it, and it with each."""
    node = Node(tmp_path, one_service={"MainPID": "10", "BoundBy": "other.service"}, other_service={"MainPID": "20"})
    node.add(10, "system.slice/one.service")
    node.add(20, "system.slice/third.service", BOB)
    node.systemd.units["third.service"] = {"MainPID": "20"}
    assert set(node.tied(10)) == {20}
    assert set(node.tied(20)) == set()
    node.add(30, "system.slice/other.service", BOB)
    assert set(node.tied(20)) == {30}


@pytest.mark.parametrize("scope", ["slurmstepd.scope", "node1_slurmstepd.scope"])
def test_the_scope_of_all_slurm_jobs(bound: Node, scope: str) -> None:
    """It is held by a process of Slurm's own, and does not end with a job: nobody is asked about it."""
    bound.add(40, f"system.slice/{scope}/system", 0, name="slurmstepd")
    bound.add(41, f"system.slice/{scope}/job_7/step_0/user/task_0")
    bound.is_silent = True
    assert not bound.tied(41)
    bound.proc.end(40)
    with pytest.raises(UnseenProcesses):
        bound.tied(41)


def test_a_process_of_a_service(tmp_path: Path) -> None:
    """A service is taken to end with any process of it; who depends on that ends along."""
    node = Node(
        tmp_path,
        own_service={"MainPID": "10", "BoundBy": "next.service"},
        next_service={"BoundBy": "last.service"},
        last_service={},
    )
    for pid, unit in ((10, "own"), (11, "own"), (20, "next"), (30, "last")):
        node.add(pid, f"system.slice/{unit}.service", BOB if pid > 11 else ALICE)
    assert set(node.tied(10)) == {20, 30}
    assert set(node.tied(11)) == {20, 30}


def test_without_an_answer(bound: Node) -> None:
    """Where systemd cannot be asked, nobody can tell who ends; a container's scope is in nobody's unit file."""
    bound.is_silent = True
    with pytest.raises(UnseenProcesses):
        bound.tied(10)
    bound.add(40, CONTAINER)
    assert not bound.tied(40)
    bound.add(41, "docker/container")
    assert not bound.tied(41)


@pytest.mark.parametrize(
    "dropped_in", [{"SuccessAction": "exit"}, {"OnSuccess": "other.timer"}], ids=["for the machine", "not simple"]
)
def test_a_drop_in_of_all_containers(bound: Node, dropped_in: dict[str, str]) -> None:
    """KILL-03: `docker-.scope.d` is of every container's scope: what systemd says of one counts like that of others."""
    bound.add(40, CONTAINER)
    scope = CONTAINER.rpartition("/")[2]
    bound.systemd.units |= {scope: dropped_in, "other.timer": {"ActiveState": "inactive", "LoadState": "loaded"}}
    with pytest.raises(UnseenProcesses):
        bound.tied(40)


def test_a_unit_without_processes(bound: Node) -> None:
    """A unit that ends along and has no process, as a mount, cannot be judged: it withholds."""
    bound.proc.end(20)
    with pytest.raises(UnseenProcesses, match=r"other\.service ends with job\.scope"):
        bound.tied(10)


@pytest.mark.parametrize("part", ["socket", "service"])
def test_a_log_namespace(bound: Node, part: str) -> None:
    """The journal of `LogNamespace=` ends when nobody writes there, and starts again: it withholds nothing."""
    journal = f"systemd-journald@ml.{part}"
    bound.systemd.units |= {"job.scope": {"Requires": journal}, journal: {"StopWhenUnneeded": "yes"}}
    if part == "service":
        bound.add(40, f"system.slice/{journal}", 0, name="systemd-journal")
    assert not bound.tied(10)


def test_one_login_and_nothing_else(tmp_path: Path) -> None:
    """One user, one login by ssh, tmux and a job in it, beside what each login has: nobody is tied to the job."""
    node = Node(tmp_path)
    node.systemd.units["session-1.scope"] = {"Wants": f"user@{ALICE}.service"}
    for pid, parent, uid, name in (
        (10, 1, 0, "sshd"), (11, 10, ALICE, "sshd"), (12, 11, ALICE, "bash"), (13, 1, ALICE, "tmux: server"),
        (14, 13, ALICE, "bash"), (15, 14, ALICE, "python"), (16, 12, ALICE, "nohup"),
    ):  # fmt: skip
        node.add(pid, SESSION, uid, parent=parent, name=name)
    node.add(30, f"{MANAGER}/init.scope", name="systemd")
    node.add(31, f"{MANAGER}/init.scope", parent=30, name="(sd-pam)")
    node.log_in("1", 10)
    assert not node.tied(15)
    assert not node.tied(16)
