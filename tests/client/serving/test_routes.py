"""What each route needs: bounded, and under the template that the framework knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpuagent_client.serving.meter import (
    KEPT_REQUESTS,
    MAX_ROUTES,
    OTHERS,
    Change,
    Routes,
    Spread,
    asgi_route,
    template,
)


def needed(size: int, *, exact: bool = True) -> Change:
    """A request that added so much for its time."""
    return Change(0, size, size, exact)


def test_spread_of_a_route() -> None:
    """Each figure is one that was seen."""
    routes = Routes()
    for size in range(1, 101):
        routes.add("GET /", needed(size, exact=size % 4 == 0), 0.5)
    summary = routes.summaries()["GET /"]

    assert summary.added == Spread(51, 96, 100)
    assert (summary.requests, summary.exact_share, summary.seconds) == (100, 0.25, 0.5)


def test_only_the_last_requests_count() -> None:
    """What a route needed before the new model does not matter for ever."""
    routes = Routes()
    routes.add("GET /", needed(10**9), 0.1)
    for _ in range(KEPT_REQUESTS):
        routes.add("GET /", needed(7), 0.1)

    assert routes.summaries()["GET /"].added == Spread(7, 7, 7)
    assert routes.summaries()["GET /"].requests == KEPT_REQUESTS + 1


def test_routes_are_bounded() -> None:
    """A scan for admin pages does not fill the memory."""
    routes = Routes()
    for number in range(10 * MAX_ROUTES):
        routes.add(f"GET /{number}", None, 0.1)
    summaries = routes.summaries()

    assert len(summaries) == MAX_ROUTES + 1
    assert summaries[OTHERS].requests == 9 * MAX_ROUTES
    assert summaries[OTHERS].added is None


def test_the_hungriest_comes_first() -> None:
    """As one reads it."""
    routes = Routes()
    routes.add("small", needed(1), 0.1)
    routes.add("none", None, 0.1)
    routes.add("large", needed(2), 0.1)

    assert list(routes.summaries()) == ["large", "small", "none"]


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        ({"path": "/items/7", "route": SimpleNamespace(path="/items/{item_id}")}, "GET /items/{item_id}"),
        ({"path": "/users/ann/notes", "path_params": {"user": "ann"}}, "GET /users/{user}/notes"),
        ({"path": "/items/7/parts/0f8fad5b-d9cb-469f-a165-70867728950e"}, "GET /items/{}/parts/{}"),
        ({"path": "/v1/completions"}, "GET /v1/completions"),
        ({}, "GET "),
    ],
    ids=["the framework tells", "it tells the parameters", "it tells nothing", "a version is no id", "a broken scope"],
)
def test_the_name_of_a_route(scope: dict[str, Any], name: str) -> None:
    """Without what varies from request to request."""
    assert asgi_route({"method": "GET", **scope}) == name


def test_a_template_keeps_words() -> None:
    """Only numbers and what looks like an id go."""
    assert template("/models/llama/versions/12/0a1b2c3d4e5f") == "/models/llama/versions/{}/{}"
