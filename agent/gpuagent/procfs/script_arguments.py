"""Which arguments of a command line may name what it runs: a script, a module, or a program that it launches.

A process writes its own command line, so what is found here may keep it from being acted on and permits nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gpuagent.procfs.module_names import is_script

INTERPRETER = re.compile(
    r"(?:python|pypy|perl|ruby|node|nodejs|deno|bun|lua|luajit|php|tclsh|expect|[gmn]?awk|R|Rscript|julia|java|guile"
    r"|(?:ba|da|a|z|k|mk|fi|c|tc|ya)?sh)[0-9.]*t?"
)
_LAUNCHES_BY_WORDS = re.compile(r"deno|bun|java")
"""Interpreters that take a command first (`deno run x.ts`), or a class in the place of a file."""
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
_PYTHON_OPTION = re.compile(r"-[^-WXQmc]*([WXQmc])(.*)", re.DOTALL)
"""Options of Python that have a value, in the same argument or in the next one. Of other interpreters any may."""
_PYTHON_LONG_OPTION = "--check-hash-based-pycs"
_VALUE = re.compile(r"(?:--[^=]+=|-[A-Za-z])([^=]*[./][^=]*|(?<=--file=).+)", re.DOTALL)
"""An option with its value in the same argument, where that may be a file: `-fprod.awk`, `--file=train.R`."""
_CODE_OPTIONS = tuple(
    (re.compile(program), re.compile(option))
    for program, option in (
        (r"(?:ba|da|a|z|k|mk|fi|c|tc|ya)?sh[0-9.]*", r"-[a-zA-Z]*c[a-zA-Z]*"),
        (r"perl[0-9.]*", r"-[acflnpsStTuUvwWX0-9]*[eE]"),
        (r"ruby[0-9.]*", r"-[acdhlnpsSvwy]*e"),
        (r"(?:node|nodejs)[0-9.]*", r"-p?e|-p|--eval|--print"),
        (r"php[0-9.]*", r"-[rBRE]|--run"),
        (r"(?:lua|luajit|R|Rscript|julia)[0-9.]*", r"-[eE]|--eval|--print"),
        (r"(?:guile|expect)[0-9.]*", r"-c"),
    )
)
"""Options whose value is code: no path, whatever is in it."""
_LONGEST_WORD = 4096
"""PATH_MAX (linux/limits.h): no path is longer."""
_PYTHON_SUFFIXES = (".py", ".pyc", ".pyz")


def is_interpreter(program: str) -> bool:
    """Return whether a program, by its name or path, is an interpreter that is known here."""
    return INTERPRETER.fullmatch(_name(program)) is not None


def scripts(arguments: Sequence[str]) -> Iterator[str]:
    """Yield what an interpreter may run by its arguments: the first that is no option, or the module after `-m`.

    Where an option may have the argument behind it as its value, both that and the next one may be the script. Code in
    the place of a script (`-c`, `-e`) is none.
    """
    for _, argument in _scripts(arguments):
        yield argument


def launched(arguments: Sequence[str], *, interprets: bool) -> Iterator[str]:
    """Yield every further argument that may name a path, a module or a program that the process runs.

    `interprets` says that the program is an interpreter. Of one whose arguments are known, these are the arguments of a
    module (`python3 -m debugpy serve.py`) and of a script without a suffix, as installed commands are (`ipython x.py`):
    such a script may be a launcher. Of one with a suffix (`node bin.js serve.ts`) those count that look like a script.
    Of any other program every argument counts.
    """
    first, plain = 1, False
    if interprets and not any(_LAUNCHES_BY_WORDS.fullmatch(_name(each)) for each in arguments[:1]):
        found = list(_scripts(arguments))
        last = next(reversed(found), None)
        if last is None:
            return
        first, plain = last[0] + 1, _is_plain_script(last[1], is_python=_is_python(arguments))
    for argument in arguments[first:]:
        word = argument
        if argument.startswith("-"):
            word = argument.partition("=")[2] or argument[2:]  # `-d/opt/prod`
            word = word if "=" in argument or word.startswith("/") else ""
        if 0 < len(word) <= _LONGEST_WORD and not word.startswith("-") and (not plain or is_script(word)):
            yield word


def _is_plain_script(script: str, *, is_python: bool) -> bool:
    """Return whether a script is a file with a suffix: a module, or an installed command, may run another one."""
    return script.endswith(_PYTHON_SUFFIXES) if is_python else "." in _name(script)


def _scripts(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield as `scripts`, each with its place among the arguments."""
    if _is_python(arguments):
        yield from _python_script(arguments)
        return
    code_option = _code_option(arguments)
    waiting = iter(enumerate(arguments[1:], 1))
    may_be_value = False
    for number, argument in waiting:
        if argument == "--":
            yield from _next(waiting)
            return
        if code_option is not None and code_option.fullmatch(argument):
            return
        if argument.startswith("-"):
            if value := _VALUE.fullmatch(argument):
                yield number, value[1]
            may_be_value = "=" not in argument
        else:
            yield number, argument
            if not may_be_value:
                return
            may_be_value = False


def _python_script(arguments: Sequence[str]) -> Iterator[tuple[int, str]]:
    waiting = iter(enumerate(arguments[1:], 1))
    may_be_value = False
    for number, argument in waiting:
        if argument == "--":
            yield from _next(waiting)
            return
        if not argument.startswith("-"):
            yield number, argument
            if not may_be_value:
                return
            may_be_value = False
            continue
        option = _PYTHON_OPTION.fullmatch(argument)
        if option and option[1] == "m":
            yield from [(number, option[2])] if option[2] else _next(waiting)
        if option and option[1] in "mc":
            return
        may_be_value = argument == _PYTHON_LONG_OPTION or (option is not None and not option[2])


def _next(waiting: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    found = next(waiting, None)
    if found is not None:
        yield found


def _is_python(arguments: Sequence[str]) -> bool:
    return any(_PYTHON.fullmatch(_name(each)) for each in arguments[:1])


def _code_option(arguments: Sequence[str]) -> re.Pattern[str] | None:
    name = _name(arguments[0]) if arguments else ""
    return next((option for program, option in _CODE_OPTIONS if program.fullmatch(name)), None)


def _name(path: str) -> str:
    """Return the last part of a path; a login shell has a dash in front."""
    return path.rpartition("/")[2].removeprefix("-")
