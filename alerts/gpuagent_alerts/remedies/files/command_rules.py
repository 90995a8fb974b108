"""Commands whose text decides what runs: refused, as no parser here would see what an interpreter makes of it.

What is accepted is narrow on purpose: an interpreter runs a file by its absolute path, and a launcher runs a program.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpuagent_alerts.remedies.files.path_walk import show_path

SHELLS = re.compile(r"(?:ba|da|a|z|k|mk|fi|c|tc|lk|ya)?sh[0-9.]*")
LANGUAGES = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|lua|luajit|php|tclsh|expect|[gmn]?awk|Rscript|java|make|gmake|guile)"
    r"[0-9.]*"
)
LAUNCHERS = re.compile(
    r"busybox|cgexec|chrt|doas|env|find|flock|ionice|nice|nohup|numactl|pkexec|prlimit|setarch|setpriv|setsid|stdbuf"
    r"|sudo|taskset|time|timeout|unbuffer"
)
"""Programs that run what their arguments name; a name without `/` is looked for in PATH."""
_TAKES_NAMES = re.compile(
    r"docker|podman|nerdctl|crictl|ctr|kubectl|scancel|scontrol|squeue|sacctmgr|systemctl|echo|printf|logger|kill|curl"
    r"|wget"
)
"""Programs whose arguments are names of things and of no program to run here: a container may be called `node`."""
_REFUSED = re.compile(
    r"chroot|ld-linux.*|ld-musl.*|ld\.so.*|ld-[0-9.]+\.so|nsenter|parallel|run-parts|runuser|script|su|systemd-run"
    r"|unshare|watch|xargs"
)
"""Programs that run what a directory, their standard input or a text of theirs says."""
_FLAGS = {
    SHELLS: re.compile(r"-[abefhmnpuvxBCEHP]+"),
    re.compile(r"(?:python|pypy)[0-9.]*"): re.compile(r"-[bBdEIOPqsSuvx]+"),
    re.compile(r"perl[0-9.]*"): re.compile(r"-[tTwWX]+"),
    re.compile(r"[gmn]?awk"): re.compile(r"-f"),
}
"""Options before the script that take no value and choose no code."""
_VARIABLES = re.compile(
    r"(?:LD_|PYTHON|PERL|RUBY|NODE_|LUA|BASH|GUILE|TCL|GIT_|JAVA|JDK_|PHP|R_|AWK|GCONV|GLIBC|MAKE|XDG_)\w*|ENV|PATH|HOME|IFS"
    r"|SHELLOPTS|CDPATH|CLASSPATH|_JAVA_OPTIONS|ZDOTDIR|EDITOR|VISUAL|PAGER"
)
"""Variables that make a program load or run something else; functions of bash are BASH_FUNC_x%%."""
_INTO_A_FILE = "write it into a file of root's and name that file"


def takes_names(names: Sequence[str]) -> bool:
    """Return whether a program's arguments are names of things: of its names, as written and with links followed."""
    return any(_TAKES_NAMES.fullmatch(name) for name in names)


def may_launch(names: Sequence[str], argument: str) -> bool:
    """Return whether a program may run what this argument names: a launcher any program, any other one an interpreter.

    No list of launchers is whole, so every program that is not known to take names is taken for one.
    """
    if any(LAUNCHERS.fullmatch(name) for name in names):
        return True
    if takes_names(names) or any(map(interprets, names)):
        return False
    launched = argument.rpartition("/")[2]
    return interprets(launched) or bool(LAUNCHERS.fullmatch(launched) or _REFUSED.fullmatch(launched))


def imports(name: str) -> bool:
    """Return whether a program of this name may load modules from where its script lies; a shell has no such place."""
    return bool(LANGUAGES.fullmatch(name))


def interprets(name: str) -> bool:
    """Return whether a program of this name runs the text of a file that it is given."""
    return bool(SHELLS.fullmatch(name) or LANGUAGES.fullmatch(name))


def refused_texts(names: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    """Yield why a command of these words is refused; `names` are those of its program, as written first."""
    for name in names:
        if _REFUSED.fullmatch(name):
            yield f"{show_path(name)} runs what cannot be examined: {_INTO_A_FILE}"
    if any(map(interprets, names)):
        yield from _without_script(names, arguments)
    if "env" in names:
        yield from _of_env(arguments)
    if "find" in names:
        actions = [each for each in arguments if re.fullmatch(r"-(?:exec|ok)(?:dir)?|-files0-from", each)]
        yield from (f"find {each} runs what cannot be examined: {_INTO_A_FILE}" for each in actions)
    if "flock" in names and any(re.match(r"-\w*c|--command", each) for each in arguments):
        yield f"flock with a command string cannot be examined: {_INTO_A_FILE}"


def script_of(arguments: Sequence[str]) -> str:
    """Return the path of the script that an interpreter runs, "" if its first word that is no option is no path."""
    script = next((each for each in arguments if not each.startswith("-")), "")
    return script if script.startswith("/") else ""


def _without_script(names: Sequence[str], arguments: Sequence[str]) -> Iterator[str]:
    name = next(each for each in names if interprets(each))
    flags = [allowed for program, allowed in _FLAGS.items() if any(program.fullmatch(each) for each in names)]
    for argument in arguments:
        if argument.startswith("/"):
            return
        if argument[:1] not in {"-", "+"} or argument in {"-", "--"}:
            break
        if argument.startswith("-f/") and any(re.fullmatch("[gmn]?awk", each) for each in names):
            return
        if not any(allowed.fullmatch(argument) for allowed in flags):
            yield f"{show_path(name)} {show_path(argument)} runs or loads a text or a module: {_INTO_A_FILE}"
            return
    yield f"{show_path(name)} is given no script by its absolute path: {_INTO_A_FILE}"


def _of_env(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        name, is_assignment, _ = argument.partition("=")
        if argument.startswith("-"):
            if argument not in {"-i", "--ignore-environment", "-"}:
                yield f"env {show_path(argument)} cannot be examined: {_INTO_A_FILE}"
                return
        elif not is_assignment:
            return
        elif _VARIABLES.fullmatch(name) or not re.fullmatch(r"\w+", name):
            yield f"env {show_path(name)}=... changes what is loaded or run: {_INTO_A_FILE}"
