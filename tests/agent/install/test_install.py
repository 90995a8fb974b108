"""The steps of an installation in a folder, with a stand-in for systemd's programs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuagent.install.install import Installation, System, shipped, uninstall
from gpuagent.install.placing import (
    HOME,
    InstallFault,
    Layout,
    Manifest,
    Placed,
    check_environment,
    check_reach,
    remove,
    write,
)

ROOT = Path(__file__).parents[3]


class Programs:
    """systemd's programs: what they were asked, and answers with a status for some."""

    def __init__(self, **statuses: int) -> None:
        self.asked: list[str] = []
        self._statuses = statuses

    def __call__(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        words = " ".join(command)
        self.asked.append(words)
        status = next((code for word, code in self._statuses.items() if word in words), 0)
        return subprocess.CompletedProcess(command, status, "", "it said no" if status else "")


def staged(folder: Path, prefix: str = "/usr") -> Layout:
    """Install into a folder, and give its layout."""
    layout = Layout(folder.resolve(), Path(prefix))
    environment = layout.at(HOME) / "versions/1"
    environment.mkdir(parents=True, exist_ok=True)
    manual = Placed(layout.prefix / "share/man/man1/gpuagent.1", ".TH GPUAGENT 1\n")
    system = System(Programs(), folder / "not-booted")
    installation = Installation(layout, system, [manual], "#a: 1\n", environment, Path("/usr"), sys.executable)
    assert list(installation.run())
    return layout


def test_staging_touches_only_its_folder(tmp_path: Path) -> None:
    """`make install DESTDIR=` is for packagers, without root: users and units are the package's business."""
    layout = staged(tmp_path)
    assert layout.at(Path("/usr/lib/systemd/system/gpuagent.service")).exists()
    assert str((tmp_path / "usr/bin/gpuagent").readlink()) == "/opt/gpuagent/current/bin/gpuagent"
    assert str((tmp_path / "opt/gpuagent/current").readlink()) == "versions/1"
    assert (tmp_path / "usr/share/man/man1/gpuagent.1").read_text() == ".TH GPUAGENT 1\n"
    assert not (tmp_path / "opt/gpuagent/installed.json").exists()


def test_a_configuration_that_is_there_stays(tmp_path: Path) -> None:
    """The new defaults lie beside it."""
    (tmp_path / "etc/gpuagent").mkdir(parents=True)
    (tmp_path / "etc/gpuagent/gpuagent.yaml").write_text("poll_interval: 2s\n")
    staged(tmp_path)
    assert (tmp_path / "etc/gpuagent/gpuagent.yaml").read_text() == "poll_interval: 2s\n"
    assert (tmp_path / "etc/gpuagent/gpuagent.yaml.example").read_text() == "#a: 1\n"


def test_what_is_in_the_folder_of_units_is_what_is_shipped() -> None:
    """A drop-in that is added to systemd/ is in the wheel, too, by a link: the wheel holds what it leads to."""
    names = {path.name for path in (ROOT / "systemd").iterdir()}
    links = ROOT / "agent/gpuagent/install/files"
    assert {path.name for path in links.iterdir()} == names
    for link in links.iterdir():
        assert link.resolve() == ROOT / "systemd" / link.name


def test_drop_ins_are_examples() -> None:
    """Nothing that gives rights takes effect by being installed."""
    layout = Layout()
    active = {file.path for file in shipped(layout) if not file.path.is_relative_to(layout.examples)}
    assert {path.name for path in active} == {"gpuagent.service", "gpuagent.conf"}
    assert {"kill.conf", "gpuagent.rules"} <= {file.path.name for file in shipped(layout)} - {p.name for p in active}


def test_a_service_that_could_not_be_run_is_refused(tmp_path: Path) -> None:
    """Before anything is placed: an environment below /root or /tmp is hidden by the unit's own sandbox."""
    layout = Layout(Path("/"))
    programs = Programs()
    system = System(programs, tmp_path)
    installation = Installation(layout, system, [], "", tmp_path, Path("/usr"), sys.executable)
    with pytest.raises(InstallFault, match="which the unit hides"):
        list(installation.run())
    assert programs.asked == []


def test_no_environment_of_its_own() -> None:
    """The distribution's own Python is not linked into /opt."""
    with pytest.raises(InstallFault, match="not in an environment of its own"):
        check_environment(Path("/usr"), Path("/usr"))


def test_what_everybody_can_reach() -> None:
    """/usr is fine, and a folder that is root's alone is named with what helps."""
    check_reach(Path("/usr"))


def test_a_closed_folder(tmp_path: Path) -> None:
    """The home of another's Python, most often."""
    with pytest.raises(InstallFault):
        check_reach(tmp_path)


def test_a_program_that_fails_is_quoted() -> None:
    """Whoever installs reads systemd's own reason."""
    system = System(Programs(**{"daemon-reload": 1}))
    with pytest.raises(InstallFault, match=r"(?s)could not read its units.*it said no"):
        system.reload()


def test_a_machine_that_systemd_does_not_run(tmp_path: Path) -> None:
    """There is nothing that would start a service: refused, with what there is for images and containers."""
    programs = Programs()
    system = System(programs, tmp_path / "not-booted")
    installation = Installation(Layout(), system, [], "", Path("/usr/x"), Path("/usr"), sys.executable)
    with pytest.raises(InstallFault, match="take the package"):
        list(installation.run())
    assert programs.asked == []


def test_a_program_that_is_not_there() -> None:
    """As a shell has it: 127."""
    with pytest.raises(InstallFault, match="No such file"):
        System().check_configuration("/nowhere/python")


def test_the_list_of_files(tmp_path: Path) -> None:
    """What an older version placed and a newer one does not is named; a list that cannot be read is as none."""
    manifest = Manifest(tmp_path)
    assert not manifest.exists
    manifest.add([Path("/a"), Path("/b")])
    assert manifest.keep([Path("/b"), Path("/c")]) == [Path("/a")]
    assert manifest.read() == [Path("/b"), Path("/c")]
    (tmp_path / "installed.json").write_text("[")
    assert manifest.read() == []


def test_a_file_is_whole_or_not_there(tmp_path: Path) -> None:
    """Written beside and moved: nobody reads half of it, and nothing is left beside it."""
    write(tmp_path / "x/file", "one\n", 0o640)
    write(tmp_path / "x/file", "two\n")
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["file"]
    assert (tmp_path / "x/file").read_text() == "two\n"
    assert (tmp_path / "x/file").stat().st_mode & 0o777 == 0o644


def test_folders_that_are_ours_go_with_their_last_file(tmp_path: Path) -> None:
    """And no other folder does."""
    layout = Layout(tmp_path)
    for name in ("/usr/share/doc/gpuagent/examples/a", "/usr/share/doc/other/b"):
        write(layout.at(Path(name)), "")
    remove(layout, [Path("/usr/share/doc/gpuagent/examples/a"), Path("/usr/share/doc/other/b"), Path("/usr/none")])
    assert sorted(path.name for path in (tmp_path / "usr/share/doc").iterdir()) == ["other"]


def test_taking_away_what_is_not_there(tmp_path: Path) -> None:
    """Says so, and fails over nothing."""
    lines = list(uninstall(System(Programs(), tmp_path / "not-booted"), Layout(tmp_path)))
    assert lines == [f"{tmp_path}/opt/gpuagent has no installed service"]


def test_taking_away_what_a_package_has_brought(tmp_path: Path) -> None:
    """It is the package manager's: refused, with the command that works, and no file is touched, purge or not."""
    layout = staged(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    for purge in (False, True):
        with pytest.raises(InstallFault, match="apt remove gpuagent"):
            list(uninstall(System(Programs(), tmp_path / "not-booted"), layout, purge=purge))
    assert sorted(tmp_path.rglob("*")) == before


def test_taking_away_keeps_what_cannot_be_had_again(tmp_path: Path) -> None:
    """Configuration, drop-ins and state stay and are named; all of it goes only when that is asked for."""
    layout = staged(tmp_path, "/usr/local")
    manifest = Manifest(layout.at(HOME))
    manifest.add([file.path for file in shipped(layout)])
    layout.at(Path("/var/lib/gpuagent")).mkdir(parents=True)
    programs = Programs()
    (tmp_path / "booted").mkdir()
    lines = list(uninstall(System(programs, tmp_path / "booted"), layout))
    assert "kept: /etc/gpuagent, /var/lib/gpuagent" in lines[-1]
    assert programs.asked == ["systemctl disable --now gpuagent.service", "systemctl daemon-reload"]
    assert not layout.at(HOME).exists()
    assert not layout.at(layout.sysusers).exists()
    list(uninstall(System(programs, tmp_path / "none"), layout, purge=True))
    assert not layout.at(Path("/etc/gpuagent")).exists()
    assert not layout.at(Path("/var/lib/gpuagent")).exists()
    assert "userdel gpuagent" in programs.asked


@pytest.mark.parametrize("fails", [False, True])
def test_memory_limits_do_not_outlive_what_knows_them(tmp_path: Path, fails: bool) -> None:
    """Before the files go, all limits that were set are lifted; where that fails it is said."""
    layout = staged(tmp_path, "/usr/local")
    Manifest(layout.at(HOME)).add([])
    ledger = layout.at(Path("/run/gpuagent-limit/ledger.json"))
    ledger.parent.mkdir(parents=True)
    ledger.write_text("[]")
    programs = Programs(**({"helper": 1} if fails else {}))
    (tmp_path / "booted").mkdir()
    lines = list(uninstall(System(programs, tmp_path / "booted"), layout))
    lift = f"{layout.at(HOME)}/current/bin/python -I -m gpuagent.driver.memory_limits.helper --lift-all"
    assert programs.asked.index(lift) > programs.asked.index("systemctl disable --now gpuagent-limit.socket")
    assert ("memory limits may be left" in lines[0]) is fails


def test_packages_lift_memory_limits_too() -> None:
    """The scripts that run before a package's files go ask the same."""
    for script in ("deb/prerm", "rpm/preun"):
        assert "gpuagent.driver.memory_limits.helper --lift-all" in (ROOT / "deploy/packages" / script).read_text()


def test_units_keep_the_names_by_which_they_know_each_other(tmp_path: Path) -> None:
    """A socket and its service are shipped, under the names that each has in the other and in every advice."""
    names = {file.path.name for file in shipped(Layout(tmp_path))}
    for unit in ("gpuagent-limit", "gpuagent-reclaim"):
        assert {f"{unit}.socket", f"{unit}.service"} <= names


def test_taking_away_needs_the_standard_library_alone() -> None:
    """It must work where the installed environment is broken: a plain Python runs it from the source."""
    script = "import sys; sys.path.insert(0, 'agent'); import gpuagent.install.__main__"
    subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True, cwd=ROOT, timeout=30)
