"""JSON in and out of the API's routes, pids in their paths, and what was wrong with a request as its answer.

Starlette's own `int` takes any number of them, and int() raises from 4,301 on (CPython gh-95778).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response


class _Pid(Convertor[int]):
    regex = "[0-9]{1,10}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("pid", _Pid())

PID: Final = "{pid:pid}"
"""One part of a path."""


Document = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
Refusal = tuple[int, Document]
"""Status of HTTP, and the document."""


def json_answer(content: Document, status: int = 200, *, allow_nan: bool = True) -> Response:
    """In ASCII: a name may hold half of a surrogate pair, of which there is no UTF-8."""
    return Response(json.dumps(content, allow_nan=allow_nan), status, media_type="application/json")


async def json_body(request: Request, *, may_be_empty: bool = True, allowed: Collection[str] | None = None) -> Document:
    """Return the JSON object of a request; {} for no body, where that will do.

    `allowed` are the keys that it may have; None leaves that to the caller. Raises ValueError for anything else: for a
    key that is there twice in any object, and for NaN and Infinity, which are no JSON.
    """
    received = await request.body()
    if not received and may_be_empty:
        return {}
    try:
        body = json.loads(received, object_pairs_hook=_without_doubles, parse_constant=_no_number)
    except _NotTaken:
        raise
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    if allowed is not None and (unknown := sorted(set(body) - set(allowed))):
        shown = ", ".join(repr(name[:50]) for name in unknown[:5])
        raise ValueError(f"unknown: {shown}; allowed: {', '.join(sorted(allowed)) or 'nothing'}")
    return body


class _NotTaken(ValueError):
    """The body is JSON that others read in another way, and why."""


def _without_doubles(pairs: list[tuple[str, Any]]) -> Document:
    """Return an object. Of a key that is there twice Python would take the last, and others the first."""
    found: Document = {}
    for name, value in pairs:
        if name in found:
            raise _NotTaken(f"{name[:50]!r} is there twice in an object of the body")
        found[name] = value
    return found


def _no_number(text: str) -> float:
    raise _NotTaken(f"{text} is no number of JSON's")


def not_found(error: KeyError) -> Refusal:
    """There is no such thing."""
    return 404, {"error": "Not Found", "message": str(error.args[0])}


def answered(handler: Handler, refusals: Mapping[type[Exception], Callable[[Any], Refusal]]) -> Handler:
    """Return a handler whose ValueError is a 400, and each of `refusals` what its function makes of it."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ValueError as error:
            return json_answer({"error": "Bad Request", "message": str(error)}, 400)
        except tuple(refusals) as error:
            status, document = next(of(error) for kind, of in refusals.items() if isinstance(error, kind))
            return json_answer(document, status)

    return answer
