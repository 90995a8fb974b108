"""Everything on a path that others can change is found: by owner, mode, ACL and file system, link by link."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuagent_alerts.remedies.files.path_walk import walk
from tests.alerts.remedies.trees import (  # fmt: skip
    ALICE,
    BOB,
    GROUP,
    USER,
    acl,
    give,
    make_directory,
    make_file,
    needs_root,
    replaced,
    set_acl,
    tree,
)

pytestmark = needs_root
__all__ = ["tree"]


def faults(path: Path | str, own: int = 0) -> list[str]:
    """The faults of a path in words, for an agent of root's or of another user."""
    with walk(str(path), {0, own}) as walked:
        return [str(each) for each in walked.faults]


def test_a_clean_path(tree: Path) -> None:
    """A file of root's, by way of links of root's and a sticky /tmp: no fault, and what the kernel finds there."""
    make_directory(tree / "real")
    file = make_file(tree / "real" / "file")
    (tree / "b").symlink_to("real")
    (tree / "a").symlink_to(tree / "b" / ".." / "b")
    with walk(f"{tree}/./a//../b/../a/file", {0}) as walked:
        assert walked.faults == []
        assert walked.status is not None
        assert os.path.samestat(walked.status, file.stat())
        assert walked.is_regular_file()


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_writable_by_mode(tree: Path, mode: int) -> None:
    """By its group or everybody; also by gid 0, whose members are not root."""
    file = make_file(tree / "file", mode=mode)
    told = faults(file)
    assert (f"{file} is writable by everybody: {replaced(file)}" in told) == bool(mode & 0o002)
    assert (f"{file} is writable by its group (gid 0): {replaced(file)}" in told) == bool(mode & 0o020)


def test_an_acl_of_a_user(tree: Path) -> None:
    """`setfacl -m u:alice:rw`: the mode shows the mask, and the entry is found."""
    file = make_file(tree / "file")
    set_acl(file, acl((USER, 6, ALICE)))
    assert faults(file) == [f"{file} is writable by uid {ALICE} (ACL): {replaced(file)}"]
    assert faults(file, own=ALICE) == []
    set_acl(file, acl((USER, 6, ALICE), mask=4))
    assert faults(file) == []
    set_acl(file, acl((USER, 6, 0), (USER, 4, ALICE), (GROUP, 5, BOB)))
    assert faults(file) == []


def test_an_acl_of_groups(tree: Path) -> None:
    """A named group is refused whichever it is; so is the owning group, whose permissions the mode does not show."""
    file = make_file(tree / "file")
    set_acl(file, acl((GROUP, 6, 0), group=6))
    assert faults(file) == [
        f"{file} is writable by its group (gid 0): {replaced(file)}",
        f"{file} is writable by gid 0 (ACL): {replaced(file)}",
    ]


def test_an_acl_of_a_directory(tree: Path) -> None:
    """Who may write a directory replaces what is in it."""
    folder = make_directory(tree / "folder")
    file = make_file(folder / "file")
    set_acl(folder, acl((USER, 7, ALICE), other=5))
    assert faults(file) == [f"{folder} is writable by uid {ALICE} (ACL): setfacl -b {folder}"]


def test_a_default_acl(tree: Path) -> None:
    """It lets nobody write what is there; a file that is made under it has an ACL of its own, which is found."""
    folder = make_directory(tree / "folder")
    old = make_file(folder / "old")
    set_acl(folder, acl((USER, 7, ALICE), other=5), "system.posix_acl_default")
    assert faults(old) == []
    new = folder / "new"
    new.write_text("")
    assert any(f"uid {ALICE} (ACL)" in each for each in faults(new))


def test_owners(tree: Path) -> None:
    """The owner may change the mode at any time, so it does not matter. The agent's own user is as good as root."""
    file = give(make_file(tree / "file", mode=0o400), ALICE)
    assert faults(file) == [f"{file} belongs to uid {ALICE}: {replaced(file)}"]
    assert faults(file, own=ALICE) == []
    assert faults(file, own=BOB) == faults(file)


def test_a_link_in_the_middle_of_a_chain(tree: Path) -> None:
    """Of a -> b -> c, b lies in a directory of somebody else's: both ends are root's, and it is found."""
    theirs = make_directory(tree / "theirs", owner=ALICE)
    file = make_file(tree / "c")
    (theirs / "b").symlink_to(file)
    (tree / "a").symlink_to(theirs / "b")
    assert faults(tree / "a") == [f"{theirs} belongs to uid {ALICE}: chown root {theirs}"]


def test_a_link_of_somebody_else(tree: Path) -> None:
    """In a sticky directory its owner may turn it, though nobody else may."""
    sticky = make_directory(tree / "sticky", 0o1777)
    file = make_file(tree / "file")
    link = sticky / "link"
    link.symlink_to(file)
    assert faults(link) == []
    give(link, ALICE)
    assert faults(link) == [f"{link} is a link of uid {ALICE}: chown -h root {link}"]


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_writable_directory(tree: Path, mode: int) -> None:
    """Anywhere above: with the sticky bit a file of root's stays where it is, without it anybody replaces it."""
    folder = make_directory(tree / "folder", mode)
    file = make_file(make_directory(folder / "below") / "file")
    assert {each.split(": ")[1].split(" ")[0] for each in faults(file)} == {"chmod"}
    folder.chmod(mode | stat.S_ISVTX)
    assert faults(file) == []
    give(folder, ALICE)  # who owns it may take names away all the same (path_resolution(7))
    assert faults(file) == [f"{folder} belongs to uid {ALICE}: chown root {folder}"]
    give(folder, 0)
    give(folder / "below", ALICE)
    assert len(faults(file)) == 1


def test_what_is_not_there(tree: Path) -> None:
    """Who may create it decides what will be there: in a sticky directory too. Where nobody may, there is no fault."""
    assert faults(tree / "none" / "file") == []
    sticky = make_directory(tree / "sticky", 0o1777)
    told = faults(sticky / "none" / "file")
    assert f"{sticky}/none does not exist and can be created, as {sticky} is writable by everybody" in told[0]
    make_file(tree / "file")
    with walk(str(tree / "file" / "below"), {0}) as walked:
        assert (walked.faults, walked.status) == ([], None)
    give(tree / "file", ALICE)
    assert len(faults(tree / "file" / "below")) == 1


def test_a_directory_at_the_end(tree: Path) -> None:
    """Of a directory that is named itself, what others may put into it counts: the sticky bit does not help."""
    assert faults(make_directory(tree / "clean")) == []
    assert len(faults(make_directory(tree / "sticky", 0o1777))) == 2


def test_hard_links(tree: Path) -> None:
    """A second name of a clean file is fine wherever it lies; one of a user's file is a user's file."""
    elsewhere = make_directory(tree / "theirs", owner=ALICE)
    file = make_file(tree / "file")
    os.link(file, elsewhere / "name")
    assert faults(file) == []
    os.link(give(make_file(elsewhere / "own"), ALICE), tree / "name")
    assert len(faults(tree / "name")) == 1


def test_links_without_an_end(tree: Path) -> None:
    """A loop, and one link more than the kernel follows, are told and do not hang; 40 are followed."""
    (tree / "loop").symlink_to("loop")
    assert "cannot be examined (Too many levels of symbolic links)" in faults(tree / "loop")[0]
    make_file(tree / "0")
    for number in range(41):
        (tree / str(number + 1)).symlink_to(str(number))
    assert (faults(tree / "40"), (tree / "40").exists()) == ([], True)
    assert len(faults(tree / "41")) == 1


def test_sockets_and_devices(tree: Path) -> None:
    """What is written into them does not stay in them: /dev/null is no fault, a device of somebody else's is."""
    assert faults("/dev/null") == []
    device = tree / "null"
    os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    give(device, ALICE)
    assert len(faults(device)) == 1


@pytest.mark.parametrize("path", ["/proc/self/fd/0", "/dev/stdin", "/proc/self/exe", "/proc/1/root/etc/passwd"])
def test_names_in_proc(path: str) -> None:
    """They are other files for the program that is started, or for whoever has that pid by then."""
    assert any("lies in /proc, where a name is another file for each process" in each for each in faults(path))


@pytest.mark.parametrize("path", ["relative", "", "/nul\0", "/" + "x" * 300, "/" + "y/" * 3000])
def test_odd_paths(path: str) -> None:
    """None of them raises; what is no absolute path is a fault."""
    assert bool(faults(path)) == (not path.startswith("/") or "\0" in path)


def test_a_name_that_disturbs_a_terminal(tree: Path) -> None:
    """It is escaped, as is what a person is told to run."""
    file = make_file(tree / "a\x1b[31m\n", mode=0o666)
    assert all(each.isprintable() for each in faults(file))
