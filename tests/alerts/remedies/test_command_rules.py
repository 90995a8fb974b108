"""Commands whose text, module, directory or variable decides what runs are refused, and so is what lies beside."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuagent_alerts.remedies.files.permissions import MAX_ENTRIES
from gpuagent_alerts.remedies.files.programs import ProgramCheck
from tests.alerts.remedies.trees import ALICE, give, make_directory, make_file, needs_root, replaced, tree

pytestmark = needs_root
__all__ = ["tree"]

INTO_A_FILE = "write it into a file of root's and name that file"


def faults(*command: str | Path) -> list[str]:
    """The faults of a command for an agent of root's."""
    return ProgramCheck(0, "/usr/bin:/bin").faults([str(word) for word in command])


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["/bin/sh", "-c", '. "{tree}/a b/x"'],
        ["/bin/sh", "-c", "cd {tree} && ./x"],
        ["/bin/sh", "-c", "D={tree}; exec $D/x"],
        ["/bin/sh", "-ec", 'exec "{tree}"/x'],
        ["/bin/sh", "-c", ". $(printf '\\t')"],
        ["/bin/sh", "-s"],
        ["/bin/sh", "-"],
        ["/bin/sh"],
        ["/bin/bash", "-o", "posix", "{tree}/x"],
        ["/bin/bash", "--rcfile", "{tree}/x"],
        ["/bin/bash", "+O", "extglob"],
        ["/bin/sh", "x", "{tree}/x"],
        ["/usr/bin/python3", "-c", "import x"],
        ["/usr/bin/python3", "-Ic", "import x"],
        ["/usr/bin/python3", "-m", "helper"],
        ["/usr/bin/python3.11", "-mhelper"],
        ["/usr/bin/perl", "-e", "1"],
        ["/usr/bin/perl", "-I{tree}", "{tree}/x"],
        ["/usr/bin/perl", "-Mx", "{tree}/x"],
        ["/usr/bin/ruby", "-r", "{tree}/x"],
        ["/usr/bin/node", "-e", "1"],
        ["/usr/bin/lua5.4", "-e", "1"],
        ["/usr/bin/awk", "BEGIN {{ system(x) }}"],
        ["/usr/bin/make", "-C", "{tree}"],
        ["/usr/bin/env", "-S", "sh {tree}/x"],
        ["/usr/bin/env", "-C", "{tree}", "./x"],
        ["/usr/bin/env", "PYTHONPATH={tree}", "/usr/bin/python3", "{tree}/x"],
        ["/usr/bin/env", "LD_PRELOAD=x.so", "true"],
        ["/usr/bin/env", "BASH_FUNC_ls%%=() {{ x; }}", "true"],
        ["/usr/bin/env", "python3", "-m", "helper"],
        ["/usr/bin/nice", "timeout", "5", "sh", "-c", "x"],
        ["/usr/bin/timeout", "5", "env", "HOME={tree}", "true"],
        ["/usr/bin/busybox", "sh", "-c", "x"],
        ["/usr/bin/find", "{tree}", "-type", "f", "-exec", "{{}}", ";"],
        ["/usr/bin/find", "{tree}", "-execdir", "./x", "+"],
        ["/usr/bin/nice", "find", "{tree}", "-ok", "x", ";"],
        ["/usr/bin/flock", "{tree}", "-c", "x"],
        ["/usr/bin/xargs", "-a", "{tree}/x"],
        ["/usr/bin/run-parts", "{tree}"],
        ["/usr/sbin/chroot", "{tree}", "/x"],
        ["/lib64/ld-linux-x86-64.so.2", "--library-path", "{tree}", "/bin/true"],
        ["/usr/bin/nice", "/lib64/ld-linux-x86-64.so.2", "/bin/true"],
    ],
)
def test_texts_are_refused(tree: Path, command: list[str]) -> None:
    """What the text of an argument makes of clean files is not guessed: it is to be written into a file."""
    make_file(tree / "x")
    assert any(each.endswith(INTO_A_FILE) for each in faults(*(word.format(tree=tree) for word in command)))


def test_a_shell_by_another_name(tree: Path) -> None:
    """Links are followed: a shell called otherwise is a shell, also below a launcher."""
    (tree / "pager").symlink_to("/bin/sh")
    assert any(each.endswith(INTO_A_FILE) for each in faults(tree / "pager", "-c", "x"))
    assert any(each.endswith(INTO_A_FILE) for each in faults("/usr/bin/nice", tree / "pager", "-c", "x"))


@pytest.mark.parametrize(
    "before",
    [["/usr/bin/python3"], ["/usr/bin/python3", "-I"], ["/usr/bin/env", "python3"], ["/usr/bin/perl", "-w"], []],
)
def test_modules_beside_a_script(tree: Path, before: list[str]) -> None:
    """A script of root's takes its modules from where it lies: each of them counts, by owner, mode and link."""
    package = make_directory(tree / "t")
    script = make_file(package / "s", "#!/usr/bin/env python3\n", 0o755)
    helper = make_file(package / "helper.py")
    assert faults(*before, script) == []
    give(helper, ALICE)
    expected = [f"{helper} belongs to uid {ALICE}: {replaced(helper)}"]
    assert faults(*before, script) == expected
    (tree / "link").symlink_to(script)  # sys.path[0] is where the link leads
    assert faults(*before, tree / "link") == expected
    helper.unlink()
    cached = give(make_file(make_directory(package / "__pycache__") / "s.pyc"), ALICE)
    assert faults(*before, script) == [f"{cached} belongs to uid {ALICE}: {replaced(cached)}"]


def test_a_script_where_others_add_modules(tree: Path) -> None:
    """The sticky bit keeps the script, and lets everybody put a module beside it."""
    script = make_file(make_directory(tree / "sticky", 0o1777) / "s.py")
    assert any("is writable by everybody" in each for each in faults("/usr/bin/python3", script))
    assert faults("/bin/sh", script) == []


def test_a_directory_as_an_argument(tree: Path) -> None:
    """One level of it is examined; with more entries than are looked at it is refused."""
    folder = make_directory(tree / "folder")
    theirs = make_file(folder / "x")
    assert faults("/usr/bin/du", folder) == []
    give(theirs, ALICE)
    for argument in (folder, f"--from={folder}", f"@{folder}"):
        assert faults("/usr/bin/du", argument) == [f"{theirs} belongs to uid {ALICE}: {replaced(theirs)}"]
    theirs.unlink()
    first = make_file(folder / "0")
    for number in range(1, MAX_ENTRIES + 1):
        os.link(first, folder / str(number))
    assert faults("/usr/bin/du", folder) == [
        f"{folder} has more than {MAX_ENTRIES} entries, which are not examined: remove some"
    ]
