"""Which names on a cgroup path only root can have chosen: by their forms, and on a real cgroup file system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.cgroup import Level
from gpuagent.procfs.cgroup_owner import CgroupOwners, Name, read_membership

ID, OTHER = "5b0a" * 16, "c1d2" * 16
ALICE = 6501
UNIT, CONTAINER, JOB, POD = Name.UNIT, Name.CONTAINER, Name.JOB, Name.POD
USERS = "user.slice/user-6501.slice/user@6501.service"


def read(
    path: str, owners: dict[str, int] | None = None, controllers: str = ""
) -> tuple[frozenset[Name], tuple[str, ...]]:
    """Proven names of a path, and ids as they are shown; `owners` are others than root, by directory."""

    def owner(level: Level) -> int | None:
        parents = ["/".join(level.segments[:depth]) for depth in range(len(level.segments))]
        return next((uid for parent in parents if (uid := (owners or {}).get(parent, 0))), 0)

    membership, proven = read_membership(f"0:{controllers}:/{path}\n".encode(), owner)
    return proven, (membership.unit, membership.container_id, membership.slurm_job)


@pytest.mark.parametrize(
    ("path", "proven"),
    [
        ("system.slice/whisper.service", {UNIT}),
        (f"system.slice/docker-{ID}.scope", {CONTAINER}),
        (f"docker/{ID}", {CONTAINER}),
        (f"system.slice/snap.docker.dockerd.service/docker/{ID}", {CONTAINER}),
        (f"system.slice/whisper.service/libpod-payload-{ID}", {UNIT, CONTAINER}),
        (f"machine.slice/libpod-{ID}.scope/container", {CONTAINER}),
        (f"kubepods/burstable/pod2c4b2241-5c01-11e9-8e4e-42010a800002/{ID}", {CONTAINER, POD}),
        (f"kubepods.slice/kubepods-pod2c4b2241_5c01_11e9_8e4e_42010a800002.slice/crio-{ID}.scope", {CONTAINER, POD}),
        ("lxc.payload.web/init.scope", {CONTAINER}),
        ("system.slice/slurmstepd.scope/job_7/step_0/user/task_0", {JOB}),
        ("slurm/uid_6501/job_7/step_0", {JOB}),
    ],
)
def test_what_root_made_counts(path: str, proven: set[Name]) -> None:
    """PROC-06: the forms of systemd, the runtimes, the kubelet and Slurm, where root owns every level above."""
    assert read(path)[0] == proven


@pytest.mark.parametrize(
    ("path", "owned", "shown"),
    [
        (f"{USERS}/app.slice/docker-{ID}.scope", USERS, ("", f"uid-{ALICE}/{ID}", "")),
        (f"{USERS}/app.slice/libpod-{ID}.scope/container", USERS, ("", f"uid-{ALICE}/{ID}", "")),
        (f"{USERS}/slurm/job_7", USERS, ("", "", f"uid-{ALICE}/7")),
        (f"{USERS}/app.slice/whisper.service", USERS, ("user@6501.service/whisper.service", "", "")),
        (f"jobs.slice/docker-{ID}.scope", "jobs.slice", ("", f"uid-{ALICE}/{ID}", "")),
        (f"docker/{ID}", "docker", ("", f"uid-{ALICE}/{ID}", "")),
    ],
)
def test_what_a_user_may_make_proves_nothing(path: str, owned: str, shown: tuple[str, ...]) -> None:
    """PROC-05: below a directory of another owner all names are theirs; ids are shown with the owner in front."""
    assert read(path, {owned: ALICE}) == (frozenset(), shown)


@pytest.mark.parametrize(
    "path",
    [
        f"system.slice/docker-{OTHER}.scope/docker-{ID}.scope",
        f"system.slice/docker-{OTHER}.scope/slurm/job_7",
        f"default/web/docker-{ID}.scope",
        "default/web/slurm/job_7",
        f"unknown/docker-{ID}.scope",
        f"system.slice/web.service/docker-{ID}.scope",
        f"lxc/web/ns/docker/{ID}",
    ],
)
def test_what_root_inside_a_container_may_make_proves_nothing(path: str) -> None:
    """Root of a container is uid 0 on the host too: an id counts only below levels that host managers make."""
    proven, (_, container_id, _) = read(path)
    assert JOB not in proven
    assert CONTAINER not in proven or container_id == OTHER


def test_every_hierarchy_is_looked_at(tmp_path: Path) -> None:
    """On a host with both versions an id that a user made in one of them is no fact."""
    data = f"1:name=systemd:/{USERS}/docker-{ID}.scope\n0::/\n".encode()
    membership, proven = read_membership(data, lambda level: ALICE if level.controllers == "name=systemd" else 0)
    assert (membership.container_id, proven) == (f"uid-{ALICE}/{ID}", frozenset())


@pytest.mark.parametrize("data", [b"", b"0::/../docker-" + ID.encode() + b".scope\n"])
def test_what_cannot_be_looked_up_is_shown_and_proves_nothing(data: bytes, tmp_path: Path) -> None:
    """A path from above the cgroup namespace, or one without a directory, keeps its name and permits nothing."""
    membership, proven = read_membership(data, CgroupOwners(str(tmp_path), str(tmp_path)))
    assert not proven
    assert not membership.container_id.startswith("uid-")


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


@pytest.mark.parametrize(("mine", "proven"), [("", True), ("a", False), ("a/b.slice", False), ("a/b.slice/x", True)])
def test_real_directories(hierarchy: Path, mine: str, proven: bool) -> None:
    """The owner of every directory above the name counts, as the kernel has it; that of the bearer itself does not."""
    bearer = hierarchy / "a" / "b.slice" / "x"
    bearer.mkdir(parents=True)
    if mine:
        os.chown(hierarchy / mine, ALICE, ALICE)
    level = Level("", 0, ("", hierarchy.name, "a", "b.slice", "x")[1:])
    assert (CgroupOwners()(level) == 0) == proven
    assert CgroupOwners()(level._replace(segments=(*level.segments, "none"))) is None or not proven or mine


def test_a_directory_that_others_may_write_to(hierarchy: Path) -> None:
    """A mode that lets others create or move counts like an owner; so does `cgroup.procs` alone."""
    (hierarchy / "x").mkdir()
    level = Level("", 0, (hierarchy.name, "x"))
    assert CgroupOwners()(level) == 0
    hierarchy.chmod(0o757)
    assert CgroupOwners()(level) not in {0, None}
    hierarchy.chmod(0o755)
    os.chown(hierarchy / "cgroup.procs", ALICE, -1)
    assert CgroupOwners()(level) == ALICE


_INSIDE = """
import ctypes, os, sys
CLONE_NEWCGROUP = 0x02000000
if ctypes.CDLL(None).unshare(CLONE_NEWCGROUP):
    sys.exit("no cgroup namespace can be had")
from gpuagent.procfs.cgroup_owner import CgroupOwners, read_membership
data = open(f"/proc/{sys.argv[1]}/cgroup", "rb").read()
assert b"/../" in data, data
membership, proven = read_membership(data, CgroupOwners())
print(membership.container_id, *sorted(proven))
"""


@pytest.mark.parametrize(("owner", "told"), [(0, f"{ID} container"), (ALICE, f"uid-{ALICE}/{ID}")])
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


_SEGMENTS = st.sampled_from([
    "user.slice", "user-6501.slice", "user@6501.service", "app.slice", "system.slice", f"docker-{ID}.scope", "docker",
    ID, "slurm", "job_7", "slurmstepd.scope", "whisper.service", "lxc.payload.web", "x", "kubepods",
])  # fmt: skip


@given(st.lists(_SEGMENTS, max_size=7), st.integers(0, 6))
def test_nothing_below_another_owner_is_ever_proven(segments: list[str], depth: int) -> None:
    """Whatever the path: what is proven stands on levels of root alone."""
    owned = "/".join(segments[:depth])

    def owner(level: Level) -> int | None:
        parents = {"/".join(level.segments[:depth]) for depth in range(len(level.segments))}
        return ALICE if owned in parents else 0

    membership, proven = read_membership(f"0::/{'/'.join(segments)}\n".encode(), owner)
    levels = {
        UNIT: membership.unit_level, CONTAINER: membership.container_level, JOB: membership.job_level,
        POD: membership.pod_level,
    }  # fmt: skip
    for name in proven:
        level = levels[name]
        assert level is not None
        assert owner(level) == 0
