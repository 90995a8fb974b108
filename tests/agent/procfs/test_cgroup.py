"""PROC-06: where a process belongs, by the cgroup texts of the runtimes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.cgroup import PATH_LIMIT_BYTES, Membership, parse_cgroup
from tests.tables import table

ID = "5b0a" * 16
OTHER = "c1d2" * 16
UID = "2c4b2241-5c01-11e9-8e4e-42010a800002"
UNDERSCORED = UID.replace("-", "_")
STATIC = "0123456789abcdef" * 2

CONTAINERS = {
    "docker, version 1": (f"/docker/{ID}", "docker", ID),
    "docker, systemd": (f"/system.slice/docker-{ID}.scope", "docker", ID),
    "docker of snap": (f"/system.slice/snap.docker.dockerd.service/docker/{ID}", "docker", ID),
    "docker below a parent of one's own": (f"/jobs/{ID}", "", ID),
    "docker seen from a cgroup namespace": (f"/../docker-{ID}.scope", "docker", ID),
    "docker, with a cgroup made inside": (f"/system.slice/docker-{ID}.scope/init", "docker", ID),
    "containerd": (f"/system.slice/cri-containerd-{ID}.scope", "containerd", ID),
    "containerd by ctr or nerdctl": (f"/default/{ID}", "containerd", ID),
    "nerdctl, systemd": (f"/system.slice/nerdctl-{ID}.scope", "containerd", ID),
    "cri-o": (f"/machine.slice/crio-{ID}.scope/container", "cri-o", ID),
    "podman": (f"/machine.slice/libpod-{ID}.scope/container", "podman", ID),
    "podman, cgroupfs": (f"/libpod_parent/libpod-{ID}", "podman", ID),
    "podman of a user": (
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container",
        "podman",
        ID,
    ),
    "conmon of podman": (f"/machine.slice/libpod-conmon-{ID}.scope", "", ""),
    "conmon of cri-o": (f"/machine.slice/crio-conmon-{ID}.scope", "", ""),
    "lxc, version 1": ("/lxc/web/ns/system.slice/cron.service", "lxc", "lxc/web"),
    "lxc, payload folder": ("/lxc.payload/web", "lxc", "lxc/web"),
    "lxd": ("/lxc.payload.web/init.scope", "lxc", "lxc/web"),
    "monitor of lxc": ("/lxc.monitor.web", "", ""),
    "docker inside lxc": (f"/lxc/web/ns/docker/{ID}", "docker", ID),
    "nspawn": ("/machine.slice/machine-a\\x2db.scope/payload", "systemd-nspawn", "systemd-nspawn/a-b"),
    "nspawn as a service": (
        "/machine.slice/systemd-nspawn@web.service/payload/system.slice/cron.service",
        "systemd-nspawn",
        "systemd-nspawn/web",
    ),
    "lxc of libvirt": (
        "/machine.slice/machine-lxc\\x2d7\\x2dweb.scope/libvirt",
        "libvirt-lxc",
        "libvirt-lxc/lxc-7-web",
    ),
    "a virtual machine": ("/machine.slice/machine-qemu\\x2d1\\x2dwin.scope/libvirt", "", ""),
    "garden": (
        "/system.slice/garden.service/garden/4355d6ca-1b6b-4c2a-6f2e-1a2b",
        "garden",
        "garden/4355d6ca-1b6b-4c2a-6f2e-1a2b",
    ),
    "short hexadecimal folder": ("/process/5eb792588623d7b5b5e474454e64e4e8", "", ""),
    "prefix without an id": ("/system.slice/docker-latest.scope", "", ""),
    "root": ("/", "", ""),
}

PODS = {
    "cgroupfs, best effort": (f"/kubepods/besteffort/pod{UID}/{ID}", UID, "", ID),
    "cgroupfs, burstable": (f"/kubepods/burstable/pod{UID}/{ID}", UID, "", ID),
    "cgroupfs, guaranteed": (f"/kubepods/pod{UID}/{ID}", UID, "", ID),
    "systemd, burstable": (
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"
            f"/cri-containerd-{ID}.scope"
        ),
        UID,
        "containerd",
        ID,
    ),
    "systemd, best effort": (
        (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDERSCORED}.slice/docker-{ID}.scope"),
        UID,
        "docker",
        ID,
    ),
    "systemd, guaranteed": (
        f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/crio-{ID}.scope",
        UID,
        "cri-o",
        ID,
    ),
    "cri-o, cgroupfs": (f"/kubepods/pod{UID}/crio-{ID}", UID, "cri-o", ID),
    "static pod": (f"/kubepods/burstable/pod{STATIC}/{ID}", STATIC, "", ID),
    "kubelet with a root of its own": (
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"),
        UID,
        "containerd",
        ID,
    ),
    "kubernetes in docker": (
        (
            f"/system.slice/docker-{OTHER}.scope/kubelet.slice/kubelet-kubepods.slice"
            f"/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope"
        ),
        UID,
        "containerd",
        ID,
    ),
    "path of one driver given to the other": (
        (f"/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{ID}"),
        UID,
        "containerd",
        ID,
    ),
    "seen from a cgroup namespace": (
        f"/../../kubepods-pod{UNDERSCORED}.slice/cri-containerd-{ID}.scope",
        UID,
        "containerd",
        ID,
    ),
    "a pod's folder outside of kubepods": (f"/jobs/pod{UID}/x", "", "", ""),
}

UNITS = {
    "/system.slice/whisper.service": "whisper.service",
    "/system.slice/system-vllm.slice/vllm@1.service": "vllm@1.service",
    "/system.slice/whisper.service/worker/0": "whisper.service",
    "/system.slice/whisper.service/sshd.service": "whisper.service",
    "/ml.slice/ml-train.slice/train.service": "train.service",
    "/whisper.service": "whisper.service",
    "/system.slice/a\\x2db.service": "a\\x2db.service",
    "/../whisper.service": "whisper.service",
    "/system.slice/whisper.service (deleted)": "whisper.service",
    "/user.slice/user-1000.slice/session-3.scope": "",
    "/user.slice/user-1000.slice/user@1000.service/app.slice/x.service": ("user@1000.service/x.service"),
    "/user.slice/user-1000.slice/user@1000.service/app.slice/app-firefox-7.scope": "",
    "/user.slice/user-1000.slice/user@1000.service/init.scope": "",
    "/system.slice/run-r7.scope": "",
    "/init.scope": "",
    f"/system.slice/docker-{ID}.scope": "",
    f"/system.slice/docker-{ID}.scope/system.slice/cron.service": "",
    f"/system.slice/containerd.service/kubepods-pod{UNDERSCORED}.slice:cri-containerd:{ID}": "",
    "/machine.slice/machine-web.scope/payload/system.slice/cron.service": "",
    f"/system.slice/quadlet.service/libpod-payload-{ID}": "quadlet.service",
    "/system.slice/not a unit.service": "",
    "/jobs/system.slice/cron.service": "",
}


@table("path, runtime, container", CONTAINERS.values())
def test_containers_are_found(path: str, runtime: str, container: str) -> None:
    """PROC-06: runtime and id of the innermost container; monitors and machines are none."""
    found = parse_cgroup(f"0::{path}\n".encode())

    assert (found.container_runtime, found.container_id) == (runtime, container)


@table("path, uid, runtime, container", PODS.values())
def test_pods_are_found(path: str, uid: str, runtime: str, container: str) -> None:
    """PROC-06: the pod's uid is the API's, whatever the driver makes of its dashes."""
    found = parse_cgroup(f"0::{path}\n".encode())

    assert found.pod_uid == uid
    assert (found.container_runtime, found.container_id) == (runtime, container)


@table("path, unit", UNITS.items())
def test_units_are_what_systemd_can_restart(path: str, unit: str) -> None:
    """Only services, only where systemd puts them, and those of users never look like its own."""
    assert parse_cgroup(f"0::{path}\n".encode()).unit == unit


@pytest.mark.parametrize(
    ("path", "job"),
    [
        ("/slurm/uid_1000/job_42/step_0/task_0", "42"),
        ("/slurm_node7/uid_1000/job_42/step_batch", "42"),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "42"),
        ("/system.slice/node7_slurmstepd.scope/job_42/step_extern/user", "42"),
        (f"/system.slice/slurmstepd.scope/job_42/step_0/user/docker/{ID}", "42"),
        ("/system.slice/slurmd.service", ""),
        ("/user.slice/job_42", ""),
    ],
)
def test_slurm_jobs_are_found(path: str, job: str) -> None:
    """A Slurm job is known by its number in versions 1 and 2; others' job folders are none."""
    assert parse_cgroup(f"0::{path}\n".encode()).slurm_job == job


def test_version_1_takes_each_fact_from_the_line_that_has_it() -> None:
    """Slurm uses some controllers, systemd a hierarchy with a name, and the rest say "/"."""
    found = parse_cgroup(
        b"12:pids:/\n9:memory:/slurm/uid_1000/job_42/step_0\n"
        b"4:cpu,cpuacct:/\n1:name=systemd:/system.slice/slurmd.service\n"
    )

    assert found == Membership(path="/system.slice/slurmd.service", unit="slurmd.service", slurm_job="42")


def test_a_hybrid_host_has_its_units_in_the_named_hierarchy() -> None:
    """With both versions mounted, the line of version 2 may be empty."""
    found = parse_cgroup(f"0::/\n2:devices:/docker/{ID}\n1:name=systemd:/docker/{ID}\n".encode())

    assert found == Membership(path=f"/docker/{ID}", container_id=ID, container_runtime="docker")


def test_the_root_is_a_place_and_no_text_is_none() -> None:
    """The root cgroup differs from a file that could not be read."""
    assert parse_cgroup(b"0::/\n") == Membership(path="/")
    assert parse_cgroup(b"") == Membership()


def test_a_path_chosen_by_a_user_stays_bounded_and_printable() -> None:
    """PROC-07: whoever may make cgroups may give them any name."""
    found = parse_cgroup(b"0::/a\x1b[2J/\xff" + b"/b" * 1000 + b"\n")

    assert found.path.startswith("/a\\x1b[2J/\\xff/b/")
    assert len(found.path.encode()) <= PATH_LIMIT_BYTES


@given(st.binary(max_size=300))
def test_any_text_is_read_without_an_error(data: bytes) -> None:
    """PROC-06: an odd file gives less, never an exception."""
    found = parse_cgroup(data)

    assert found.path.isprintable()
    assert found.container_id.isprintable()
