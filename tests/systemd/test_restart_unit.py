"""`restart_unit` against the real systemd, and the polkit rule that permits it: where systemd has booted."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.execution.unit_ends import UnitEnds
from gpuagent_alerts.remedies.execution.units import Systemctl
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.facts.unit_ties import SystemdTieFinder
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.pinned_processes import ActionRefused
from gpuagent_alerts.remedies.safeguards.never_list import NEVER
from gpuagent_alerts.remedies.target import Target
from tests.alerts.remedies.processes import as_target
from tests.fakes.nobody import run_as_nobody

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.timeout(120)]

RULES = Path(__file__).parents[2] / "systemd" / "gpuagent.rules"
INSTALLED = Path("/etc/polkit-1/rules.d/50-gpuagent-test.rules")
SLEEP = ("sleep", "1000")
STRICT = UnitPermission()
SHARED = UnitPermission(shared=True)


@pytest.fixture(autouse=True)
def _booted() -> None:
    """What cannot be tried here says why."""
    if not Path("/run/systemd/system").is_dir():
        pytest.skip("systemd has not booted this machine: there is no /run/systemd/system")
    if os.geteuid() != 0:
        pytest.skip("needs root to start units")


def run(*command: str) -> str:
    """Its output; it must work."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()


def show(unit: str, key: str) -> str:
    """A property of a unit."""
    return run("systemctl", "show", "--value", "--property", key, "--", unit)


@contextmanager
def service(*properties: str, command: tuple[str, ...] = SLEEP, name: str = "") -> Iterator[str]:
    """A service that sleeps; stopped in the end."""
    unit = f"gpuagent-test-{name}{uuid.uuid4().hex[:8]}.service"
    run("systemd-run", "--unit", unit, *(f"--property={each}" for each in properties), *command)
    try:
        yield unit
    finally:
        subprocess.run(["systemctl", "stop", unit], capture_output=True, check=False)
        subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)


def systemctl() -> Systemctl:
    """As the agent has it."""
    return Systemctl(UnitProcesses(RealProc()))


def main_process(unit: str) -> Target:
    """The unit's main process, as if it were on a GPU."""
    return replace(as_target(int(show(unit, "MainPID"))), unit=unit)


def refusal(unit: str, permission: UnitPermission = STRICT) -> str:
    """Why it must not be restarted now."""
    return asyncio.run(systemctl().refusal(main_process(unit), permission))


def restarts(unit: str, permission: UnitPermission = STRICT) -> bool:
    """Restart it, and see that another process runs."""
    before = main_process(unit)
    assert asyncio.run(systemctl().restart(before, permission, 30.0)).ok
    return show(unit, "ActiveState") == "active" and main_process(unit).pid != before.pid


def until_sleeper(unit: str, seconds: str, below: str = "") -> int:
    """Wait for a process of the unit that sleeps so long, and return its pid."""
    if not Path("/sys/fs/cgroup/cgroup.procs").exists():
        pytest.skip("needs cgroup version 2 alone, as systemd mounts it by default")
    procs = Path(f"/sys/fs/cgroup{show(unit, 'ControlGroup')}{below}/cgroup.procs")
    while True:
        for pid in [] if not procs.exists() else procs.read_text().split():
            command = Path(f"/proc/{pid}/cmdline")
            if command.exists() and command.read_bytes() == f"sleep\0{seconds}\0".encode():
                return int(pid)


def test_it_is_restarted() -> None:
    """Another main process, and the unit is up."""
    with service() as unit:
        assert refusal(unit) == ""
        assert restarts(unit)


def test_a_unit_that_is_not_there() -> None:
    """Said, and nothing is started."""
    gone = replace(as_target(os.getpid()), unit="gpuagent-test-none.service")
    assert "no unit" in asyncio.run(systemctl().refusal(gone, STRICT))


def test_a_unit_near_its_start_limit_is_left_alone() -> None:
    """Restarts by systemd count: where one more could leave the unit failed, it is not restarted."""
    with service("Restart=always", "RestartSec=50ms", "StartLimitIntervalSec=60", "StartLimitBurst=3") as unit:
        assert refusal(unit) == ""
        pid = show(unit, "MainPID")
        run("kill", "-KILL", pid)
        while show(unit, "NRestarts") != "1" or show(unit, "MainPID") in {"0", pid}:
            pass
        assert "start limit" in refusal(unit)
        assert show(unit, "ActiveState") == "active"


def test_own_restarts_use_up_the_start_limit() -> None:
    """Systemd does not count restarts by hand in NRestarts, and yet fails the unit for them: the agent stops before."""
    with service("StartLimitIntervalSec=60", "StartLimitBurst=3") as unit:
        agent = systemctl()
        while not (why := asyncio.run(agent.refusal(main_process(unit), STRICT))):
            assert asyncio.run(agent.restart(main_process(unit), STRICT, 30.0)).ok
        assert "start limit" in why
        assert (show(unit, "ActiveState"), show(unit, "NRestarts")) == ("active", "0")
        run("systemctl", "restart", unit)
        with pytest.raises(subprocess.CalledProcessError):
            run("systemctl", "restart", unit)  # what would have come of it
        assert show(unit, "ActiveState") == "failed"


@pytest.mark.parametrize("properties", [("User=nobody",), ("DynamicUser=yes",), ("User=nobody", "Delegate=yes"), ()])
@pytest.mark.parametrize("name", ["", r"a\x2db@"])
def test_a_unit_of_its_own_is_restarted(properties: tuple[str, ...], name: str) -> None:
    """Workers of the unit's own user, without login or terminal, are its own, by whatever way it has that user."""
    with service(*properties, command=("sh", "-c", "sleep 1001 & exec sleep 1000"), name=name) as unit:
        until_sleeper(unit, "1001")
        assert refusal(unit) == ""
        assert restarts(unit)


OTHERS = "setpriv --reuid=65534 --clear-groups sleep 1001 & exec sleep 1000"
TERMINAL = "script -qc 'sleep 1001' /dev/null </dev/null & exec sleep 1000"
LOGIN = "(echo 65534 >/proc/self/loginuid; exec sleep 1001) & exec sleep 1000"
CONTAINER = "unshare --pid --fork sleep 1001 & exec sleep 1000"


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (OTHERS, "runs processes of other users: nobody (1)"),
        (TERMINAL, "has a terminal"),
        (LOGIN, "comes from a login of nobody"),
        (CONTAINER, "runs containers"),
    ],
)
def test_a_unit_that_others_work_in(program: str, words: str) -> None:
    """A unit of root's with a colleague's process, terminal, login or container in it is refused, unless named."""
    with service("TimeoutStopSec=1s", command=("sh", "-c", program)) as unit:
        pid = until_sleeper(unit, "1001")
        assert words in refusal(unit)
        with pytest.raises(ActionRefused, match="shared_units"):
            restarts(unit)
        assert Path(f"/proc/{pid}").exists()
        assert refusal(unit, SHARED) == ""
        assert restarts(unit, SHARED)


def test_a_process_in_a_cgroup_below(tmp_path: Path) -> None:
    """What a unit has delegated is a part of it: a job in there is seen."""
    job = "echo $$ >$own/job/cgroup.procs; exec setpriv --reuid=65534 --clear-groups sleep 1001"
    script = tmp_path / "job"  # systemd would expand variables on a command line
    script.write_text(
        f"export own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup); mkdir $own/job\n"
        f"sh -c '{job}' & exec sleep 1000\n"
    )
    with service("Delegate=yes", command=("sh", str(script))) as unit:
        until_sleeper(unit, "1001", "/job")
        assert "other users: nobody (1)" in refusal(unit)


def test_a_main_process_elsewhere(tmp_path: Path) -> None:
    """A stale `PIDFile=` names a process of another unit, which a restart would end: it is refused, whoever permits."""
    file = tmp_path / "pid"
    with service("User=nobody") as other:
        main = show(other, "MainPID")
        file.write_text(f"{main}\n")
        with service("Type=forking", f"PIDFile={file}", command=("sh", "-c", "sleep 1001 & exit 0")) as unit:
            sleeper = replace(as_target(until_sleeper(unit, "1001")), unit=unit)
            assert show(unit, "MainPID") == main
            for permission in (STRICT, SHARED):
                with pytest.raises(ActionRefused, match=f"systemd has MainPID={main} .* does not run in the unit"):
                    asyncio.run(systemctl().restart(sleeper, permission, 30.0))
            assert show(other, "MainPID") == main
            run("systemctl", "stop", unit)  # what would have come of it
            assert show(other, "MainPID") == "0"


@pytest.mark.parametrize("key", ["ExecStartPre", "ExecStopPost"])
def test_a_program_that_ends_others(key: str) -> None:
    """A unit that ends by name what is not in it is refused, unless it is named as shared."""
    with service(f"{key}=-pkill -x no-such-program") as unit:
        assert f"{unit} has {key}= runs pkill, which reaches what is not in the unit" in refusal(unit)
        assert refusal(unit, SHARED) == ""


def test_a_quadlet() -> None:
    """A unit that podman runs its own container in is restarted with its conmon; one with a second conmon is not."""
    with tempfile.TemporaryDirectory(dir="/usr/local/lib") as folder:
        conmon, script = Path(folder, "conmon"), Path(folder, "quadlet")
        shutil.copy("/bin/sleep", conmon)
        container = f"echo $$ >$own/libpod-payload-{'a' * 64}/cgroup.procs; exec unshare -pf --mount-proc $inside"
        script.write_text(
            "export own=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)\n"
            f"[ ! -e {folder}/user ] || second='setpriv --reuid=65533 --clear-groups sleep 1003 & '\n"
            'echo "$second"setpriv --reuid=65534 --clear-groups sleep 1001 >/run/quadlet-inside\n'
            "export inside='sh /run/quadlet-inside'\n"
            f"mkdir -p $own/runtime $own/libpod-payload-{'a' * 64}\necho $$ >$own/runtime/cgroup.procs\n"
            f"sh -c '{container}' &\n[ ! -e {folder}/second ] || {conmon} 1002 &\nexec {conmon} 1000\n"
        )
        quadlet = UnitPermission(never_processes=NEVER)
        with service("Delegate=yes", "TimeoutStopSec=1s", command=("sh", str(script))) as unit:
            until_sleeper(unit, "1001", f"/libpod-payload-{'a' * 64}")
            assert refusal(unit, quadlet) == ""
            assert restarts(unit, quadlet)
            Path(folder, "user").touch()
            run("systemctl", "restart", unit)
            until_sleeper(unit, "1003", f"/libpod-payload-{'a' * 64}")
            until_sleeper(unit, "1001", f"/libpod-payload-{'a' * 64}")
            assert f"the container of {unit} runs processes of several users: 65533 (1), nobody (1)" in refusal(unit)
            assert refusal(unit, replace(quadlet, shared=True)) == ""
            Path(folder, "user").unlink()
            Path(folder, "second").touch()
            run("systemctl", "restart", unit)
            until_sleeper(unit, "1001", f"/libpod-payload-{'a' * 64}")
            assert "monitors one that is not the unit's own" in refusal(unit, quadlet)
            assert refusal(unit, replace(quadlet, shared=True)) == ""


@pytest.mark.parametrize("key", ["Requires", "Requisite", "BindsTo", "PartOf"])
def test_what_is_restarted_with_it(key: str) -> None:
    """Systemd restarts these as well: an active one is a reason to refuse, a stopped one is none."""
    with service() as unit, service(f"{key}={unit}", f"After={unit}") as dependent:
        assert f"also restarts {dependent}" in refusal(unit)
        before = show(dependent, "MainPID")
        assert restarts(unit, SHARED)
        assert show(dependent, "MainPID") != before  # what would have come of it
        run("systemctl", "stop", dependent)
        assert refusal(unit) == ""


@pytest.mark.parametrize("key", ["Requires", "BindsTo", "PartOf"])
def test_who_is_restarted_along_is_on_the_never_list(key: str, tmp_path: Path) -> None:
    """Whoever may have units restarted with it ends nobody of the never-list in these, nor a main process elsewhere."""
    agent = Systemctl(UnitProcesses(RealProc(), ties=SystemdTieFinder(RealProc())))
    permission = UnitPermission(shared=True, never_processes=("tail",))
    with service() as unit, service(f"{key}={unit}", command=("tail", "-f", "/dev/null")):
        why = asyncio.run(agent.refusal(main_process(unit), permission))
        assert "tail runs in the work that depends on" in why
        assert asyncio.run(agent.refusal(main_process(unit), SHARED)) == ""
    file = tmp_path / "pid"
    with service() as unit, service() as other:
        file.write_text(show(other, "MainPID"))
        forks = ("sh", "-c", "sleep 1001 & exit 0")
        with service("Type=forking", f"PIDFile={file}", f"{key}={unit}", command=forks) as dependent:
            until_sleeper(dependent, "1001")
            why = asyncio.run(agent.refusal(main_process(unit), SHARED))
            assert f"for {dependent}, and would end that as well" in why


def test_a_process_that_is_not_in_the_unit() -> None:
    """A process that systemd does not count to the unit is no reason to restart it."""
    with service() as unit, service() as other:
        stranger = replace(main_process(other), unit=unit)
        assert "does not run in" in asyncio.run(systemctl().refusal(stranger, SHARED))


TRY = """
import asyncio, sys
from dataclasses import replace
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.execution.units import Systemctl
from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.observation import UnitPermission
from tests.alerts.remedies.processes import as_target
target = replace(as_target(int(sys.argv[2])), unit=sys.argv[1])
done = asyncio.run(Systemctl(UnitProcesses(RealProc())).restart(target, UnitPermission(), 20.0))
print(done.ok, done.errno)
"""


def as_nobody(unit: str) -> str:
    """What a restart comes to for a user without any right: the agent's, with the rule's name for it."""
    result = run_as_nobody(TRY, unit, show(unit, "MainPID"))
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@contextmanager
def rule(unit: str) -> Iterator[None]:
    """The template as an administrator fills it in."""
    text = RULES.read_text().replace("whisper.service", unit).replace('"gpuagent"', '"nobody"')
    INSTALLED.write_text(text)
    INSTALLED.chmod(0o644)
    try:
        run("systemctl", "restart", "polkit.service")
        yield
    finally:
        INSTALLED.unlink()
        run("systemctl", "restart", "polkit.service")


def test_the_polkit_rule_permits_exactly_its_units() -> None:
    """Without it a user's restart is denied, and told as a missing right; with it the named unit restarts, no other."""
    if "not-found" in show("polkit.service", "LoadState"):
        pytest.skip("polkit is not installed here")
    with service() as named, service() as other:
        assert as_nobody(named) == "False 1"
        with rule(named):
            assert as_nobody(named) == "True 0"
            assert as_nobody(other) == "False 1"


def test_conditions_of_its_start(tmp_path: Path) -> None:
    """A unit is not restarted while a condition of it does not hold: systemd would stop it, and not start it."""
    flag, unit = tmp_path / "flag", f"gpuagent-test-{uuid.uuid4().hex[:8]}.service"
    flag.touch()
    file = Path("/run/systemd/system") / unit
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"[Unit]\nConditionPathExists={flag}\n[Service]\nExecStart=sleep 1000\n")
    try:
        run("systemctl", "daemon-reload")
        run("systemctl", "start", unit)
        assert refusal(unit) == ""
        flag.unlink()
        assert f"ConditionPathExists={flag} failed" in refusal(unit)
    finally:
        subprocess.run(["systemctl", "stop", unit], capture_output=True, check=False)
        file.unlink()
        run("systemctl", "daemon-reload")


SLEEPS = "[Service]\nExecStart=sleep 1000\n"
ONESHOT = "[Service]\nType=oneshot\nExecStart=true\n"
ORDINARY: dict[str, tuple[str, dict[str, str]]] = {
    "a mail at its failure": ("OnFailure={n}-mail@%n.service", {"-mail@.service": f"{ONESHOT}PrivateTmp=yes\n"}),
    "a program before each start": ("Requires={n}-x.service\nAfter={n}-x.service", {"-x.service": ONESHOT}),
    "what is not installed": ("Wants={n}-none.service", {}),
    "a passive target": ("Wants={n}-x.target", {"-x.target": "[Unit]\nDescription=x\n"}),
}
NOT_SIMPLE: dict[str, tuple[str, dict[str, str], str]] = {
    "a path": ("Wants={n}-x.path", {"-x.path": "[Path]\nPathExists=/etc\n", "-x.service": ONESHOT}, "-x.path"),
    "a timer": ("Wants={n}-x.timer", {"-x.timer": "[Timer]\nOnCalendar=daily\n", "-x.service": ONESHOT}, "-x.timer"),
    "an action": (
        "Wants={n}-x.service",
        {"-x.service": f"[Unit]\nSuccessAction=exit\n{ONESHOT}"},
        "SuccessAction=exit",
    ),
    "a chain": ("Wants={n}-x.service", {"-x.service": f"[Unit]\nOnSuccess={{n}}-y.service\n{ONESHOT}"}, "OnSuccess="),
    "a chain of failures": (
        "OnFailure={n}-x.service",
        {
            "-x.service": f"[Unit]\nOnFailure={{n}}-y.service\n{ONESHOT}",
            "-y.service": f"[Unit]\nOnFailure={{n}}-z.service\n{ONESHOT}",
            "-z.service": SLEEPS,
        },
        "OnFailure=",
    ),
    "a fallback": (
        "OnFailure={n}-x.service",
        {"-x.service": f"[Unit]\nConflicts={{n}}.service\n{SLEEPS}"},
        "Conflicts=",
    ),
    "a suspension": ("OnSuccess=systemd-suspend.service", {}, "part of systemd"),
    "what has to be there": ("Requires={n}-none.service", {}, "could stay down"),
}


@contextmanager
def unit_files(unit: str, others: dict[str, str]) -> Iterator[str]:
    """A service that sleeps, whose files are changed while it runs: what it needs is not started with it."""
    name = f"gpuagent-test-{uuid.uuid4().hex[:8]}"
    folder = Path("/run/systemd/system")
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / f"{name}.service"
    own.write_text(SLEEPS)
    files = [own, *(folder / f"{name}{end}" for end in others)]
    try:
        for path, text in zip(files[1:], others.values(), strict=True):
            path.write_text(text.replace("{n}", name))
        run("systemctl", "daemon-reload")
        run("systemctl", "start", own.name)
        own.write_text(f"[Unit]\n{unit.replace('{n}', name)}\n{SLEEPS}")
        run("systemctl", "daemon-reload")
        yield own.name
    finally:
        stopped = [path.name for path in files if "@" not in path.name]
        subprocess.run(["systemctl", "stop", *stopped], capture_output=True, check=False)
        for path in files:
            path.unlink()
        run("systemctl", "daemon-reload")


@pytest.mark.parametrize("case", ORDINARY)
def test_what_a_restart_may_start(case: str) -> None:
    """Systemd starts what is simple along with a unit that is restarted, and the unit is up."""
    with unit_files(*ORDINARY[case]) as unit:
        assert refusal(unit) == ""
        assert restarts(unit)


@pytest.mark.parametrize("case", NOT_SIMPLE)
def test_what_a_restart_must_not_start(case: str) -> None:
    """A unit that would start what is not simple is left alone, whoever permits more."""
    text, others, word = NOT_SIMPLE[case]
    with unit_files(text, others) as unit:
        assert word in refusal(unit)
        assert word in refusal(unit, SHARED)


@pytest.mark.parametrize("is_older", [False, True])
def test_files_that_are_not_loaded(is_older: bool) -> None:
    """A condition that systemd has loaded, and no file has any more, is not known to hold."""
    with unit_files("ConditionPathExists=/run", {}) as unit:
        assert refusal(unit) == ""
        file = Path(show(unit, "FragmentPath"))
        file.write_text(SLEEPS)
        if is_older:
            os.utime(file, (1, 1))
        assert "run systemctl daemon-reload" in refusal(unit)
        run("systemctl", "daemon-reload")
        assert refusal(unit) == ""


def test_a_directory_that_another_unit_has_too() -> None:
    """The end of a unit removes its RuntimeDirectory=, whoever else is in there."""
    with service("RuntimeDirectory=gpuagent-test") as unit:
        assert refusal(unit) == ""
        with service("RuntimeDirectory=gpuagent-test/other") as other:
            assert f"RuntimeDirectory=gpuagent-test, which {other} has as well" in refusal(unit)


def test_who_is_bound_to_a_scope() -> None:
    """A service that is bound to a scope ends with the last process of it."""
    scope = f"gpuagent-test-{uuid.uuid4().hex[:8]}.scope"
    with subprocess.Popen(["systemd-run", "--quiet", "--scope", "--unit", scope, *SLEEP]) as job:
        try:
            while show(scope, "ActiveState") != "active":
                assert job.poll() is None
            with service(f"BindsTo={scope}", f"After={scope}") as unit, service() as other:
                assert UnitEnds().ended_with(scope).keys() == {unit}
                tied = SystemdTieFinder(RealProc()).find([job.pid])
                assert main_process(unit).pid in tied
                assert main_process(other).pid not in tied
        finally:
            job.kill()


def test_a_main_process_in_another_unit() -> None:
    """A service ends with its main process, also where that has moved to a scope of its own; so does what needs it."""
    scope = f"gpuagent-test-{uuid.uuid4().hex[:8]}.scope"
    moves = ("systemd-run", "--quiet", "--scope", "--unit", scope, *SLEEP)
    with service(command=moves) as unit, service(f"BindsTo={unit}", f"After={unit}") as bound:
        while show(scope, "ActiveState") != "active":
            assert show(unit, "ActiveState") == "active"
        main = main_process(unit).pid
        assert scope in Path(f"/proc/{main}/cgroup").read_text()
        assert main_process(bound).pid in SystemdTieFinder(RealProc()).find([main])


def test_a_session_of_a_user_who_lingers() -> None:
    """The slice of a user is stopped when nobody needs it: the manager of one who lingers does."""
    run("loginctl", "enable-linger", "daemon")
    scope = "session-gpuagenttest.scope"
    in_slice = ("systemd-run", "--quiet", "--scope", "--uid", "1", "--slice", "user-1.slice", "--unit", scope, *SLEEP)
    try:
        while show("user@1.service", "ActiveState") != "active":
            assert show("user@1.service", "ActiveState") != "failed"
        with subprocess.Popen(in_slice) as job:
            while show(scope, "ActiveState") != "active":
                assert job.poll() is None
            try:
                assert show("user-1.slice", "StopWhenUnneeded") == "yes"
                assert not SystemdTieFinder(RealProc()).find([job.pid])
            finally:
                job.kill()
    finally:
        run("loginctl", "disable-linger", "daemon")
