"""Containers by id and by name, in allow lists and in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuagent_alerts.remedies.safeguards.policy import AllowList, Policy
from gpuagent_alerts.remedies.target import names_container
from gpuagent_alerts.store.database import Store
from tests.alerts.remedies.world import KILL, RULES, World, plan, run_ladder, target

ID = "3f4e1c9a7b20" + "0" * 52


@pytest.mark.parametrize(
    ("wanted", "container_id", "name", "meant"),
    [
        (ID, ID, "", True),
        (ID[:12], ID, "", True),
        (ID[:11], ID, "", False),
        ("whisper", ID, "whisper", True),
        ("ml-team/whisper-0/server", ID, "ml-team/whisper-0/server", True),
        ("server", ID, "ml-team/whisper-0/server", False),  # another tenant's may be called so too
        (ID[:12], "f" * 64, ID[:12], False),  # a container that is called like another one's id
        ("whisper", "", "whisper", False),
        ("lxc/web-1", "lxc/web-1", "", True),  # containers that have a name for an id
        ("web-1", "lxc/web-1", "", False),  # a name that docker gave, or anybody else
        ("systemd-nspawn/web-1", "lxc/web-1", "", False),
        (ID, f"lxc/{ID}", "", False),
        (ID[:12], f"systemd-nspawn/{ID}", "", False),
        (ID, f"unproven/{ID}", "", False),
        ("", ID, "", False),
    ],
)
def test_which_container_is_meant(wanted: str, container_id: str, name: str, meant: bool) -> None:
    """An id, its first twelve digits or the name; what looks like an id is never taken for a name."""
    assert names_container(wanted, container_id, name) is meant


@pytest.mark.parametrize(("name", "said"), [("whisper", "whisper (3f4e1c9a7b20)"), ("", "3f4e1c9a7b20")])
def test_a_refusal_names_it(store: Store, name: str, said: str) -> None:
    """Whoever reads why knows which container it is; with its name on the list it is acted on."""
    inside = target(container_id=ID, container_name=name)
    outcome = run_ladder(World(inside), plan(KILL, of=inside), store)
    assert f"it runs in container {said}" in outcome.detail
    rules = replace(RULES, policy=Policy(AllowList(containers=(name or ID[:12],))))
    assert run_ladder(World(inside), plan(KILL, of=inside), store, rules).acted
