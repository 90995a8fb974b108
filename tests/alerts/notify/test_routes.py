"""Who is told of what."""

from __future__ import annotations

import pytest

from gpuagent_alerts.notify.routes import Destination, Recipient, Routes
from tests.alerts.notify.parts import Route, route

OPS, HOOK, AM = (
    Recipient("ops"),
    Recipient("hook"),
    Recipient("am", one_by_one=True, everything=True, repeat_seconds=60.0),
)
CRITICAL, WARNING = {"alertname": "A", "severity": "critical"}, {"alertname": "B", "severity": "warning"}
WATCHDOG = {"alertname": "Watchdog", "severity": "none"}


def names(routes: list[Route], labels: dict[str, str], *recipients: Recipient) -> list[str]:
    """Who is told of these labels."""
    return [found.recipient.name for found in Routes(routes, recipients or (OPS, HOOK)).of(labels)]


def test_without_routes_everybody_is_told() -> None:
    """One receiver and nothing else configured: everything is told."""
    assert names([], CRITICAL) == ["ops", "hook"]


def test_what_no_route_takes_goes_to_who_is_in_no_route() -> None:
    """The default, as Alertmanager's root route: what the pager does not take goes to the others, not to nobody."""
    routes = [route("ops", match=['severity="critical"'])]

    assert names(routes, CRITICAL) == ["ops"]
    assert names(routes, WARNING) == ["hook"]


def test_where_routes_name_all_they_say_it_all() -> None:
    """An alert that no route takes is told to nobody, if every receiver is in a route."""
    assert names([route("ops", "hook", match=['severity="critical"'])], WARNING) == []


def test_every_route_that_matches_counts_and_a_receiver_once() -> None:
    """In order; of two routes to one receiver the first decides how."""
    routes = [
        route("ops", match=['severity="critical"'], group_by=["gpu"], repeat=60.0),
        route("hook", "ops", match=['alertname=~".*"'], repeat=120.0),
    ]
    found = Routes(routes, [OPS, HOOK]).of(CRITICAL)

    assert found == [Destination(OPS, ("gpu",), 60.0, 0.0), Destination(HOOK, (), 120.0, 0.0)]


def test_a_watchdog_is_not_for_people() -> None:
    """severity="none" goes to an Alertmanager, and to others only by a route that asks for something."""
    assert names([], WATCHDOG, OPS, AM) == ["am"]
    assert names([route("ops")], WATCHDOG, OPS) == []
    assert names([route("ops", match=['alertname="Watchdog"'])], WATCHDOG, OPS) == ["ops"]


def test_a_receiver_that_takes_no_alerts_is_passed_over() -> None:
    """A heartbeat in a route is no fault, and is told nothing."""
    assert names([route("heartbeat", "ops")], CRITICAL, OPS) == ["ops"]


def test_an_alertmanager_groups_and_repeats_by_itself() -> None:
    """Its own interval and one alert a message, whatever the route says."""
    (found,) = Routes([route("am", group_by=["gpu"], repeat=14400.0)], [AM]).of(CRITICAL)

    assert (found.group_by, found.repeat_seconds) == ((), 60.0)


def test_every_bad_pattern_is_named() -> None:
    """All faults at once, with the place of each."""
    with pytest.raises(ValueError, match=r"routes\[0\]\.match: .*; routes\[2\]\.match: "):
        Routes([route("ops", match=['a=~"("']), route("ops"), route("ops", match=['b=~"("'])], [OPS])
