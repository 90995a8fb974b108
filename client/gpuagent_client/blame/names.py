"""What things are called in a report: names from the code, never data of the app.

Keys of dicts and members of sets are user data (user ids, prompts): only their type is told, unless the owner asks for
more. Nothing here calls code of the app: no repr(), no ==, no attribute of an instance that a class could answer.
"""

from __future__ import annotations

import os
import sys
import types

MAX_TEXT = 100
PLAIN = (str, int, float, bool, bytes)


def short(text: str) -> str:
    """Cut to a length that a report can bear."""
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


def type_name(item: object) -> str:
    """list, app.Slot, torch.nn.modules.linear.Linear."""
    kind = type(item)
    return class_name(kind)


def class_name(kind: type) -> str:
    """The class as its module calls it."""
    module = type.__dict__["__module__"].__get__(kind)
    name = type.__dict__["__qualname__"].__get__(kind)
    return short(name if module == "builtins" or not isinstance(module, str) else f"{module}.{name}")


def function_name(function: types.FunctionType) -> str:
    """module.qualified.name."""
    return short(f"{function.__module__}.{function.__qualname__}")


def code_name(code: types.CodeType) -> str:
    """The name of a function, as the code knows it."""
    return short(getattr(code, "co_qualname", code.co_name))  # co_qualname: Python 3.11


def key_text(key: object, *, show_keys: bool) -> str:
    """A key of a dict: its type, or where asked for, itself if it is a plain value."""
    if show_keys and type(key) in PLAIN:
        return short(repr(key))
    return f"<{type(key).__name__}>"


def relative(filename: str) -> str:
    """A file as its owner knows it: below the working directory or below an entry of sys.path."""
    best = filename
    for folder in (os.getcwd(), *sys.path):  # noqa: PTH109 - strings in, strings out
        if folder and folder != "/" and filename.startswith(folder.rstrip("/") + "/"):
            inside = filename[len(folder.rstrip("/")) + 1 :]
            if len(inside) < len(best):
                best = inside
    return best


def where(code: types.CodeType, line: int | None = None) -> str:
    """file:line of a function."""
    return f"{relative(code.co_filename)}:{line or code.co_firstlineno}"
