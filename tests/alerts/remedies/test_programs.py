"""What an `exec` step runs may be changed by nobody else: the program, its interpreters, the files it is given."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.execution.executor import NodeActionExecutor
from gpuagent_alerts.remedies.files.programs import ProgramCheck
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.steps import RemedyStep, StepKind
from tests.alerts.remedies.processes import reader
from tests.alerts.remedies.staging import NoApps
from tests.alerts.remedies.trees import (
    ALICE,
    BOB,
    USER,
    acl,
    as_user,
    give,
    make_directory,
    make_file,
    needs_root,
    replaced,
    set_acl,
    tree,
)
from tests.alerts.remedies.world import target

pytestmark = needs_root
__all__ = ["tree"]

TOUCH = "#!/bin/sh\necho run >>{0}\n"


def faults(*command: str | Path, search: str = "/usr/bin:/bin") -> list[str]:
    """The faults of a command."""
    return ProgramCheck(0, search).faults([str(word) for word in command])


def script(path: Path, text: str = "#!/bin/sh\n", owner: int = 0) -> Path:
    """A program."""
    return give(make_file(path, text, 0o755), owner)


def test_clean_commands(tree: Path) -> None:
    """A program, a script, an interpreter with one, launchers that search PATH, addresses and options: no fault."""
    mine = script(tree / "mine", "#!/usr/bin/env sh\n")
    for command in (
        ("/bin/sleep", "1000"),
        (mine, "{pid}"),
        ("/bin/sh", mine, "{container_id}"),
        ("/usr/bin/env", "LANG=C", "timeout", "5", mine),
        ("/bin/sh", "-e", mine),
        ("/usr/bin/timeout", "5", "/usr/bin/python3", "-I", mine, "-c", "x"),
        ("/usr/bin/find", tree, "-name", "x", "-delete"),
        ("/usr/bin/awk", "-f", mine),
        ("/usr/bin/docker", "-H", "unix:///run/docker.sock", "restart", "{container_id}"),
        ("/usr/bin/curl", "https://example.org/run", "--cacert=/etc/ssl/none.pem"),
        ("/bin/echo", "etc/passwd"),
    ):
        assert faults(*command) == []


def test_a_program_of_somebody_else(tree: Path) -> None:
    """Its owner, its ACL, its directory."""
    program = script(tree / "program")
    give(program, ALICE)
    assert faults(program) == [f"{program} belongs to uid {ALICE}: {replaced(program)}"]
    give(program, 0)
    set_acl(program, acl((USER, 7, ALICE)))
    assert faults(program) == [f"{program} is writable by uid {ALICE} (ACL): {replaced(program)}"]


@pytest.mark.parametrize(
    "command",
    [
        ["/bin/sh", "{script}"],
        ["/bin/sh", "-e", "{script}", "--now"],
        ["/usr/bin/python3", "-I", "{script}"],
        ["/usr/bin/env", "{script}"],
        ["/usr/bin/env", "CONF={script}", "true"],
        ["/usr/bin/nice", "-n", "5", "{script}"],
        ["/usr/bin/awk", "-f{script}"],
        ["/bin/echo", "--file={script}"],
        *(["/bin/echo", f"a{mark}{{script}}"] for mark in "=@+:,#%!["),
        ["/bin/echo", "@{script}"],
        ["/bin/echo", "file://{script}"],
    ],
)
def test_a_script_of_somebody_else_as_an_argument(tree: Path, command: list[str]) -> None:
    """The program is root's, and what it is told to run is not."""
    theirs = script(tree / "x.sh", owner=ALICE)
    told = faults(*(word.format(script=theirs) for word in command))
    assert told == [f"{theirs} belongs to uid {ALICE}: {replaced(theirs)}"]


def test_an_interpreter_of_somebody_else(tree: Path) -> None:
    """The first line of a script, and of its interpreter's, names what runs; also in an argument of `env`."""
    theirs = script(tree / "interpreter", owner=ALICE)
    expected = [f"{theirs} belongs to uid {ALICE}: {replaced(theirs)}"]
    assert faults(script(tree / "one", f"#! {theirs} -x\n")) == expected
    assert faults(script(tree / "two", f"#!{tree / 'one'}\n")) == expected
    assert faults("/usr/bin/env", tree / "two") == expected
    assert faults(script(tree / "three", f"#!/usr/bin/env {theirs}\n")) == expected
    assert faults(script(tree / "four", "#!bin/sh\n")) == [
        f"{tree}/four has the interpreter bin/sh: write an absolute path"
    ]


def test_what_python_imports(tree: Path) -> None:
    """Packages beside a script at any depth, and the virtual environment of the interpreter as it is called."""
    program = script(make_directory(tree / "own") / "x.py")
    module = make_file(make_directory(make_directory(tree / "own" / "pkg") / "sub") / "mod.py")
    for command in (("/usr/bin/python3", program), ("/usr/bin/some-launcher", "--", "python3", program)):
        assert faults(*command) == []
        give(module, ALICE)
        assert faults(*command) == [f"{module} belongs to uid {ALICE}: {replaced(module)}"]
        give(module, 0)
    python = make_directory(make_directory(tree / "venv") / "bin") / "python3"
    python.symlink_to("/usr/bin/python3")
    cfg = make_file(tree / "venv" / "pyvenv.cfg")
    packages = tree / "venv" / "lib" / "python3" / "site-packages"
    packages.mkdir(parents=True)
    link = make_file(packages / "x.pth")
    launched = script(tree / "own" / "tool", f"#!{python}\n")
    for words in ((python, program), (launched,)):
        assert faults(*words) == []
        for each in (cfg, link):
            give(each, ALICE)
            assert faults(*words) == [f"{each} belongs to uid {ALICE}: {replaced(each)}"]
            give(each, 0)


def test_no_list_of_launchers_is_whole(tree: Path) -> None:
    """A program that nobody has heard of is taken for one that runs its arguments; what takes names is not."""
    text = "is given no script by its absolute path"
    for command in (["sh", "-c", "x"], ["--", "/bin/bash", "-c", "x"], ["-n", "0", "python3", "x.py"]):
        assert any(text in each or "runs or loads a text" in each for each in faults("/usr/bin/choom", *command))
    assert faults("/usr/bin/docker", "restart", "node") == []
    assert faults("/usr/bin/strace", "xargs") == [
        "xargs runs what cannot be examined: write it into a file of root's and name that file"
    ]
    assert faults("/usr/bin/tar", "-xf", "../etc/passwd") == [
        "../etc/passwd is a relative path to a file: write /../etc/passwd"
    ]


def test_scripts_that_interpret_each_other(tree: Path) -> None:
    """A circle ends, as it does in the kernel, with an error of its own."""
    for one, other in (("a", "b"), ("b", "a")):
        script(tree / one, f"#!{tree / other}\n")
    assert faults(tree / "a") == []


def test_a_name_in_path(tree: Path) -> None:
    """`env NAME` runs the first NAME in PATH: what is found, and where it could be put before that, are examined."""
    early, late = make_directory(tree / "early", 0o1777), make_directory(tree / "late")
    script(late / "tool")
    search = f"{early}:{late}"
    (everybody, group) = faults("/usr/bin/env", "tool", search=search)
    assert everybody.startswith(f"{early}/tool does not exist and can be created, as {early} is writable by everybody")
    assert "its group" in group
    early.chmod(0o755)
    assert faults("/usr/bin/env", "tool", search=search) == []
    assert faults(script(tree / "s", "#!/usr/bin/env tool\n"), search=search) == []
    give(late / "tool", ALICE)
    for command in (
        ["/usr/bin/env", "tool"],
        ["/usr/bin/timeout", "5", "tool"],
        [tree / "s"],
    ):
        assert faults(*command, search=search) == [f"{late}/tool belongs to uid {ALICE}: {replaced(late / 'tool')}"]


def test_relative_paths() -> None:
    """A program is given absolutely, and so is the script of an interpreter; the fault says how."""
    assert faults("true") == [f"true is not an absolute path: write {shutil.which('true', path='/usr/bin:/bin')}"]
    assert faults("no-such-program") == ["no-such-program is not an absolute path: write where it is, from / on"]
    assert faults("./x") == ["./x is not an absolute path: write where it is, from / on"]
    relative = "etc/passwd is a relative path to a file: write /etc/passwd"
    assert relative in faults("/bin/sh", "etc/passwd")
    assert relative in faults("/usr/bin/python3", "etc/passwd")
    assert faults("/usr/bin/env", "cat", "etc/passwd") == [relative]
    assert faults("/usr/bin/nice", "docker", "run", "etc/none") == []


@pytest.mark.parametrize("name", ["x y", "a=b:c", "d'e", "ö"])
@pytest.mark.parametrize("form", ["{}", "--file={}", "-f{}"])
def test_odd_names(tree: Path, name: str, form: str) -> None:
    """A file whose name has what stands between words is found all the same."""
    theirs = give(make_file(tree / name), ALICE)
    assert any(f"belongs to uid {ALICE}" in each for each in faults("/bin/echo", form.format(theirs)))


@pytest.mark.parametrize(
    ("argument", "hidden"),
    [
        ("~alice/x.sh", "~alice/x.sh"),
        ("exec ~/x; true", "~/x"),
        ("/home/*/x.sh {pid}", "/home/*/x.sh"),
        ("cat '/srv/$NAME'", "/srv/$NAME'"),
        ("/home/{alice,bob}/x", "/home/{alice,bob}/x"),
        ("PATH=/srv:/opt tool", "PATH=/srv:/opt"),
    ],
)
def test_what_a_shell_expands(argument: str, hidden: str) -> None:
    """Which file it means is known only when it runs: refused, as it may be anybody's."""
    expected = f"{hidden} in an argument cannot be examined: write whole paths, or a script that has it"
    assert expected in faults("/usr/bin/nice", "cat", argument)
    assert expected not in faults("/bin/echo", argument)
    assert faults("/usr/bin/nice", "ls", "{pid}", "'/srv/{container_id}'", "$1") == []


def test_a_program_that_cannot_be_read(tree: Path) -> None:
    """The kernel reads its first line and runs what that names, which is not known then. A secret is no program."""
    program = script(tree / "program")
    give(program, BOB)
    program.chmod(0o700)
    secret = give(make_file(tree / "secret", mode=0o600), BOB)
    told = as_user(ALICE, lambda: "\n".join(ProgramCheck(BOB).faults([str(program), str(secret)])))
    assert told == f"{program} cannot be read (Permission denied), so what runs it is unknown: chmod o+r it"


def test_what_is_not_there_yet(tree: Path) -> None:
    """A program that is missing is no fault, so that one configuration serves many nodes, unless others may make it."""
    sticky = make_directory(tree / "sticky", 0o1777)
    assert faults(tree / "none") == []
    assert len(faults("/bin/sh", sticky / "none")) == 2


def test_directories_and_fifos(tree: Path) -> None:
    """Python runs a directory's __main__.py, which may be anybody's: interpreters are given files."""
    assert faults("/usr/bin/du", tree) == []
    refused = f"{tree} is a directory, whose files are not examined: name the file to run"
    assert refused in faults("/usr/bin/python3", tree)
    os.mkfifo(tree / "fifo", 0o600)
    assert faults("/bin/sh", tree / "fifo") == [f"{tree}/fifo is a FIFO: name a file"]
    assert len(faults("/bin/sh", "/dev/stdin")) == 1


def test_every_fault_at_once(tree: Path) -> None:
    """The program's, its interpreter's and its argument's, each once."""
    theirs = give(make_file(tree / "data"), ALICE)
    program = script(tree / "program", f"#!{script(tree / 'i', owner=ALICE)}\n", owner=ALICE)
    told = faults(program, theirs, f"--again={theirs}", "\0", "/nul\0")
    assert [each.partition(" ")[0] for each in told] == [str(program), f"{tree}/i", str(theirs)]


def test_a_program_that_its_old_owner_has_open(tree: Path) -> None:
    """Its owner and its mode are root's, and what it says is not settled: the program, a script, one below `env`."""
    program = script(tree / "program")
    expected = [f"{program} is open for writing in some process: {replaced(program)}"]
    for command in ([program], ["/bin/sh", program], ["/usr/bin/env", program], ["/usr/bin/env", "sh", program]):
        with program.open("r+"):
            assert faults(*command) == expected
        assert faults(*command) == []


def test_checked_again_right_before_it_runs(tree: Path) -> None:
    """What has been changed since the start is not run: the step fails, and says why."""
    ran = tree / "ran"
    program = script(tree / "program", TOUCH.format(ran))

    async def warn(*_: object) -> None:
        """Nobody is told."""

    executor = NodeActionExecutor(RealProc(), reader(), apps=NoApps(), warn=warn, program_check=ProgramCheck())
    done = asyncio.run(
        executor.execute(RemedyStep(StepKind.EXEC, 30.0, command=(str(program),)), target(), UnitPermission())
    )
    assert (done.ok, ran.read_text()) == (True, "run\n"), done
    give(program, ALICE)
    done = asyncio.run(
        executor.execute(RemedyStep(StepKind.EXEC, 30.0, command=(str(program),)), target(), UnitPermission())
    )
    assert not done.ok
    assert done.detail == f"the program is not run: {program} belongs to uid {ALICE}: {replaced(program)}"
    assert ran.read_text() == "run\n"
