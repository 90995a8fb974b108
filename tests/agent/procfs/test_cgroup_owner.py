"""Which names on a cgroup path only root can have chosen: by their forms, and on a real cgroup file system."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.cgroup import CgroupLevel
from gpuagent.procfs.cgroup_owner import CgroupOwners, Name, above_container, read_membership
from tests.tables import table

ID, OTHER = "5b0a" * 16, "c1d2" * 16
ALICE = 6501
UNIT, CONTAINER, JOB, POD = Name.UNIT, Name.CONTAINER, Name.JOB, Name.POD
USERS = "user.slice/user-6501.slice/user@6501.service"


NAMES = {UNIT, CONTAINER, JOB, POD}


def read(path: str, not_roots: str | None = None, controllers: str = "") -> tuple[frozenset[Name], tuple[str, ...]]:
    """Proven names of a path, and names as they are shown; `not_roots` is the one directory of another owner."""

    def owner(level: CgroupLevel, *, whole: bool) -> bool:
        depths = range(len(level.segments) + whole)
        return not_roots not in {"/".join(level.segments[:depth]) for depth in depths}

    membership, proven = read_membership(f"0:{controllers}:/{path}\n".encode(), owner)
    return proven & NAMES, (membership.unit, membership.container_id, membership.slurm_job)


@table(
    "path, proven",
    [
        ("system.slice/whisper.service", {UNIT}),
        (f"system.slice/docker-{ID}.scope", {CONTAINER}),
        (f"docker/{ID}", {CONTAINER}),
        (f"system.slice/snap.docker.dockerd.service/docker/{ID}", {CONTAINER}),
        (f"system.slice/whisper.service/libpod-payload-{ID}", {UNIT}),
        (f"machine.slice/libpod-{ID}.scope/container", {CONTAINER}),
        (f"kubepods/burstable/pod2c4b2241-5c01-11e9-8e4e-42010a800002/{ID}", {CONTAINER, POD}),
        (f"kubepods.slice/kubepods-pod2c4b2241_5c01_11e9_8e4e_42010a800002.slice/crio-{ID}.scope", {CONTAINER, POD}),
        ("lxc.payload.web/init.scope", {CONTAINER}),
        ("system.slice/slurmstepd.scope/job_7/step_0/user/task_0", {JOB}),
        ("system.slice/node1_slurmstepd.scope/job_7/step_0/user/task_0", set()),
        ("slurm_node1/uid_1/job_7/step_0", set()),
        ("slurm/uid_6501/job_7/step_0", {JOB}),
    ],
)
def test_what_root_made_counts(path: str, proven: set[Name]) -> None:
    """PROC-06: the forms of systemd, the runtimes, the kubelet and Slurm, where root owns every level above."""
    assert read(path)[0] == proven


@table(
    "path, owned, shown",
    [
        (f"{USERS}/app.slice/docker-{ID}.scope", USERS, ("", f"unproven/{ID}", "")),
        (f"{USERS}/app.slice/libpod-{ID}.scope/container", USERS, ("", f"unproven/{ID}", "")),
        (f"{USERS}/slurm/job_7", USERS, ("", "", "unproven/7")),
        (f"{USERS}/app.slice/whisper.service", USERS, ("user@6501.service/whisper.service", "", "")),
        (f"jobs.slice/{USERS}/whisper.service", "jobs.slice", ("unproven/user@6501.service/whisper.service", "", "")),
        ("jobs.slice/whisper.service", "jobs.slice", ("unproven/whisper.service", "", "")),
        (f"jobs.slice/docker-{ID}.scope", "jobs.slice", ("", f"unproven/{ID}", "")),
        (f"docker/{ID}", "docker", ("", f"unproven/{ID}", "")),
    ],
)
def test_what_a_user_may_make_proves_nothing(path: str, owned: str, shown: tuple[str, ...]) -> None:
    """PROC-05: below a directory of another owner all names are theirs, and are shown as unproven, units included."""
    assert read(path, owned) == (frozenset(), shown)


@table(
    "path",
    [
        f"system.slice/docker-{OTHER}.scope/docker-{ID}.scope",
        f"system.slice/docker-{OTHER}.scope/slurm/job_7",
        f"default/web/docker-{ID}.scope",
        "default/web/slurm/job_7",
        f"default/docker/{ID}",
        f"default/job_1.slice/docker-{ID}.scope",
        f"unknown/docker-{ID}.scope",
        f"unknown/kubepods/{ID}",
        f"system.slice/web.service/docker-{ID}.scope",
        f"system.slice/web.service/libpod-{ID}.scope",
        f"system.slice/web.service/libpod-payload-{ID}",
        f"system.slice/docker-web.service/docker/{ID}",
        f"lxc/web/ns/docker/{ID}",
        "slurm/web/job_7",
        "slurm/uid_1/job_8/uid_1/job_7/x/slurmstepd.scope/job_9",
    ],
)
def test_what_root_inside_a_container_may_make_proves_nothing(path: str) -> None:
    """Root of a sandbox is uid 0 on the host too: an id counts only on a whole path that host managers make."""
    proven, (_, container_id, job) = read(path)
    assert container_id.startswith("unproven/") or container_id == (OTHER if CONTAINER in proven else "")
    assert job == ("8" if JOB in proven else "unproven/7" if job else "")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (f"lxc.payload.{ID}", f"lxc/{ID}"),
        (f"lxc/{ID}", f"lxc/{ID}"),
        (f"lxc/docker-{ID}.scope", f"lxc/docker-{ID}.scope"),
        (f"machine.slice/machine-{ID}.scope", f"systemd-nspawn/{ID}"),
        (f"machine.slice/systemd-nspawn@{ID}.service/payload", f"systemd-nspawn/{ID}"),
        ("garden/4355d6ca-1b6b-4c2a-6f2e-1a2b4355d6ca", ""),
        ("garden/4355d6ca-1b6b-4c2a-6f2e-1a2b", "garden/4355d6ca-1b6b-4c2a-6f2e-1a2b"),
    ],
)
def test_a_name_is_no_id(path: str, shown: str) -> None:
    """KILL-03: a container whose name its maker chose carries its runtime: it is never the one that has such an id."""
    proven, (_, container_id, _) = read(path)
    assert (container_id, CONTAINER in proven) == (shown, bool(shown))


@table(
    "further, path, proven",
    [
        ((), f"ecs/4711/{ID}", False),
        (("/ecs/*",), f"ecs/4711/{ID}", True),
        (("/ecs/*",), f"ecs/{ID}", False),
        (("/ecs/*",), f"ecs/4711/5/{ID}", False),
        (("/ecs/*",), f"ecs/4711/{OTHER}/docker/{ID}", False),
        (("/ecs/*",), f"web/ecs/4711/{ID}", False),
        (("/gpu-jobs", "/host"), f"gpu-jobs/{ID}", True),
        (("/gpu-jobs", "/host"), f"host/kubepods/pod2c4b2241-5c01-11e9-8e4e-42010a800002/{ID}", True),
        (("/slurm/uid_*/job_*",), f"slurm/uid_0/job_9/{ID}", True),
        (("/a.b",), f"axb/{ID}", False),
        (("/ecs/*",), f"docker/{ID}", True),
    ],
)
def test_further_cgroups_of_container_managers(further: tuple[str, ...], path: str, proven: bool) -> None:
    """PROC-06: what `processes.container_cgroups` names is as good as a level that is known, and nothing else is."""
    data = f"0::/{path}\n".encode()
    found = read_membership(data, lambda level, *, whole: True, above_container(further))[1]
    assert (CONTAINER in found) == proven


@table(
    "controllers, path, owned, of_v2",
    (
        (controllers, *row)
        for controllers, row in product(
            ["", "name=systemd"],
            [
                ("system.slice/whisper.service", "system.slice/whisper.service", set()),
                ("system.slice/whisper.service/worker", "system.slice/whisper.service/worker", {UNIT}),
                (f"docker/{ID}", f"docker/{ID}", {CONTAINER}),
                (f"docker/{ID}/init", f"docker/{ID}/init", {CONTAINER}),
                ("slurm/uid_1/job_7/step_0", "slurm/uid_1/job_7/step_0", {JOB}),
            ],
        )
    ),
)
def test_who_may_enter(controllers: str, path: str, owned: str, of_v2: set[Name]) -> None:
    """P2: version 1 lets an owner of any cgroup move processes in; with both, systemd does so into a delegated unit."""
    assert read(path, controllers=controllers)[0]
    assert read(path, owned, controllers)[0] == (set() if controllers else of_v2)


@table(
    "path, owned, own_place, line",
    (
        (*row, line)
        for row, line in product(
            [
                ("", None, True),
                ("user.slice/user-6501.slice/session-3.scope", None, True),
                (f"{USERS}/app.slice/run-r1.scope", USERS, False),
                (f"{USERS}", USERS, False),
            ],
            ["0::/{}\n", "4:memory:/\n1:name=systemd:/{}\n0::/\n"],
        )
    ),
)
def test_whether_it_chose_its_place(line: str, path: str, owned: str | None, own_place: bool) -> None:
    """P3: a process in a cgroup of its user's own making, in any hierarchy, may have gone there by itself."""

    def owner(level: CgroupLevel, *, whole: bool) -> bool:
        return owned not in {"/".join(level.segments[:depth]) for depth in range(len(level.segments) + whole)}

    assert (Name.PLACE in read_membership(line.format(path).encode(), owner)[1]) == own_place


def test_every_hierarchy_is_looked_at() -> None:
    """On a host with both versions an id that a user made in one of them is no fact."""
    data = f"1:name=systemd:/{USERS}/docker-{ID}.scope\n0::/\n".encode()
    membership, proven = read_membership(data, lambda level, *, whole: level.controllers != "name=systemd")
    assert (membership.container_id, proven) == (f"unproven/{ID}", frozenset())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give directories away")
@table(
    "job, owned, other, proven",
    [
        ("freezer:slurm/uid_6501/job_7/step_batch", {}, "", True),
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {}, "", True),
        # As Slurm 22.05 of Debian makes it: the directory of the step is the user's, its files are root's.
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {"slurm_vm/uid_6501/job_7/step_batch": 6501}, "", True),
        ("freezer:slurm_vm/uid_6501/job_7/step_0/x", {"slurm_vm/uid_6501/job_7/step_0/x/tasks": 6501}, "", True),
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {"slurm_vm/uid_6501/job_7/step_batch": 6502}, "", False),
        ("freezer:slurm_vm/uid_6501/job_7/step_0/x", {"slurm_vm/uid_6501/job_7/step_0": 6502}, "", False),
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {"slurm_vm/uid_6501/job_7": 6501}, "", False),
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {"slurm_vm/uid_6501/job_7/tasks": 6501}, "", False),
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {"slurm_vm/uid_6501": 6501}, "", False),
        ("freezer:slurm_vm/job_7/step_batch", {"slurm_vm/job_7/step_batch": 6501}, "", False),
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {}, "slurm_vm2/uid_6501", False),
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {}, "slurm/uid_6501", False),
        ("freezer:slurm_vm/uid_6501/job_7/step_batch", {}, "slurm", True),
        ("unified:system.slice/vm_slurmstepd.scope/job_7/step_0", {}, "", True),
        ("unified:system.slice/vm_slurmstepd.scope/job_7/step_0", {}, "system.slice/n2_slurmstepd.scope/job_7", False),
        (
            "unified:system.slice/vm_slurmstepd.scope/job_7/step_0",
            {"system.slice/vm_slurmstepd.scope": 6501},
            "",
            False,
        ),
    ],
)
def test_a_slurmd_with_the_name_of_its_node(
    tmp_path: Path, job: str, owned: Mapping[str, int], other: str, proven: bool
) -> None:
    """PROC-05: a job counts where root made it, its steps are of its own user at most, and no other slurmd has jobs."""
    kind, path = job.split(":")
    root = Path(tempfile.mkdtemp(dir=tmp_path))  # one for each row
    base = root / kind
    for each in filter(None, (path, other)):
        (base / each).mkdir(parents=True, exist_ok=True)
    (base / "cgroup.controllers").touch()
    for folder in (base, *(each for each in base.rglob("*") if each.is_dir())):
        folder.chmod(0o755)
        for file in ("cgroup.procs", "tasks"):
            (folder / file).touch(mode=0o644)
    for name, uid in owned.items():
        os.chown(base / name, uid, 0)
    line = f"0::/{path}\n" if kind == "unified" else f"6:freezer:/{path}\n"
    membership, found = read_membership(line.encode(), CgroupOwners(str(root), str(root / "proc")))
    assert (JOB in found) is proven
    assert membership.slurm_job == ("7" if proven else "unproven/7")


@pytest.mark.parametrize("data", [b"", b"0::/../docker-" + ID.encode() + b".scope\n"])
def test_what_cannot_be_looked_up_proves_nothing(data: bytes, tmp_path: Path) -> None:
    """A path from above the cgroup namespace, or one without a directory, is unproven and permits nothing."""
    membership, proven = read_membership(data, CgroupOwners(str(tmp_path), str(tmp_path)))
    assert not proven
    assert membership.container_id in {"", f"unproven/{ID}"}


@pytest.fixture
def hierarchy() -> Iterator[Path]:
    """A directory of version 2 that root may write to."""
    for root in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")):
        made = root / f"gpuagent-test-{os.getpid()}.slice"
        if not (root / "cgroup.controllers").exists():
            continue
        try:
            made.mkdir()
        except OSError:
            break
        yield made
        for folder in sorted(made.rglob("*"), reverse=True):
            if folder.is_dir():
                folder.rmdir()
        made.rmdir()
        return
    pytest.skip("needs a writable cgroup file system of version 2 (run as root)")


@pytest.mark.parametrize(
    ("mine", "above", "whole"),
    [("", True, True), ("a", False, False), ("a/b.slice", False, False), ("a/b.slice/x", True, False)],
)
def test_real_directories(hierarchy: Path, mine: str, above: bool, whole: bool) -> None:
    """The owner of every directory above the name counts, as the kernel has it; that of the bearer where it matters."""
    bearer = hierarchy / "a" / "b.slice" / "x"
    bearer.mkdir(parents=True)
    if mine:
        os.chown(hierarchy / mine, ALICE, ALICE)
    level = CgroupLevel("", 0, (hierarchy.name, "a", "b.slice", "x"))
    assert (CgroupOwners()(level, whole=False), CgroupOwners()(level, whole=True)) == (above, whole)
    missing = level._replace(segments=(*level.segments, "none"))
    assert CgroupOwners()(missing, whole=False) is (None if whole else False)


@pytest.mark.parametrize("file", ["", "cgroup.procs"])
def test_a_directory_that_others_may_write_to(hierarchy: Path, file: str) -> None:
    """A mode that lets others create or move counts like an owner; so does `cgroup.procs` alone."""
    (hierarchy / "x").mkdir()
    level, changed = CgroupLevel("", 0, (hierarchy.name, "x")), hierarchy / file
    before = changed.stat().st_mode
    assert CgroupOwners()(level, whole=False)
    for mode in (0o757, 0o775):
        changed.chmod(mode)
        assert CgroupOwners()(level, whole=False) is False
    changed.chmod(before)
    os.chown(changed, ALICE, -1)
    assert CgroupOwners()(level, whole=False) is False


@pytest.mark.parametrize("file", [".", "cgroup.procs", "tasks"])
def test_version_1_looks_at_the_cgroup_itself(file: str) -> None:
    """P2: in a real hierarchy of version 1, the bearing cgroup and both files that move processes must be root's."""
    made = Path("/sys/fs/cgroup/systemd") / f"gpuagent-test-{os.getpid()}.service"
    try:
        made.mkdir()
    except OSError:
        pytest.skip("needs a writable cgroup hierarchy of version 1 named systemd (run as root)")
    data = f"1:name=systemd:/{made.name}\n".encode()
    try:
        assert UNIT in read_membership(data, CgroupOwners())[1]
        os.chown(made / file, ALICE, ALICE)
        membership, proven = read_membership(data, CgroupOwners())
        assert (membership.unit, proven) == (f"unproven/{made.name}", frozenset())
    finally:
        made.rmdir()


_INSIDE = """
import ctypes, os, sys
CLONE_NEWCGROUP = 0x02000000
if ctypes.CDLL(None).unshare(CLONE_NEWCGROUP):
    sys.exit("no cgroup namespace can be had")
from gpuagent.procfs.cgroup_owner import CgroupOwners, read_membership
data = open(f"/proc/{sys.argv[1]}/cgroup", "rb").read()
assert b"/../" in data, data
membership, proven = read_membership(data, CgroupOwners())
print(membership.container_id, *sorted(proven - {"place"}))
"""


@pytest.mark.parametrize(("owner", "told"), [(0, f"{ID} container"), (ALICE, f"unproven/{ID}")])
def test_from_inside_a_cgroup_namespace(hierarchy: Path, owner: int, told: str) -> None:
    """PROC-06: an agent in a container sees relative paths, and resolves them where the host's hierarchy is mounted."""
    agents, other = hierarchy / "kubepods.slice" / "agents", hierarchy / "kubepods.slice" / f"docker-{ID}.scope"
    agents.mkdir(parents=True)
    other.mkdir()
    os.chown(hierarchy / "kubepods.slice", owner, owner)
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            (other / "cgroup.procs").write_text(str(process.pid))
            enter = f"import os; open({str(agents / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            done = subprocess.run(
                [sys.executable, "-c", enter + _INSIDE, str(process.pid)], capture_output=True, text=True, check=False
            )
        finally:
            process.kill()
    assert (done.stdout.strip(), done.returncode) == (told, 0), done.stderr


def test_below_the_agents_own_cgroup_namespace(hierarchy: Path) -> None:
    """PROC-06: root of the agent's container makes any path below it, and none of them is one of the host's."""
    own = hierarchy / f"docker-{'7' * 64}.scope"
    inner = own / "system.slice" / f"docker-{ID}.scope"
    inner.mkdir(parents=True)
    with subprocess.Popen(["sleep", "1000"]) as process:
        try:
            (inner / "cgroup.procs").write_text(str(process.pid))
            enter = f"import os; open({str(own / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
            code = enter + _INSIDE.replace('assert b"/../" in data, data', 'assert b"/../" not in data, data')
            done = subprocess.run(
                [sys.executable, "-c", code, str(process.pid)], capture_output=True, text=True, check=False
            )
        finally:
            process.kill()
            process.wait()
            for folder in (inner, inner.parent, own):
                folder.rmdir()
    assert (done.stdout.strip(), done.returncode) == (f"unproven/{ID}", 0), done.stderr


_SEGMENTS = st.sampled_from([
    "user.slice", "user-6501.slice", "user@6501.service", "app.slice", "system.slice", f"docker-{ID}.scope", "docker",
    ID, "slurm", "job_7", "slurmstepd.scope", "whisper.service", "lxc.payload.web", "x", "kubepods",
])  # fmt: skip


@given(st.lists(_SEGMENTS, max_size=7), st.integers(0, 6))
def test_nothing_below_another_owner_is_ever_proven(segments: list[str], depth: int) -> None:
    """Whatever the path: what is proven stands on levels of root alone."""
    owned = "/".join(segments[:depth])

    def owner(level: CgroupLevel, *, whole: bool) -> bool:
        return owned not in {"/".join(level.segments[:depth]) for depth in range(len(level.segments) + whole)}

    membership, proven = read_membership(f"0::/{'/'.join(segments)}\n".encode(), owner)
    levels = {
        UNIT: membership.unit_level, CONTAINER: membership.container_level, JOB: membership.job_level,
        POD: membership.pod_level,
    }  # fmt: skip
    for name, level in levels.items():
        assert name not in proven or (level is not None and owner(level, whole=name is UNIT))
    shown = (membership.container_id, membership.slurm_job, membership.pod_uid)
    assert all(
        not each or each.startswith("unproven/")
        for name, each in zip((CONTAINER, JOB, POD), shown, strict=True)
        if name not in proven
    )
