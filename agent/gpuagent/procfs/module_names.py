"""Which names and files an argument may mean that names a module: `prodmod.wsgi:app`, or what stands behind `-m`."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MODULE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(:.*)?", re.DOTALL)
SCRIPT_SUFFIXES = frozenset({
    "awk", "bash", "cjs", "clj", "cts", "exp", "ipynb", "jar", "jl", "js", "jsx", "ksh", "lua", "mjs", "mts", "php",
    "pl", "pm", "py", "pyc", "pyw", "pyz", "r", "rb", "scm", "sh", "tcl", "ts", "tsx", "zsh",
})  # fmt: skip
"""How files end, in lower case, that interpreters and their launchers run."""


def is_script(argument: str) -> bool:
    """Return whether an argument ends as a file does that an interpreter runs, or names a module and what is in it."""
    stem, dot, suffix = argument.rpartition("/")[2].rpartition(".")
    if stem and dot and suffix.lower() in SCRIPT_SUFFIXES:
        return True
    found = _MODULE.fullmatch(argument)
    return found is not None and found[2] is not None


def module_names(argument: str, *, may_be_plain: bool = False) -> Iterator[str]:
    """Yield the module, the packages that it is in, and its file below where modules are looked for.

    Nothing of the name of a file, and of a plain word only where that `may_be_plain`.
    """
    found = _MODULE.fullmatch(argument)
    if found is None or (found[2] is None and is_script(argument)):
        return
    if found[2] is None and "." not in argument and not may_be_plain:
        return
    parts = found[1].split(".")
    for number in range(len(parts), 0, -1):
        yield ".".join(parts[:number])
    path = "/".join(parts)
    yield f"{path}.py"
    yield f"{path}/__init__.py"
    yield f"{path}/__main__.py"
