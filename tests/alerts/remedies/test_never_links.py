"""An entry of the never-list with a path means the file that it leads to, and what leads there: real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuagent.procfs.files import RealProc
from gpuagent_alerts.remedies.execution.executor import NodeActionExecutor
from gpuagent_alerts.remedies.facts.never_entries import NeverListEntries
from gpuagent_alerts.remedies.facts.symlinks import SearchLimits, find_links, spellings
from gpuagent_alerts.remedies.facts.unit_processes import UnitProcesses
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.safeguards.refusals import advice_on
from tests.alerts.remedies import tied
from tests.alerts.remedies.processes import PLAIN, as_target, reader, refusals_of
from tests.alerts.remedies.staging import NoApps, no_warning
from tests.alerts.remedies.world import target

INTERPRETER = os.path.realpath(sys.executable)
WAITS = "echo ready; read _"
STOPS = """
import subprocess
pipe = subprocess.PIPE
job = subprocess.Popen(['{program}', '-c', 'echo ready; read _'], stdin=pipe, stdout=pipe, process_group=0)
assert job.stdout.readline()
os.kill(job.pid, signal.SIGSTOP)
os.waitpid(job.pid, os.WUNTRACED)
ready(job.pid)
"""
"""It has stopped a job that nobody else could continue."""


class Denied(RealProc):
    """As an agent without CAP_SYS_PTRACE sees processes of others."""

    def link(self, pid: int, name: str) -> str:
        if name.rpartition("/")[2] in {"exe", "cwd"}:
            raise PermissionError
        return super().link(pid, name)

    def read(self, pid: int, name: str) -> bytes:
        if name.endswith("environ"):
            raise PermissionError
        return super().read(pid, name)


@contextmanager
def started(command: Sequence[str], folder: Path, *, program: str | None = None, path: str = "") -> Iterator[int]:
    """A process that has said that it is ready; `program` is run where the first argument is another."""
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, executable=program,
        env=environment,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def withheld(pid: int, *never: str, denied: bool = False) -> list[str]:
    """What a rule is refused for by these entries."""
    found = refusals_of(pid, never, files=Denied() if denied else None)
    return [each for each in found if "never-list" in each]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`real/tool` is a program, `real/serve.py` a script; `links` leads there in every way."""
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "links").mkdir()
    shutil.copy(os.path.realpath("/bin/sh"), tmp_path / "real" / "tool")
    shutil.copy(tmp_path / "real" / "tool", tmp_path / "real" / "deep" / "tool")
    (tmp_path / "real" / "serve.py").write_text(PLAIN, encoding="utf-8")
    (tmp_path / "links" / "tool").symlink_to(tmp_path / "real" / "tool")
    (tmp_path / "links" / "serve").symlink_to("../real/serve.py")
    (tmp_path / "links" / "current").symlink_to("../real")
    (tmp_path / "links" / "twice").symlink_to("tool")
    (tmp_path / "above").symlink_to("links")
    os.link(tmp_path / "real" / "tool", tmp_path / "hard")
    os.link(tmp_path / "real" / "serve.py", tmp_path / "hard.py")
    return tmp_path


def tool(path: str) -> tuple[str, ...]:
    """A command that runs this program."""
    return path, "-c", WAITS


CASES: dict[str, tuple[tuple[str, ...], str]] = {
    "the entry is a link": (tool("real/tool"), "links/tool"),
    "the entry is a link to a link": (tool("real/tool"), "links/twice"),
    "a link in the middle of the entry": (tool("real/tool"), "links/current/tool"),
    "a link above the entry": (tool("real/tool"), "above/current/tool"),
    "started by a link": (tool("links/twice"), "real/tool"),
    "started by a link in the middle": (tool("links/current/tool"), "real/tool"),
    "both are links": (tool("links/current/tool"), "above/twice"),
    "a hard link": (tool("hard"), "links/tool"),
    "a hard link to what a pattern means": (tool("hard"), "real/*"),
    "a hard link to a script that a pattern means": ((sys.executable, "hard.py"), "real/*.py"),
    "a directory": (tool("real/tool"), "real"),
    "a directory with a slash": ((sys.executable, "real/serve.py"), "real/"),
    "the entry is a link to the script": ((sys.executable, "real/serve.py"), "links/serve"),
    "a script by a link": ((sys.executable, "links/serve"), "real/serve.py"),
    "a script by another link": ((sys.executable, "links/current/serve.py"), "above/serve"),
    "a pattern with a link in it": (tool("real/tool"), "links/*"),
    "a pattern with a link to a directory": (tool("real/deep/tool"), "links/*"),
    "a pattern of a name behind a link": (tool("real/deep/tool"), "links/*/tool"),
    "a pattern below a link": (tool("real/tool"), "above/curr*/tool"),
    "a pattern for a script behind a link": ((sys.executable, "real/serve.py"), "links/ser*e"),
    "a pattern, started by a link": (tool("links/tool"), "real/to*"),
    "a launcher, by a link": ((*tool("hard"), "run", "links/serve"), "real/serve.py"),
    "a launcher, by a name": ((*tool("hard"), "run", "serve.py"), "=serve.py"),
    "a module that runs a script": ((sys.executable, "-m", "cProfile", "real/serve.py"), "links/serve"),
}


@pytest.mark.slow
@pytest.mark.few(8)
@pytest.mark.parametrize(("command", "entry"), CASES.values(), ids=CASES)
def test_whatever_leads_there(folder: Path, command: tuple[str, ...], entry: str) -> None:
    """KILL-01: by links on either side, hard links, patterns and launchers; and no entry that leads elsewhere."""
    wanted = entry[1:] if entry.startswith("=") else f"{folder}/{entry}"
    other = [f"{folder}/links/other", f"{folder}/real/d*ep/other", f"{folder}/*/unlike", "/usr/bin/env", "unlike"]
    for words in (
        command,
        [f"{folder}/{each}" if each[0] != "/" and (folder / each).is_file() else each for each in command],
    ):
        with started(words, folder) as pid:
            assert withheld(pid, "another", wanted), Path(f"/proc/{pid}/cmdline").read_bytes()
            assert withheld(pid, *other) == []


def test_what_lies_beside_is_not_meant(folder: Path) -> None:
    """A copy of the program, in a directory that no link of the entry leads to, is another program."""
    shutil.copy(folder / "real" / "tool", folder / "copy")
    with started(tool(f"{folder}/copy"), folder) as pid:
        assert withheld(pid, f"{folder}/links/*", f"{folder}/links/tool", f"{folder}/real/*") == []


class Venv(NamedTuple):
    """A virtual environment as venv(1) makes it."""

    root: Path

    @property
    def python(self) -> str:
        return str(self.root / "bin" / "python")


def make_venv(root: Path) -> Venv:
    """Links to the interpreter, and pyvenv.cfg."""
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python3").symlink_to(INTERPRETER)
    (root / "bin" / "python").symlink_to("python3")
    home = Path(INTERPRETER).parent
    (root / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n", encoding="utf-8")
    return Venv(root)


RUN = ("-c", PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("entry", ["bin/python", "bin/python3", "bin/*", "*"])
def test_the_interpreter_of_an_environment(tmp_path: Path, entry: str) -> None:
    """KILL-01: it is the same file for all of them, and means those that were started in this one."""
    mine, other = make_venv(tmp_path / "mine"), make_venv(tmp_path / "other")
    (tmp_path / "link").symlink_to(mine.root)
    wanted = f"{mine.root}/{entry}"
    inside: dict[str, Callable[[], object]] = {
        "by its path": lambda: started((mine.python, *RUN), tmp_path),
        "by another name": lambda: started((f"{mine.python}3", *RUN), tmp_path),
        "by a relative path": lambda: started(("mine/bin/python", *RUN), tmp_path),
        "by a link above": lambda: started((f"{tmp_path}/link/bin/python", *RUN), tmp_path),
        "by its name": lambda: started(("python", *RUN), tmp_path, path=f"{mine.root}/bin"),
        "by a title": lambda: started(("a title", *RUN), tmp_path, program=mine.python),
        "by a title with a slash": lambda: started(("serve /x", *RUN), tmp_path, program=mine.python),
    }
    for way, start in inside.items():
        with start() as pid:  # type: ignore[attr-defined]
            assert withheld(pid, wanted), way
    for words in ((other.python, *RUN), ("other/bin/python3", *RUN), (INTERPRETER, *RUN)):
        with started(words, tmp_path) as pid:
            assert withheld(pid, wanted) == [], words


def test_a_python_home(tmp_path: Path) -> None:
    """PYTHONHOME names the environment as well."""
    mine = make_venv(tmp_path / "mine")
    code = (
        f"import os; os.environ['PYTHONHOME'] = {str(mine.root)!r}; os.execv('/bin/sh', ['/bin/sh', '-c', {WAITS!r}])"
    )
    with started((INTERPRETER, "-c", code), tmp_path) as pid:
        assert withheld(pid, mine.python)


def test_the_refusal_names_the_entry_and_where_it_leads(tmp_path: Path) -> None:
    """An entry that leads to an interpreter spares all that it runs: the refusal says which entry, and no option."""
    link = tmp_path / "python"
    link.symlink_to(INTERPRETER)
    with started((INTERPRETER, "-m", "cProfile", "-m", "timeit", "-n1", "-r1", PLAIN), tmp_path) as pid:
        assert withheld(pid, str(link)) == [
            f"{INTERPRETER} is on the never-list ({link}, which leads to {INTERPRETER})"
        ]


def test_a_path_in_code(tmp_path: Path) -> None:
    """KILL-01: what stands behind `-c` is code: a path or script in it may be what it runs; a bare word is not."""
    code = f"echo ready; read _; : {tmp_path}/serve.py; : worker"
    with started(("sh", "-c", code), Path("/")) as pid:
        assert withheld(pid, f"{tmp_path}/*")
        assert withheld(pid, "serve.py")
        assert withheld(pid, f"{tmp_path}/serve", "worker", "serve", "/srv/*", "code.py") == []


MENTIONED = (
    ("--app-dir", "{}", "x:y"), ("--pythonpath", "/usr,{}"), ("--pythonpath={},/usr",), ("--to", "/usr", "--of", "{}/"),
    ("-cp", "/usr/x.jar:{}/app.jar"), ("file:{}/app.py:x",), ("{}/app.py:x",), ("file://{}/app.py",), ("@{}/conf",),
    ("-m", "{}/model"), ("--model={}/m",), ("--load", "a={}/m"), ("-C{}",), ("--params", "path={}/conf.yaml,x=1"),
    ("({}/a)",),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.few(8)
@pytest.mark.parametrize("words", MENTIONED, ids=" ".join)
@pytest.mark.parametrize("launcher", ["tools/uvicorn", "tools/launch.py"])
def test_a_path_anywhere_in_an_argument(app: Path, launcher: str, words: tuple[str, ...]) -> None:
    """KILL-01: whatever launches it, and in whatever list or option the path stands; no other directory."""
    (app / "tools" / "launch.py").write_text(PLAIN, encoding="utf-8")
    for name, is_meant in (("prod", True), ("other", False), ("prod2", False)):
        command = (sys.executable, str(app / launcher), *(each.format(app / name) for each in words))
        with started(command, Path("/")) as pid:
            for entry in (f"{app}/prod/*", f"{app}/prod/", f"{app}/prod"):
                assert bool(withheld(pid, entry)) is is_meant, entry


def test_a_path_at_the_end_of_a_long_command_line(app: Path) -> None:
    """KILL-01: an argument beyond 16 KiB of a command line counts; with too many of them it is left alone."""
    jars = ":".join(f"/usr/lib/java/library-of-many-{number}.jar" for number in range(1000))
    for name, is_meant in (("prod", True), ("other", False)):
        with started((sys.executable, str(app / "other" / "app.py"), f"-cp={jars}:{app}/{name}/app.jar"), app) as pid:
            assert bool(withheld(pid, f"{app}/prod/*")) is is_meant
    words = ",".join(f"a{number}" for number in range(5000))
    with started((sys.executable, str(app / "other" / "app.py"), words), app) as pid:
        assert "more than 4096 words" in withheld(pid, f"{app}/prod/*")[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
@pytest.mark.parametrize(
    "words", ["{python} {mods}/app.py", "cd {mods}; {python} app.py", "cd {mods}; {python} -m app"]
)
def test_a_directory_that_the_process_has_mounted_elsewhere(app: Path, words: str) -> None:
    """KILL-01: in a mount namespace of its own, as a container's, a path is what it is there (`docker -v`)."""
    mods = app / "mods"
    mods.mkdir()
    for name, is_meant in (("prod", True), ("other", False)):
        run = words.format(python=f"exec {sys.executable}", mods=mods)
        with started(("unshare", "--mount", "sh", "-c", f"mount --bind {app / name} {mods}; {run}"), Path("/")) as pid:
            assert bool(withheld(pid, f"{app}/prod/*")) is is_meant
            if "-m" not in words:
                assert bool(withheld(pid, f"{app}/prod/app.py")) is is_meant


def test_links_are_looked_up_anew(folder: Path) -> None:
    """A link that leads elsewhere by the next judgment is judged by where it leads then."""
    link = folder / "links" / "tool"
    entries = NeverListEntries((str(link),))
    with started(tool(f"{folder}/real/deep/tool"), folder) as pid:
        assert not any("never-list" in each for each in refusals_of(pid, entries=entries))
        link.unlink()
        link.symlink_to("../real/deep/tool")
        assert any("never-list" in each for each in refusals_of(pid, entries=entries))


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (SearchLimits(links=2), "more than 2 links"),
        (SearchLimits(entries=3), "more than 3 files"),
    ],
)
def test_a_pattern_that_means_too_much(folder: Path, bounds: SearchLimits, words: str) -> None:
    """Where not every link that a pattern means can be looked up, nobody is acted on, and the refusal says which."""
    entries = NeverListEntries((f"{folder}/*",), bounds)
    with started(("sh", "-c", WAITS), Path("/")) as pid:
        found = [each for each in refusals_of(pid, entries=entries) if "never-list" in each]
    assert len(found) == 1
    assert words in found[0]
    assert f"{folder}/*" in found[0]


def test_a_link_to_everything_means_nothing(tmp_path: Path) -> None:
    """A link back to the root, as wine makes one, is not followed: a pattern ends, and does not mean every program."""
    (tmp_path / "z:").symlink_to("/")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(find_links(f"{tmp_path}/*")) == []
    with started(("sh", "-c", WAITS), Path("/")) as pid:
        assert withheld(pid, f"{tmp_path}/*") == []


def test_a_program_that_cannot_be_read(tmp_path: Path, folder: Path) -> None:
    """KILL-01: without CAP_SYS_PTRACE a name or a relative path may be what an entry means; a whole path tells."""
    mine = make_venv(tmp_path / "mine")
    with started(("python", *RUN), tmp_path, path=f"{mine.root}/bin") as pid:
        assert withheld(pid, mine.python, denied=True)
        assert withheld(pid, f"{mine.root}/*", denied=True)
        assert withheld(pid, f"{folder}/links/tool", denied=True) == []
    with started(("python", "real/serve.py"), folder, path=f"{mine.root}/bin") as pid:
        assert withheld(pid, f"{folder}/links/serve", denied=True)
        assert withheld(pid, f"{folder}/real/tool", denied=True) == []
    with started(("a title", *RUN), tmp_path, program=INTERPRETER) as pid:
        assert withheld(pid, f"{folder}/links/tool", denied=True)
    with started((INTERPRETER, *RUN), tmp_path) as pid:
        assert withheld(pid, mine.python, f"{folder}/links/tool", denied=True) == []


def test_every_spelling_of_a_path(folder: Path) -> None:
    """Each step is told once, the file itself last; what is not there leads to itself."""
    assert spellings(f"{folder}/above/twice") == (
        f"{folder}/above/twice", f"{folder}/links/twice", f"{folder}/links/tool", f"{folder}/real/tool",
    )  # fmt: skip
    assert spellings(f"{folder}/real/tool") == (f"{folder}/real/tool",)
    assert spellings("/none/at/all") == ("/none/at/all",)


def test_everybody_who_ends_with_it(folder: Path) -> None:
    """KILL-01: an entry means whoever ends with a process, a unit or a group as it means the process itself."""
    never = NeverListEntries((f"{folder}/links/*",))
    executor = NodeActionExecutor(RealProc(), reader(), apps=NoApps(), warn=no_warning, never=never)
    units = UnitProcesses(RealProc(), never=never)
    for program, meant in ((f"{folder}/real/tool", True), ("/bin/sh", False)):
        with tied.running(STOPS.format(program=program)) as one:
            (job,) = asyncio.run(executor.tied_to([as_target(one.pid)])).processes
            assert job.pid == one.others[0]
            assert (f"{folder}/links/*" in job.never_listed) is meant
            never.use([f"{folder}/none"])  # as a reload does
            assert asyncio.run(executor.tied_to([as_target(one.pid)])).processes[0].never_listed == ""
            never.use([f"{folder}/links/*"])
            against = units.tied_among("a.service", [one.pid], UnitPermission(shared=True))
            assert (f"{folder}/links/*" in against) is meant
    with started(tool(f"{folder}/real/tool"), folder) as pid, started(("sh", "-c", WAITS), folder) as other:
        assert f"{folder}/links/*" in units.never_among("a.service", [other, pid], UnitPermission())
        assert units.never_among("a.service", [other], UnitPermission()) == ""


def test_a_title_is_no_path(folder: Path) -> None:
    """What a program has written over its first argument, slashes in it, is no file of its working directory."""
    with started(("serve /x --port 1", "-c", WAITS), folder, program="/bin/sh") as pid:
        assert withheld(pid, f"{folder}/s*", f"{folder}/serve*") == []


def test_a_pattern_of_names_anywhere(folder: Path) -> None:
    """An entry that begins with `*` is compared with paths, wherever they lie, and searches no file system."""
    assert list(find_links("*/tool")) == []
    with started(tool(f"{folder}/links/twice"), folder) as pid:
        assert withheld(pid, "*/links/tool")
        assert withheld(pid, "*/other/tool") == []


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """`prod/app.py`, `prod/package/__main__.py`, `prod/__main__.py`, and a launcher elsewhere."""
    for name in ("prod/package", "other/package", "tools"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("prod", "other"):
        for file in ("app.py", "__main__.py", "package/__main__.py"):
            (tmp_path / name / file).write_text(PLAIN, encoding="utf-8")
    launcher = tmp_path / "tools" / "uvicorn"
    launcher.write_text(f"#!{sys.executable}\n{PLAIN}\n", encoding="utf-8")
    launcher.chmod(0o755)
    return tmp_path


APPS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "by its working directory": ("{}", ("tools/uvicorn", "app:main"), ""),
    "by an option": ("tools", ("tools/uvicorn", "--app-dir", "{}", "app:main"), ""),
    "by an option with its value": ("tools", ("tools/uvicorn", "--chdir={}", "app:main"), ""),
    "by an option that is glued to it": ("tools", ("tools/uvicorn", "-d{}", "app:main"), ""),
    "by a relative option": ("{}/package", ("tools/uvicorn", "--app-dir", "..", "app:main"), ""),
    "by PYTHONPATH": ("tools", (sys.executable, "-m", "app"), "{}"),
    "a package by PYTHONPATH": ("tools", (sys.executable, "-m", "package"), "/nowhere:{}"),
    "a module in its directory": ("{}", (sys.executable, "-m", "package"), ""),
    "a directory": ("tools", (sys.executable, "{}"), ""),
}


@pytest.mark.parametrize(("place", "command", "path"), APPS.values(), ids=APPS)
@pytest.mark.parametrize("exact", [False, True], ids=["pattern", "file"])
def test_an_application_that_lies_there(
    app: Path, monkeypatch: pytest.MonkeyPatch, place: str, command: tuple[str, ...], path: str, *, exact: bool
) -> None:
    """KILL-01: an entry means what is loaded from there by a module's name, in all ways of naming its directory."""
    prod, other = str(app / "prod"), str(app / "other")
    file = "__main__.py" if command[-1] == "{}" else "package/__main__.py" if command[-1] == "package" else "app.py"
    entry = f"{prod}/{file}" if exact else f"{prod}/*"
    for folder, is_meant in ((prod, True), (other, False)):
        monkeypatch.setenv("PYTHONPATH", path.format(folder))
        words = [str(app / each) if each.startswith("tools/") else each.format(folder) for each in command]
        with started(words, app / place.format(folder)) as pid:
            assert bool(withheld(pid, entry)) is is_meant


def test_a_module_in_a_directory_that_cannot_be_seen(app: Path) -> None:
    """KILL-01: where the working directory may not be read, a module may be the one that an entry means."""
    with started([str(app / "tools" / "uvicorn"), "app:main"], app / "prod") as pid:
        assert withheld(pid, f"{app}/prod/*", denied=True)
        assert withheld(pid, f"{app}/prod/app.py", denied=True)
        assert not withheld(pid, f"{app}/prod/serve.py", denied=True)


def test_the_way_out_names_the_right_that_is_missing(app: Path) -> None:
    """Without CAP_SYS_PTRACE a relative path may lie in there: the right is said, and never that nothing lifts it."""
    script = [sys.executable, "serve.py"]
    (app / "prod" / "serve.py").write_text(PLAIN, encoding="utf-8")
    for words, denied in ((script, True), ([sys.executable, f"{app}/prod/serve.py"], False)):
        with started(words, app / "prod") as pid:
            reasons = withheld(pid, f"{app}/prod/*", denied=denied)
            advice = " ".join(advice_on(reasons, target(pid), "FILE"))
            assert ("CAP_SYS_PTRACE" in advice) is denied
            assert ("Nothing lifts this" in advice) is not denied
