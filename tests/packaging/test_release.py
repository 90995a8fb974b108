"""A release is the same wherever it is built, and `scripts/release cut` writes its version everywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = (
    "agent/gpuagent/__init__.py",
    "client/gpuagent_client/__init__.py",
    "deploy/kubernetes/kustomization.yaml",
    "deploy/helm/gpuagent/Chart.yaml",
)
MENTIONS = (
    *("docs/fleet.md", "docs/install.md", "deploy/helm/gpuagent/README.md"),
    *("deploy/ansible/playbook.yaml", "deploy/cloud-init/gpuagent.yaml"),
)


ADDRESSED = (
    *("pyproject.toml", "client/pyproject.toml", "client/README.md"),
    *("alerts/gpuagent_alerts/shipped/__init__.py", "alerts/gpuagent_alerts/shipped/gpuagent.rules.yaml"),
    *("alerts/gpuagent_alerts/shipped/gpuagent.rules.test.yaml",),
    *("deploy/helm/gpuagent/Chart.yaml", "deploy/container/Containerfile"),
)


def versions(tree: Path) -> set[str]:
    """What the places of a tree tell."""
    found = (
        re.search(r'^(?:__version__ = |    newTag: |appVersion: )"?([^"\n]+)', (tree / place).read_text(), re.MULTILINE)
        for place in PLACES
    )
    return {match[1] for match in found if match}


def cut(tree: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Run it there, on a day of its own."""
    command = [str(tree / "scripts/release"), "cut", version, "2026-12-24"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what `cut` reads and writes."""
    for file in (*PLACES, *MENTIONS, "CHANGELOG.md", "scripts/release"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def test_there_is_one_version() -> None:
    """The agent, the client and the image that Kubernetes pulls are of one release."""
    assert len(versions(ROOT)) == 1


def test_a_release_is_cut(tree: Path) -> None:
    """The version stands everywhere, and what was unreleased has its name and date; nothing is lost of it."""
    before = (tree / "CHANGELOG.md").read_text()
    (before_version,) = versions(tree)
    assert cut(tree, "7.8.9").returncode == 0
    assert versions(tree) == {"7.8.9"}
    for mention in MENTIONS:
        text = (tree / mention).read_text()
        assert re.search(r"(gpuagent(==|_|:)|versions/)7\.8\.9", text), mention
        assert not re.search(rf"(gpuagent(==|_|:)|versions/){re.escape(before_version)}", text), mention
    after = (tree / "CHANGELOG.md").read_text()
    assert "## [Unreleased]\n\n## [7.8.9] - 2026-12-24\n\n" in after
    assert after.replace("\n## [7.8.9] - 2026-12-24\n", "") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "said"), [("7.8.9", "has 7.8.9 already"), ("7.9.0", "nothing under Unreleased"), ("v8", "MAJOR.MINOR")]
)
def test_no_release_is_cut(tree: Path, version: str, said: str) -> None:
    """Twice the same, one without news, or a number that is none: refused, and nothing is changed."""
    assert cut(tree, "7.8.9").returncode == 0
    before = (tree / "CHANGELOG.md").read_text()
    refused = cut(tree, version)
    assert refused.returncode == 1
    assert said in refused.stderr
    assert (versions(tree), (tree / "CHANGELOG.md").read_text()) == ({"7.8.9"}, before)


def test_there_is_one_address() -> None:
    """Metadata, packages, image, chart and the links of the alerts lead to the same place."""
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    address = urls["Homepage"]
    assert set(tomllib.loads((ROOT / "client/pyproject.toml").read_text())["project"]["urls"]) == set(urls)
    for path in ADDRESSED:
        found = re.findall(r"https://[\w.-]+/[\w.-]*/?gpuagent(?![\w-])", (ROOT / path).read_text())
        assert found, path
        assert set(found) == {address}, path


@pytest.mark.parametrize("url", ["https://git.test/team/gpuagent", "http://plain.test/gpuagent", "https://git.test/"])
def test_another_address(tree: Path, url: str) -> None:
    """It is written wherever the old one stood, and nothing else is changed; what is no address is refused."""
    for path in ADDRESSED:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tree / path)
    subprocess.run(["git", "init", "-q", tree], check=True)
    subprocess.run(["git", "add", "-A"], cwd=tree, check=True)
    before = {path: (tree / path).read_text() for path in ADDRESSED}
    old = tomllib.loads(before["pyproject.toml"])["project"]["urls"]["Homepage"]
    done = subprocess.run([tree / "scripts/release", "address", url], check=False, capture_output=True, text=True)
    after = {path: (tree / path).read_text() for path in ADDRESSED}
    if "team" in url:
        assert after == {path: text.replace(old, url) for path, text in before.items()}
        assert set(done.stdout.splitlines()) == set(ADDRESSED)
    else:
        assert (done.returncode, after) == (1, before)
        assert "an address is such as" in done.stderr


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(900)
def test_two_builds_give_the_same_bytes(tmp_path: Path) -> None:
    """From two clones, by users with other masks, languages and time zones; both are listed with what is in them."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository: a release is of a commit")
    sums = []
    for clone, umask, zone in ((tmp_path / "one", 0o022, "UTC"), (tmp_path / "elsewhere/two", 0o077, "Asia/Tokyo")):
        subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        if (ROOT / ".venv-release").is_dir():  # made by an earlier `make release`: saves a minute for each clone
            (clone / ".venv-release").symlink_to(ROOT / ".venv-release")
        (clone / "untracked.py").write_text("no release has this\n")
        done = subprocess.run(
            ["make", "release"], cwd=clone, capture_output=True, text=True, check=False, umask=umask,
            env={**os.environ, "TZ": zone, "LC_ALL": "C"},
        )  # fmt: skip
        if "No matching distribution" in done.stderr and not os.environ.get("CI"):
            pytest.skip("needs a package index for the tools of a release")
        assert done.returncode == 0, done.stderr
        assert "in none of these files" in done.stdout
        subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=clone / "dist", check=True)
        sums.append((clone / "dist/SHA256SUMS").read_text())
    assert sums[0] == sums[1]
    assert sums[0].count("\n") == 7
    (version,) = versions(ROOT)
    for name, parts in (("gpuagent", 29), ("gpuagent_client", 0)):
        bill = json.loads((clone / f"dist/{name}-{version}.cdx.json").read_text())
        assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", version)
        assert len(bill.get("components", [])) >= parts
