"""The image, built by buildah without a registry and run: small, no root, nothing written but where it may be.

A base is made of Debian's packages, as its own image is; the wheels come from a folder. There is no container runtime
here: the image's files are mounted read-only in namespaces of their own, and its command runs as its user.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuagent import __version__
from tests.systemd.conftest import make_wheels

ROOT = Path(__file__).parents[2]
MEBIBYTE = 1 << 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.exhaustive(whole_file=True),
    pytest.mark.timeout(900),
    pytest.mark.needs("buildah"),
]

RUN = """
set -eu
root=$1; shift
mount --bind "$root" "$root"
mount -o remount,ro,bind "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o uid=10837,mode=0750 tmpfs "$root/var/lib/gpuagent"
for folder in run/gpuagent run/gpuagent-client; do mount -t tmpfs -o uid=10837,mode=0755 tmpfs "$root/$folder"; done
ip link set lo up
environment="PATH=$IMAGE_PATH STATE_DIRECTORY=/var/lib/gpuagent RUNTIME_DIRECTORY=/run/gpuagent"
# shellcheck disable=SC2086
inside() { env -i $environment chroot --userspec=10837:10837 "$root" "$@"; }
if inside touch /opt/gpuagent/written 2>/dev/null; then echo "the root can be written"; exit 1; fi
# shellcheck disable=SC2086
env -i $environment chroot --userspec=10837:10837 "$root" gpuagent run &
agent=$!
for _ in $(seq 150); do
    if inside "$@" 2>/dev/null; then break; fi
    sleep 0.2
done
inside "$@"
inside gpuagent status || true
grep -E '^(Uid|CapEff)' "/proc/$agent/status"
kill -TERM "$agent"
wait "$agent"
echo "ended $?"
"""


class Buildah:
    """buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self._command = ["buildah", "--storage-driver", "vfs", "--root", str(folder / "store"),
                         "--runroot", str(folder / "run")]  # fmt: skip

    def __call__(self, *arguments: str | Path) -> str:
        """What it printed; it must work."""
        done = subprocess.run([*self._command, *map(str, arguments)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """With the image `gpuagent` in its store."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("needs root, and mmdebstrap for a base: apt-get install mmdebstrap")
    folder = tmp_path_factory.mktemp("image")
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    options = ["--quiet", "--variant=apt", "--include=python3,python3-venv", "--dpkgopt=path-exclude=/usr/share/doc/*"]
    made = subprocess.run(
        ["mmdebstrap", *options,
         release["VERSION_CODENAME"], folder / "base.tar"], capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        pytest.skip(f"no base could be made of packages: {made.stderr[-300:]}")
    wheels = folder / "wheels"
    wheels.mkdir()
    made_wheels = folder / "made"
    made_wheels.mkdir()
    for wheel in make_wheels(made_wheels).glob("*.whl"):
        shutil.copy(wheel, wheels)
    pip = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("pip=="))
    constraints = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run(
        [sys.executable, "-m", "pip", "-qq", "download", "-d", str(wheels), *constraints, pip, "hatchling"], check=True
    )
    command = Buildah(folder)
    (folder / "Containerfile").write_text("FROM scratch\nADD base.tar /\n")
    command("bud", "--isolation", "chroot", "-t", "localhost/base", "-f", folder / "Containerfile", folder)
    command(
        "bud", "--isolation", "chroot", "--pull-never", "--format", "docker", "-t", "gpuagent",
        "--build-arg", "BASE=localhost/base", "--build-arg", "PIP_NO_INDEX=1", "--build-arg", "PIP_FIND_LINKS=/wheels",
        "--volume", f"{wheels}:/wheels:ro", "-f", ROOT / "deploy/container/Containerfile", ROOT,
    )  # fmt: skip
    yield command
    command("rm", "--all")
    command("rmi", "--all", "--force")


@pytest.fixture(scope="module")
def config(buildah: Buildah) -> dict[str, Any]:
    """What the image says of itself."""
    described: dict[str, Any] = json.loads(buildah("inspect", "--type", "image", "gpuagent"))
    return described["Docker"]["config"]  # type: ignore[no-any-return]


def test_it_says_what_it_is(buildah: Buildah, config: dict[str, Any]) -> None:
    """An unprivileged user by number, labels, an end by SIGTERM, and at most 60 MiB beyond the base and its Python."""
    assert config["User"] == "10837:10837"
    assert config["StopSignal"] == "SIGTERM"
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert config["Labels"]["org.opencontainers.image.base.name"] == "localhost/base"
    sizes = {}
    for name in ("base", "gpuagent"):
        container = buildah("from", "--pull-never", f"localhost/{name}")
        mounted = buildah("mount", container)
        sizes[name] = int(subprocess.check_output(["du", "-sb", mounted], text=True).split()[0])
        buildah("rm", container)
    assert sizes["gpuagent"] - sizes["base"] < 60 * MEBIBYTE


def test_it_runs_with_a_read_only_root(buildah: Buildah, config: dict[str, Any]) -> None:
    """As its user, without a capability; healthy by the image's own check, and it ends in order."""
    container = buildah("from", "--pull-never", "localhost/gpuagent")
    mounted = buildah("mount", container)
    path = next(line.removeprefix("PATH=") for line in config["Env"] if line.startswith("PATH="))
    check = config["Healthcheck"]["Test"]
    assert check[0] == "CMD"
    namespaces = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    done = subprocess.run(
        [*namespaces, "sh", "-c", RUN, "sh", mounted, *check[1:]], capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "IMAGE_PATH": path}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Uid:\t10837" in done.stdout
    assert "CapEff:\t0000000000000000" in done.stdout
    assert f"gpuagent {__version__}" in done.stdout
    assert done.stdout.splitlines()[-1] == "ended 0"
    buildah("rm", container)
