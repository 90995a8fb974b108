"""The never-list knows a process by its name, its program, and the script that it runs: real processes of each kind."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuagent.procfs.programs import launched, module_names, scripts
from tests.alerts.remedies.processes import PLAIN, refusals_of

SCRIPT = f"#!{sys.executable}\n{PLAIN}\n"
LONG = "protected_inference_server"


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[int]:
    """A process that has said that it is ready."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a script under two names, and with a program of its own."""
    for name in (LONG, "important.py"):
        script = tmp_path / name
        script.write_text(SCRIPT, encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    shutil.copy(os.path.realpath("/bin/sh"), tmp_path / "abs")
    return tmp_path


def refusals(pid: int, never: tuple[str, ...]) -> list[str]:
    """What a rule that may end this very process is refused for, by the never-list."""
    return [each for each in refusals_of(pid, never) if "never-list" in each]


COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "a script with a long name": (("{folder}/" + LONG,), LONG),
    "a script by its path": (("{folder}/important.py",), "important.py"),
    "a script of an interpreter": ((sys.executable, "{folder}/important.py"), "important.py"),
    "a script behind options": ((sys.executable, "-u", "-X", "dev", "-Wignore", "important.py"), "important.py"),
    "a script by its whole path": ((sys.executable, "{folder}/important.py"), "{folder}/important.py"),
    "a script in the working directory": ((sys.executable, "important.py"), "{folder}/important.py"),
    "a script on a detour": ((sys.executable, "./../{folder.name}/important.py"), "{folder}/imp*.py"),
    "a module": ((sys.executable, "-um", "important"), "important"),
    "a module by its file": ((sys.executable, "-um", "important"), "{folder}/important.py"),
    "a module of a server": ((sys.executable, "important.py", "prod.wsgi:app"), "prod"),
    "a module of a server by its file": ((sys.executable, "important.py", "prod.wsgi:app"), "{folder}/prod/wsgi.py"),
    "a program by its whole path": (("{folder}/abs", "-c", "echo ready; read _"), "{folder}/abs"),
    "a program by its name": (("{folder}/abs", "-c", "echo ready; read _"), "abs"),
}


@pytest.mark.parametrize(("command", "pattern"), COMMANDS.values(), ids=COMMANDS)
def test_what_is_on_the_list_is_left_alone(folder: Path, command: tuple[str, ...], pattern: str) -> None:
    """KILL-01: an entry means the program that people mean by it, cut, interpreted or by its path."""
    wanted = pattern.format(folder=folder)
    with started([each.format(folder=folder) for each in command], folder) as pid:
        assert refusals(pid, ("another", wanted)), Path(f"/proc/{pid}/cmdline").read_bytes()
        assert refusals(pid, ("another", "unimportant.py", "/srv/other.py", f"x{LONG}", f"{folder}x")) == []


APPLICATIONS = (
    ("prod.x1:app",), ("prod.x1:make()",), ("-A", "prod.x1"), ("-Aprod.x1",), ("-vAprod.x1",), ("--app=prod.x1",),
    ("-m", "prod.x1"), ("prod/x1.py",), ("/srv/prod/x1.py",), ("file:/srv/prod/x1.py:app",),
    ("--app", "srv/prod/x1.py"),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", APPLICATIONS, ids=" ".join)
def test_a_relative_entry(folder: Path, words: tuple[str, ...]) -> None:
    """KILL-01: `prod/x1.py` means every path that ends so, and the module `prod.x1`, for launchers of every kind."""
    for launcher in (("{folder}/abs", "-c", "echo ready; read _"), (sys.executable, "{folder}/important.py")):
        command = [each.format(folder=folder) for each in (*launcher, *words)]
        with started(command, folder) as pid:
            assert refusals(pid, ("another", "prod/x1.py")), command
            assert refusals(pid, ("another", "prod/*")), command
            others = ("another", "other/x1.py", "d/x1.py", "prod/x1.p", "prod/x1", "other/*", "srv/x1.py")
            assert refusals(pid, others) == [], command


@pytest.mark.parametrize("words", [("-Aprod",), ("-lINFO", "-Aprod"), ("-vAprod",), ("-A=prod",)], ids=" ".join)
def test_a_value_that_is_glued_to_its_option(folder: Path, words: tuple[str, ...]) -> None:
    """KILL-01: `celery -Aprod worker` runs `prod`, as `celery -A prod worker` does."""
    (folder / "celery.py").write_text(PLAIN, encoding="utf-8")
    for launcher in (("{folder}/abs", "-c", "echo ready; read _"), (sys.executable, "-m", "celery")):
        with started([*(each.format(folder=folder) for each in launcher), *words, "worker"], folder) as pid:
            assert refusals(pid, ("another", "prod"))
            assert refusals(pid, ("another", "like", "pro", "Ap")) == []


def test_what_is_read_from_an_open_file(folder: Path) -> None:
    """KILL-01: a script that is read from a descriptor or from standard input is the file that this leads to."""
    script = folder / "important.py"
    for text in (
        f"exec {sys.executable} /dev/fd/9 9<{script}",
        f"exec {sys.executable} /proc/self/fd/9 9<{script}",
        f"exec {sys.executable} - <{script}",
        f"exec {sys.executable} <{script}",
        f"cd {folder} && exec {sys.executable} /proc/self/cwd/important.py",
    ):
        with started(("bash", "-c", text), Path("/")) as pid:
            assert refusals(pid, ("another", "important.py")), text
            assert refusals(pid, ("another", f"{folder}/*")), text
            assert refusals(pid, ("another", "unimportant.py", "/srv/*")) == [], text
    with started(("bash", "-c", f"exec {sys.executable} <(cat {script})"), Path("/")) as pid:
        assert "it runs what it reads from /dev/fd/" in refusals(pid, ("another",))[0]


def test_brackets_and_question_marks_are_characters(folder: Path) -> None:
    """KILL-01: `a[1].py` means that file, and not `a1.py`; only `*` stands for more."""
    for name in ("a[1].py", "a1.py", "b?.py", "bx.py"):
        (folder / name).write_text(PLAIN, encoding="utf-8")
    for name, meant, unlike in (
        ("a[1].py", ("a[1].py", "{folder}/a[1].py", "a[*"), ("a1.py",)),
        ("a1.py", ("a1.py", "a*"), ("a[1].py", "{folder}/a[1].py", "a?.py")),
        ("b?.py", ("b?.py", "{folder}/b?.py", "{folder}/b?*"), ("bx.py",)),
        ("bx.py", ("bx.py",), ("b?.py", "{folder}/b?.py", "[a-z]x.py")),
    ):
        with started((sys.executable, f"{folder}/{name}"), folder) as pid:
            for entry in meant:
                assert refusals(pid, ("another", entry.format(folder=folder))), (name, entry)
            assert refusals(pid, tuple(each.format(folder=folder) for each in unlike)) == [], name


def test_a_program_with_an_argument_of_that_name(folder: Path) -> None:
    """Only what an interpreter runs counts: the argument of any other program, or a later one, is no script."""
    for command in (
        ("{folder}/abs", "-c", "echo ready; read _", "sshd"),
        (sys.executable, "{folder}/important.py", LONG),
    ):
        with started([each.format(folder=folder) for each in command], folder) as pid:
            assert refusals(pid, (LONG,)) == []


SCRIPTS: dict[str, list[str]] = {
    "python3 a.py b.py": ["a.py"],
    "python3 -Xdev a.py": ["a.py"],
    "python3 -Ximporttime a.py": ["a.py"],
    "/usr/bin/python3.11 -X dev -W once a.py": ["dev", "once", "a.py"],
    "python -mvllm.serve --port 1": ["vllm.serve"],
    "pypy3 -I -m a b": ["a"],
    "python3 -c pass a.py": [],
    "python3 -uc pass a.py": [],
    "python3 -- -a.py": ["-a.py"],
    "python3 -": [],
    "node --require x app.js y": ["x", "app.js"],
    "R --no-echo --file=train.R": ["train.R"],
    "java -cp a.jar Main x": ["a.jar", "Main"],
    "bash -ec code a.sh": [],
    "perl -ne code a.pl": [],
    "node --eval code a.js": [],
    "node -r x a.js": ["x", "a.js"],
    "php -r code a.php": [],
    "ruby -E UTF-8 a.rb": ["UTF-8", "a.rb"],
    "ruby -Ilibe a.rb": ["a.rb"],
    "ruby -ne code a.rb": [],
    "mawk -fa.awk data": ["a.awk", "data"],
    "gawk --file=a.awk": ["a.awk"],
    "php -f./a": ["./a"],
}


@pytest.mark.parametrize("command", SCRIPTS)
def test_which_argument_is_the_script(command: str) -> None:
    """The first that is no option; where an option may have a value, that one too."""
    assert list(scripts(command.split())) == SCRIPTS[command]


MODULES: dict[str, list[str]] = {
    "prod:app": ["prod", "prod.py", "prod/__init__.py", "prod/__main__.py"],
    "prod.wsgi:make(1)": ["prod.wsgi", "prod", "prod/wsgi.py", "prod/wsgi/__init__.py", "prod/wsgi/__main__.py"],
    "prod.wsgi": ["prod.wsgi", "prod", "prod/wsgi.py", "prod/wsgi/__init__.py", "prod/wsgi/__main__.py"],
    "prod.py": [], "prod": [], "0.5": [], "host:80": ["host", "host.py", "host/__init__.py", "host/__main__.py"],
    "/srv/prod.ts": [],
}  # fmt: skip


@pytest.mark.parametrize("argument", MODULES)
def test_what_a_module_is_called(argument: str) -> None:
    """By its own name, by its packages, and by its file: servers take `module:app`."""
    assert list(module_names(argument)) == MODULES[argument]


LAUNCHED: dict[str, list[str]] = {
    "deno run --allow-all main.ts x": ["run", "main.ts", "x"],
    "dotnet Serve.dll --port=1": ["Serve.dll", "1"],
    "/lib64/ld-linux-x86-64.so.2 /opt/serve -v": ["/opt/serve"],
    "busybox sh a.sh": ["sh", "a.sh"],
    "uv run --with x serve.py": ["run", "x", "serve.py"],
    "python3 -m debugpy --listen 1 serve.py": ["1", "serve.py"],
    "python3 /usr/bin/ipython serve.py": ["serve.py"],
    "python3 train.py --out serve.py x": ["serve.py"],
    "python3 launcher.py serve.py": ["serve.py"],
    "python3 train.py --data set.csv serve": [],
    "python3 -c pass serve.py": [],
    "sh -c code serve.py": [],
    "node /usr/bin/tsx serve.ts": ["serve.ts"],
    "node bin.js serve.ts": ["serve.ts"],
    "bash run.sh serve.py vllm": ["serve.py"],
}


@pytest.mark.parametrize("command", LAUNCHED)
def test_which_arguments_may_be_launched(command: str) -> None:
    """All of a program that is no known interpreter, and of a launcher; of a plain script those that look like one."""
    first = command.split(maxsplit=1)[0].rpartition("/")[2]
    known = first in {"python3", "deno", "sh", "bash", "node"}
    assert list(launched(command.split(), interprets=known)) == LAUNCHED[command]
