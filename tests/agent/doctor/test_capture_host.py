"""What a capture says of the machine around the driver."""

from __future__ import annotations

from pathlib import Path

from gpuagent.doctor.capture.host import host_facts
from gpuagent.doctor.capture.redaction import CaptureRedactor


def test_facts_of_a_machine(tmp_path: Path) -> None:
    """Modules, container, devices, memory and permissions are told, and what is absent is left out."""
    files = {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module  580.95.05\n",
        "proc/driver/nvidia/params": 'RmProfilingAdminOnly: 1\nEnableMSI: 1\nMemoryPoolSize: 0\nExcludedGpus: ""\n',
        "proc/self/cgroup": "0::/kubepods.slice/kubepods-pod0c5b2d3e_8f14_4f4e_b1a6_6f3a2e1d9c77.slice/acme.scope\n",
        "proc/self/status": "CapEff:\t0000000000000020\n",
        "proc/mounts": "proc /proc proc rw,hidepid=2 0 0\n",
        "proc/meminfo": "MemTotal: 64 kB\nMemFree: 8 kB\nMemAvailable: 32 kB\nSlab: 1 kB\n",
        "proc/pressure/memory": "some avg10=1.00 total=5\nfull avg10=0.50 total=1\n",
        "sys/fs/cgroup/cgroup.controllers": "memory\n",
        "sys/fs/cgroup/memory.max": "1073741824\n",
        "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
        "sys/bus/pci/devices/0000:01:00.0/power/runtime_status": "suspended\n",
        "sys/bus/pci/devices/0000:02:00.0/vendor": "0x8086\n",
        "dev/nvidia0": "",
        "dev/dxg": "",
        ".dockerenv": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    facts = host_facts(CaptureRedactor.with_new_key(), tmp_path)
    assert "580.95.05" in facts["nvidia_version"]
    assert facts["nvidia_params"] == {"RmProfilingAdminOnly": "1", "EnableMSI": "1"}
    assert facts["container"][0] == "docker"
    assert facts["wsl"] is True
    assert facts["capabilities"] == "0x20"
    assert facts["proc_options"] == "rw,hidepid=2"
    assert facts["meminfo"] == {"MemTotal": "64 kB", "MemFree": "8 kB", "MemAvailable": "32 kB"}
    assert (facts["memory"]["total_bytes"], facts["memory"]["available_bytes"]) == (64 * 1024, 32 * 1024)
    assert facts["memory_pressure"] == {
        "some_ratio": 0.01, "full_ratio": 0.005, "some_seconds": 5e-6, "full_seconds": 1e-6,
    }  # fmt: skip
    assert facts["cgroup_memory"] == {"max": "1073741824"}
    assert facts["cgroup_version"] == 2
    (device,) = facts["pci_devices"]
    assert device == {"address": "0000:01:00.0", "class": "0x030200", "runtime_status": "suspended"}
    (node,) = facts["device_files"]
    assert node["path"] == "/dev/nvidia0"
    assert "buddyinfo" not in facts
    assert facts["cgroup"].startswith("0::/kubepods.slice/kubepods-pod")
    assert "acme" not in facts["cgroup"]
    assert "0c5b2d3e" not in facts["cgroup"]


def test_paths_keep_their_form() -> None:
    """In a redacted cgroup path the kind of unit, container, job and user can still be told, and nobody by name."""
    redactor = CaptureRedactor.with_new_key()
    container = "1f0e9d8c7b6a5f4e3d2c1b0a9f8e7d6c5b4a3f2e1d0c9b8a7f6e5d4c3b2a1f0e"
    slurm = redactor.cgroup("0::/system.slice/slurmstepd.scope/job_48213/step_0/user/task_0")
    assert slurm == "0::/system.slice/slurmstepd.scope/job_48213/step_0/user/task_0"
    assert redactor.cgroup("0::/slurm/uid_1002/job_7") == "0::/slurm/uid_200001/job_7"
    user = redactor.cgroup("0::/user.slice/user-1002.slice/user@1002.service/app.slice/jupyter.service")
    assert user.startswith("0::/user.slice/user-200001.slice/user@200001.service/app.slice/c-")
    pod = redactor.cgroup(f"0::/system.slice/docker-{container}.scope")
    assert container not in pod
    assert len(pod) == len(f"0::/system.slice/docker-{container}.scope")
    assert redactor.cgroup(f"0::/system.slice/docker-{container}.scope") == pod
    assert CaptureRedactor(None).cgroup("0::/a/b") == "0::/a/b"
