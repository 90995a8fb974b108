"""The Ansible role and the cloud-init snippet on a booted machine, with the package of this tree."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.systemd.conftest import bare
from tests.systemd.machine import Machine
from tests.systemd.test_packages import HOME, NEW, packages, serving
from tests.systemd.test_service import CONFIGURATION, DROP_INS, UNIT

ROOT = Path(__file__).parents[2]
ANSIBLE = "ansible-core>=2.19,<2.20"
"""The last that runs on Python 3.11."""
PLAYBOOK = [{"hosts": "all", "connection": "local", "gather_facts": True, "roles": ["gpuagent"]}]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive(whole_file=True),
    pytest.mark.timeout(900),
    pytest.mark.needs("systemd-nspawn"),
]

__all__ = ["packages"]


@pytest.fixture(scope="module")
def ansible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment of the distribution's Python with ansible-core."""
    folder = tmp_path_factory.mktemp("ansible") / "environment"
    subprocess.run(["/usr/bin/python3", "-m", "venv", folder], check=True)
    done = subprocess.run([folder / "bin/pip", "-q", "install", ANSIBLE], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"needs a package index for {ANSIBLE}")
    return folder


@pytest.fixture(scope="module")
def target(wheels: Path, packages: Path, ansible: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the packages in /packages and ansible in /ansible."""
    binds = (f"{packages}:/packages", f"{ansible}:{ansible}")
    with bare(wheels, tmp_path_factory.mktemp("target"), binds) as machine:
        machine.run("rm", "-f", "/usr/sbin/policy-rc.d")
        if machine.try_run("/usr/bin/python3", "-c", "import apt").returncode != 0:
            pytest.skip("needs python3-apt, which Ansible's module for apt asks for: apt-get install python3-apt")
        machine.run("ln", "-s", str(ansible), "/ansible")
        machine.write("/play/playbook.yaml", yaml.safe_dump(PLAYBOOK))
        machine.run("ln", "-s", "/src/deploy/ansible/roles", "/play/roles")
        yield machine


def play(machine: Machine, **variables: object) -> subprocess.CompletedProcess[str]:
    """Run the role with these variables."""
    package = machine.run("sh", "-c", f"ls /packages/gpuagent_{NEW}*.deb")
    extra = json.dumps({"gpuagent_package": package, "ansible_python_interpreter": "/usr/bin/python3", **variables})
    return machine.try_run(
        "env", "LC_ALL=C.UTF-8", "/ansible/bin/ansible-playbook", "-i", "localhost,", "/play/playbook.yaml", "-e", extra
    )


def changed(done: subprocess.CompletedProcess[str]) -> int:
    """How many tasks changed something; it must have worked."""
    assert done.returncode == 0, done.stdout + done.stderr
    return int(done.stdout.partition("changed=")[2].split()[0])


def test_the_role_installs_and_does_nothing_twice(target: Machine) -> None:
    """It runs with the configuration, a secret and the rights that were named; a second run changes nothing."""
    wanted = {
        "gpuagent_configuration": {"poll_interval": "3s"}, "gpuagent_secrets": {"token": "s3cret"},
        "gpuagent_drop_ins": ["kill"],
    }  # fmt: skip
    assert changed(play(target, **wanted)) > 0
    assert serving(target).startswith(HOME)
    assert "poll_interval: 3s" in target.run("cat", CONFIGURATION)
    assert target.run("stat", "--format", "%a %U", "/etc/gpuagent/secrets/token") == "600 root"
    assert "cap_kill" in target.show(UNIT, "AmbientCapabilities")
    assert changed(play(target, **wanted)) == 0


def test_the_role_takes_rights_away(target: Machine) -> None:
    """What is no longer named is no longer granted, at once."""
    assert changed(play(target, gpuagent_configuration={"poll_interval": "3s"})) > 0
    assert target.show(UNIT, "AmbientCapabilities") == ""
    assert target.run("ls", DROP_INS) == ""


def test_the_role_refuses_a_configuration(target: Machine) -> None:
    """It fails with the fault, and the file that is in use stays."""
    refused = play(target, gpuagent_configuration={"poll_intervall": "3s"})
    assert refused.returncode != 0
    assert "did you mean poll_interval?" in refused.stdout
    assert "poll_interval: 3s" in target.run("cat", CONFIGURATION)
    assert serving(target).startswith(HOME)


def test_the_role_takes_it_away(target: Machine) -> None:
    """Configuration and state stay with `absent`, and go with `purged`."""
    changed(play(target, gpuagent_state="absent"))
    assert target.try_run("test", "-e", HOME).returncode == 1
    target.run("test", "-e", CONFIGURATION)
    changed(play(target, gpuagent_state="purged"))
    assert target.try_run("test", "-e", "/etc/gpuagent").returncode == 1


@pytest.mark.parametrize("right", [False, True], ids=["another sum", "the right sum"])
def test_the_cloud_init_snippet(target: Machine, right: bool) -> None:
    """Written and run as cloud-init does it: installed with that configuration, and never a file with another sum."""
    snippet = (ROOT / "deploy/cloud-init/gpuagent.yaml").read_text()
    assert snippet.startswith("#cloud-config\n")
    package = target.run("sh", "-c", f"ls /packages/gpuagent_{NEW}*.deb")
    told = yaml.safe_load(snippet.replace("https://packages.example.org/", "file:///packages/"))
    assert set(told) == {"write_files", "runcmd"}
    for file in told["write_files"]:
        text = file["content"]
        if file["path"].endswith("SHA256SUMS"):
            assert text.split()[1].startswith("gpuagent_0.")
            text = target.run("sh", "-c", f"cd /packages && sha256sum {Path(package).name}") + "\n"
            text = text if right else "0" * 64 + text[64:]
        target.write(file["path"], text)
    (command,) = told["runcmd"]
    done = target.try_run("sh", "-c", command)
    assert (done.returncode == 0) is right, done.stdout + done.stderr
    if right:
        assert serving(target).startswith(HOME)
        assert target.run("cat", CONFIGURATION) == "poll_interval: 2s"
        assert target.run("stat", "--format", "%a %U %G", "/etc/gpuagent") == "750 root gpuagent"
    else:
        assert target.try_run("test", "-e", HOME).returncode == 1
