"""JSON in and out of the API's routes, and what was wrong with a request as its answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

Document = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
Refusal = tuple[int, Document]
"""Status of HTTP, and the document."""


def json_answer(content: Document, status: int = 200, *, allow_nan: bool = True) -> Response:
    """In ASCII: a name may hold half of a surrogate pair, of which there is no UTF-8."""
    return Response(json.dumps(content, allow_nan=allow_nan), status, media_type="application/json")


async def json_body(request: Request, *, may_be_empty: bool = True) -> Document:
    """The JSON object of a request; {} for no body, where that will do. Raises ValueError for anything else."""
    received = await request.body()
    if not received and may_be_empty:
        return {}
    try:
        body = json.loads(received)
    except (ValueError, RecursionError):
        raise ValueError("the body is not JSON") from None
    if not isinstance(body, dict):
        raise ValueError("the body is not a JSON object")
    return body


def not_found(error: KeyError) -> Refusal:
    """There is no such thing."""
    return 404, {"error": "Not Found", "message": str(error.args[0])}


def answered(handler: Handler, refusals: Mapping[type[Exception], Callable[[Any], Refusal]]) -> Handler:
    """A handler whose ValueError is a 400, and each of `refusals` what its function makes of it."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except ValueError as error:
            return json_answer({"error": "Bad Request", "message": str(error)}, 400)
        except tuple(refusals) as error:
            status, document = next(of(error) for kind, of in refusals.items() if isinstance(error, kind))
            return json_answer(document, status)

    return answer
