"""The cgroups of a machine: where they are mounted, and who is in one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.cgroup import (
    MOST_CGROUPS,
    MOST_PROCESSES,
    Hierarchy,
    UnreadableTree,
    is_below,
    path_in_hierarchy,
    processes_in,
    systemd_hierarchies,
)
from tests.fakes.cgroups import CgroupTree

HYBRID = rb"""22 1 259:1 / / rw,relatime shared:1 - ext4 /dev/root rw
32 30 0:28 / /sys/fs/cgroup/systemd rw,nosuid shared:10 - cgroup cgroup rw,xattr,name=systemd
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate
33 30 0:29 / /srv/systemd/memory rw,nosuid shared:11 - cgroup cgroup rw,memory
40 22 0:27 /system.slice /srv/part\040of\040it rw shared:9 - cgroup2 cgroup2 rw
41 22 0:31 / /srv/a\040b rw - fuse.cgroup2 cgroup2 rw,name=systemd
"""


def test_hierarchies_of_a_hybrid_machine() -> None:
    """Version 2 comes first; a part of a hierarchy, a controller's own, and what only looks like one are left out."""
    assert systemd_hierarchies(HYBRID) == (
        Hierarchy(Path("/sys/fs/cgroup/unified"), ""),
        Hierarchy(Path("/sys/fs/cgroup/systemd"), "name=systemd"),
    )


def test_a_mount_point_with_a_space(tmp_path: Path) -> None:
    """Escapes of mountinfo are undone."""
    tree = CgroupTree(tmp_path)
    assert systemd_hierarchies(tree.mountinfo.read_bytes()) == (Hierarchy(tree.root, ""),)


@given(st.binary(max_size=200))
def test_any_mountinfo_is_read(data: bytes) -> None:
    """Garbage is no hierarchy, and no exception."""
    assert isinstance(systemd_hierarchies(data), tuple)


@pytest.mark.parametrize(
    ("text", "controllers", "path"),
    [
        (b"9:name=systemd:/old\n0::/system.slice/a:b.service\n", "", "/system.slice/a:b.service"),
        (b"9:name=systemd:/old\n0::/new\n", "name=systemd", "/old"),
        (b"9:name=systemd:/old\n", "", None),
        (b"4:cpu,cpuacct:/x\n", "cpu", None),
        (b"", "", None),
    ],
)
def test_the_path_of_a_process(text: bytes, controllers: str, path: str | None) -> None:
    """Each hierarchy has its own line, and a path may have colons in it."""
    assert path_in_hierarchy(text, controllers) == path


@pytest.mark.parametrize(
    ("path", "below"),
    [("/s/a.service", True), ("/s/a.service/x", True), ("/s/a.service2", False), ("/s", False), ("", False)],
)
def test_below(path: str, below: bool) -> None:
    """A cgroup whose name only begins alike is another one."""
    assert is_below(path, "/s/a.service") is below
    assert not is_below(path, "/")
    assert not is_below(path, "")


def test_all_processes_of_a_tree(tmp_path: Path) -> None:
    """Those in the cgroups inside count as well; those beside it do not."""
    tree = CgroupTree(tmp_path)
    tree.put(1, "/s/a.service")
    tree.put(2, "/s/a.service/x/y")
    tree.put(3, "/s/b.service")
    assert processes_in(tree.root / "s/a.service") == {1, 2}


def test_a_tree_that_cannot_be_read(tmp_path: Path) -> None:
    """Too many processes or cgroups, a process of another namespace, or no cgroup at all: never a shorter list."""
    tree = CgroupTree(tmp_path)
    tree.put(0, "/outside")
    (tree.root / "many").mkdir()
    (tree.root / "many/cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(1, MOST_PROCESSES + 2)))
    (tree.root / "longest").mkdir()
    (tree.root / "longest/cgroup.procs").write_text("4194304\n" * (MOST_PROCESSES + 2))
    for number in range(MOST_CGROUPS + 1):
        tree.put(7, f"/wide/{number}")
    for name, word in {
        "outside": "namespace",
        "many": "more than",
        "longest": "more than",
        "wide": "more than",
    }.items():
        with pytest.raises(UnreadableTree, match=word):
            processes_in(tree.root / name)
    with pytest.raises(UnreadableTree, match="No such file"):
        processes_in(tree.root / "none")


def test_as_many_as_may_be(tmp_path: Path) -> None:
    """The bound itself is still looked at."""
    tree = CgroupTree(tmp_path)
    (tree.root / "many").mkdir()
    (tree.root / "many/cgroup.procs").write_text("".join(f"{pid}\n" for pid in range(1, MOST_PROCESSES + 1)))
    assert len(processes_in(tree.root / "many")) == MOST_PROCESSES
