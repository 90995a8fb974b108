"""Pids in paths, as `{pid:pid}`: digits without end are no pid but a path that does not exist.

Starlette's own `int` takes any number of them, and int() raises from 4,301 on (CPython gh-95778).
"""

from __future__ import annotations

from typing import Final

from starlette.convertors import Convertor, register_url_convertor


class _Pid(Convertor[int]):
    regex = "[0-9]{1,10}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("pid", _Pid())

PID: Final = "{pid:pid}"
"""One part of a path."""
