"""Which shape a unit, and what systemd starts, stops and restarts with it, must have for a restart."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpuagent_alerts.remedies.execution.unit_queries import UnitStates
from gpuagent_alerts.remedies.execution.unit_restarts import Restart, judge_restart
from gpuagent_alerts.remedies.facts.process_scan import UnseenProcesses
from gpuagent_alerts.remedies.observation import UnitPermission
from gpuagent_alerts.remedies.safeguards.never_list import NEVER_UNITS, SHARED_UNITS
from tests.fakes.units import Systemd

NOW = 1_000_000.0
STRICT = UnitPermission(never=NEVER_UNITS, known_shared=SHARED_UNITS)
SHARED = UnitPermission(shared=True, never=NEVER_UNITS, known_shared=SHARED_UNITS)
DOWN, FAILED, ABSENT = (
    {"ActiveState": "inactive"},
    {"ActiveState": "failed"},
    {"LoadState": "not-found"} | {"ActiveState": "inactive"},
)
CONFLICTS = DOWN | {"Conflicts": "b.service"}
UP: dict[str, str] = {}
Units = dict[str, dict[str, str]]


def judge(own: Mapping[str, str | None], others: Units, permission: UnitPermission = STRICT) -> Restart:
    """Judge the restart of a.service among these units."""
    return judge_restart(UnitStates(Systemd(a_service=own, **others).show), "a.service", permission, NOW, {})


STARTED = {
    "a path": ({"Wants": "x.path"}, {"x_path": DOWN}, "x.path, which is inactive, and would be started: only a"),
    "a timer": (
        {"Wants": "x.timer"}, {"x_timer": DOWN}, "; start x.timer first, or run systemctl yourself",
    ),
    "a timer that is being stopped": ({"Wants": "x.timer"}, {"x_timer": {"Job": "17"}}, "x.timer"),
    "a socket": ({"Requires": "x.socket"}, {"x_socket": FAILED}, "x.socket"),
    "a mount": ({"Requires": "srv-data.mount"}, {"srv-data_mount": DOWN}, "srv-data.mount"),
    "an automount": ({"Wants": "srv.automount"}, {"srv_automount": DOWN}, "srv.automount"),
    "a swap": ({"Wants": "dev-sdb.swap"}, {"dev-sdb_swap": DOWN}, "dev-sdb.swap"),
    "a device": ({"Wants": "dev-x.device"}, {"dev-x_device": DOWN}, "dev-x.device"),
    "OnSuccess of what it wants": (
        {"Wants": "x.service"},
        {"x_service": DOWN | {"OnSuccess": "y.service"}, "y_service": CONFLICTS, "b_service": UP},
        "it has OnSuccess=y.service; act by hand if that is meant",
    ),
    "OnSuccess of what it wants, of one that is up": (
        {"Wants": "x.service"},
        {"x_service": DOWN | {"OnSuccess": "y.service"}, "y_service": UP},
        "it has OnSuccess=y.service",
    ),
    "Upholds of what it wants": (
        {"Wants": "x.service"},
        {"x_service": DOWN | {"Upholds": "y.service"}, "y_service": CONFLICTS, "b_service": UP},
        "it has Upholds=y.service",
    ),
    "a conflict": ({"Wants": "x.service"}, {"x_service": CONFLICTS, "b_service": UP}, "Conflicts=b.service"),
    "a conflict from the other side": (
        {"BindsTo": "y.service", "Upholds": "x.service"},
        {
            "y_service": UP,
            "x_service": DOWN | {"ConflictedBy": "b.service"},
            "b_service": {"ActiveState": "activating"},
        },
        "ConflictedBy=b.service",
    ),
    "a conflict with the unit itself": (
        {"OnFailure": "fallback.service"},
        {"fallback_service": DOWN | {"Conflicts": "a.service"}},
        "Conflicts=a.service",
    ),
    "a conflict one further": (
        {"Requires": "x.target"},
        {"x_target": DOWN | {"Wants": "y.service"}, "y_service": CONFLICTS, "b_service": UP},
        "y.service, which is inactive, and would be started: only a .target, .slice may be",
    ),
    "a service that pulls another": (
        {"Wants": "x.service"}, {"x_service": DOWN | {"Requires": "y.service"}, "y_service": DOWN}, "y.service",
    ),
    "a service that pulls its socket": (
        {"Wants": "x.service"}, {"x_service": DOWN | {"Requires": "x.socket"}, "x_socket": DOWN}, "x.socket",
    ),
    **{
        f"{key} of what it wants": (
            {"Wants": "x.service"}, {"x_service": DOWN | {key: value}}, f"it has {key}={value}, for the whole machine",
        )
        for key, value in (
            ("SuccessAction", "exit"), ("FailureAction", "exit-force"), ("StartLimitAction", "reboot"),
            ("JobTimeoutAction", "poweroff"),
        )
    },
    "an action of a target": ({"Wants": "x.target"}, {"x_target": DOWN | {"JobTimeoutAction": "reboot"}}, "reboot"),
    "an isolating end": (
        {"Wants": "x.service"},
        {"x_service": DOWN | {"OnFailure": "rescue.target", "OnFailureJobMode": "isolate"}, "rescue_target": UP},
        "OnFailureJobMode=isolate",
    ),
    "a part of systemd": ({"OnSuccess": "systemd-suspend.service"}, {"systemd-suspend_service": DOWN}, "systemd"),
    "a stop that is passed on": (
        {"Wants": "x.service"}, {"x_service": DOWN | {"PropagatesStopTo": "b.service"}, "b_service": UP}, "b.service",
    ),
    "one that is bound to it": (
        {"Wants": "x.service"}, {"x_service": DOWN | {"BoundBy": "b.service"}, "b_service": UP}, "BoundBy=b.service",
    ),
    "a unit on its way up": ({"Wants": "x.timer"}, {"x_timer": {"ActiveState": "activating"}}, "x.timer"),
    "a directory of another": (
        {"Wants": "x.service"},
        {"x_service": DOWN | {"RuntimeDirectory": "ml"}, "b_service": {"RuntimeDirectory": "ml/sub"}},
        "RuntimeDirectory=ml, which b.service has as well",
    ),
    "shared memory of a user": ({"Wants": "x.service"}, {"x_service": DOWN | {"RemoveIPC": "yes"}}, "RemoveIPC=yes"),
    "a failure handler with one of its own": (
        {"OnFailure": "x.service"},
        {"x_service": DOWN | {"OnFailure": "y.service"}, "y_service": DOWN | {"OnFailure": "z.service"}},
        "it has OnFailure=z.service",
    ),
    "what is required has failed": ({"Requires": "x.service"}, {"x_service": FAILED}, "could stay down"),
    "what is required is not there": ({"Requires": "x.service"}, {"x_service": ABSENT}, "could stay down"),
    "what is required was started a moment ago": (
        {"Requires": "x.service"},
        {"x_service": DOWN | {"InactiveExitTimestampMonotonic": f"{(NOW - 9) * 1e6:.0f}"}},
        "started less than 10s ago, within its start limit of 5: a.service could stay down; try again later",
    ),
    "not told when what is required was started": (
        {"Requires": "x.service"}, {"x_service": DOWN | {"InactiveExitTimestampMonotonic": ""}}, "did not tell when",
    ),
    "what is requisite is down": ({"Requisite": "x.service"}, {"x_service": DOWN}, "could stay down"),
    "what it is bound to is down": ({"BindsTo": "x.service"}, {"x_service": DOWN}, "could stay down"),
    "not told whether it is loaded": ({"Wants": "x.service"}, {"x_service": DOWN | {"LoadState": ""}}, "did not tell"),
}  # fmt: skip


@pytest.mark.parametrize("case", STARTED, ids=lambda case: case.replace(" ", "-"))
def test_what_its_restart_would_start(case: str) -> None:
    """A unit is not restarted where that starts one that is not simple: no permission lifts that."""
    own, others, word = STARTED[case]
    for permission in (STRICT, SHARED):
        assert word in judge(own, others, permission).refusal


OWN = {
    "not loaded again": ({"NeedDaemonReload": "yes"}, {}, "NeedDaemonReload=yes"),
    "not told": ({"NeedDaemonReload": ""}, {}, "NeedDaemonReload=?"),
    "a condition by a program": ({"ExecCondition": "{ path=/bin/true }"}, {}, "ExecCondition="),
    "a conflict": ({"Conflicts": "shutdown.target b.service"}, {"b_service": UP}, "starting a.service stops b.service"),
    "a conflict from the other side": ({"ConflictedBy": "b.service"}, {"b_service": UP}, "stops b.service"),
    "a stop for good": ({"PropagatesStopTo": "b.service"}, {"b_service": UP}, "stops, for good, b.service"),
    "a directory": (
        {"RuntimeDirectory": "x ml"}, {"b_service": {"RuntimeDirectory": "ml"}}, "ml, which b.service has as well",
    ),
    "a directory below one": (
        {"RuntimeDirectory": "ml"}, {"b_socket": {"RuntimeDirectory": "ml/b"}}, "ml, which b.socket has as well",
    ),
    "a directory above one": ({"RuntimeDirectory": "ml/a"}, {"b_mount": {"RuntimeDirectory": "ml"}}, "b.mount"),
    "shared memory": ({"RemoveIPC": "yes", "User": "svc", "UID": "1000"}, {}, "RemoveIPC=yes"),
    "shared memory of a user who is not dynamic": (
        {"RemoveIPC": "yes", "DynamicUser": "yes", "UID": "1000"}, {}, "RemoveIPC=yes",
    ),
    "shared memory of a group that is not dynamic": (
        {"RemoveIPC": "yes", "DynamicUser": "yes", "UID": "61234", "User": "a", "Group": "gpu"}, {}, "RemoveIPC=yes",
    ),
    "shared memory of an account that is perhaps not dynamic": (
        {"Wants": "x.service"},
        {"x_service": DOWN | {"RemoveIPC": "yes", "DynamicUser": "yes", "User": "svc"}}, "RemoveIPC=yes",
    ),
    "a terminal": ({"TTYVHangup": "yes"}, {}, "TTYVHangup=yes"),
}  # fmt: skip
ALONG = {
    "start limit": ({"StartLimitBurst": "1", "ActiveEnterTimestampMonotonic": f"{(NOW - 1) * 1e6:.0f}"}, {}, "limit"),
    "start limit not told": ({"NRestarts": ""}, {}, "how often"),
    "an action": ({"StartLimitAction": "reboot"}, {}, "StartLimitAction=reboot"),
    "on its way up": ({"ActiveState": "activating"}, {}, "is activating"),
    "a pull that conflicts": (
        {"Wants": "x.service"},
        {"x_service": DOWN | {"Conflicts": "c.service"}, "c_service": UP},
        "Conflicts=c.service",
    ),
    "an end that conflicts": (
        {"OnSuccess": "x.service"}, {"x_service": DOWN | {"Conflicts": "c.service"}, "c_service": UP}, "c.service",
    ),
    "a timer": ({"Wants": "x.timer"}, {"x_timer": DOWN}, "x.timer"),
    "a job": ({"Job": "7"}, {}, "job"),
    "not by hand": ({"RefuseManualStop": "yes"}, {}, "refuses"),
    "one that depends on it in turn": (
        {"ConsistsOf": "c.service"}, {"c_service": {"Requisite": "x.service"}, "x_service": DOWN}, "c.service: ",
    ),
    "a stop for good": ({"PropagatesStopTo": "c.service"}, {"c_service": UP}, "for good, c.service"),
    **{f"own {key}": row for key, row in OWN.items() if key not in {"a directory", "shared memory"}},
}  # fmt: skip


@pytest.mark.parametrize("case", OWN, ids=lambda case: case.replace(" ", "-"))
def test_its_own_shape(case: str) -> None:
    """A unit that could stay down, or whose end takes from others, is not restarted: no permission lifts that."""
    own, others, word = OWN[case]
    for permission in (STRICT, SHARED):
        assert word in judge(own, others, permission).refusal


@pytest.mark.parametrize("key", ["RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf"])
def test_what_would_be_restarted_with_it(key: str) -> None:
    """A unit that takes an active other down with it is left alone, unless it is named as shared."""
    others = {"a_target": DOWN, "d_service": UP, "c_service": FAILED}
    own = {key: "a.target d.service c.service"}
    refusal = judge(own, others).refusal
    assert "restarting a.service also restarts d.service; " in refusal
    assert "shared_units" in refusal
    restart = judge(own, others, SHARED)
    assert (restart.refusal, [state.id for state in restart.along]) == ("", ["d.service"])
    assert judge(own, others | {"d_service": DOWN}).refusal == ""


@pytest.mark.parametrize("case", ALONG, ids=lambda case: case.replace(" ", "-"))
def test_what_is_restarted_along_is_judged_as_the_unit(case: str) -> None:
    """Each unit that is restarted along has to permit what the unit itself has to: `shared_units` does not lift it."""
    along, others, word = ALONG[case]
    along = {key: value.replace("b.service", "e.service") for key, value in along.items()}
    renamed = {("e_service" if name == "b_service" else name): known for name, known in others.items()}
    refusal = judge({"RequiredBy": "d.service"}, {"d_service": along, **renamed}, SHARED).refusal
    assert refusal.startswith("restarting a.service also restarts ")
    assert word.replace("b.service", "e.service").replace("a.service", "d.service") in refusal


@pytest.mark.parametrize("unit", ["x.socket", "x.scope", "srv.mount", "x.timer", "docker.service", "sshd.service"])
def test_who_is_never_restarted_along(unit: str) -> None:
    """What would not come back, and units that the node stands on."""
    others = {"_".join(unit.rsplit(".", 1)): UP}
    assert f"also restarts {unit}: " in judge({"BoundBy": unit}, others, SHARED).refusal


def test_a_target_that_is_restarted_along() -> None:
    """A target has no start limit, and is judged like a service in all else."""
    target = {"NRestarts": "", "StartLimitBurst": "1"}
    assert judge({"RequiredBy": "ml.target"}, {"ml_target": target}, SHARED).refusal == ""
    target |= {"Wants": "x.timer"}
    assert "x.timer" in judge({"RequiredBy": "ml.target"}, {"ml_target": target, "x_timer": DOWN}, SHARED).refusal


BASE = {"Requires": "sysinit.target system.slice", "Conflicts": "shutdown.target"}
AROUND: Units = {"sysinit_target": UP, "system_slice": UP, "shutdown_target": DOWN, "multi-user_target": UP}
MAIL = BASE | DOWN | {"Requires": "sysinit.target system-notify.slice", "Wants": "tmp.mount"}
ORDINARY: dict[str, tuple[dict[str, str | None], Units]] = {
    "jupyterhub": ({"Wants": "network-online.target", "WantedBy": "multi-user.target"}, {"network-online_target": UP}),
    "uvicorn with Restart=always": ({"WantedBy": "multi-user.target", "NRestarts": "3"}, {}),
    "uvicorn with its socket": ({"Requires": "sysinit.target system.slice a.socket"}, {"a_socket": UP}),
    "triton with a timer": ({"Wants": "triton-models.timer"}, {"triton-models_timer": UP}),
    "vllm as an instance": (
        {"Requires": "sysinit.target system-vllm.slice", "Wants": "tmp.mount"},
        {"system-vllm_slice": UP, "tmp_mount": ABSENT},
    ),
    "whisper with a mail at its failure": (
        {"OnFailure": "notify@a.service"},
        {"notify@a_service": MAIL, "system-notify_slice": DOWN | {"Requires": "system.slice"}, "tmp_mount": ABSENT},
    ),
    "a mail at each end, and of the mail": (
        {"OnSuccess": "mail.service", "OnFailure": "mail.service"},
        {"mail_service": BASE | DOWN | {"OnFailure": "page.service"}, "page_service": BASE | DOWN},
    ),
    "a part of a target": (
        {"WantedBy": "ml.target", "PartOf": "ml.target"}, {"ml_target": UP | {"ConsistsOf": "a.service"}},
    ),
    "a download before each start": (
        {"Requires": "sysinit.target system.slice models.service"},
        {"models_service": BASE | DOWN | {"RequiredBy": "a.service", "StartLimitBurst": "1"}},
    ),
    "a download a moment ago, without a limit": (
        {"Requires": "models.service", "StartLimitIntervalUSec": "0", "NRestarts": "70"},
        {
            "models_service": BASE | DOWN | {"StartLimitIntervalUSec": "0"}
            | {"InactiveExitTimestampMonotonic": f"{NOW * 1e6 - 1e6:.0f}"}
        },
    ),
    "mounts that are there": ({"Requires": "sysinit.target system.slice srv-models.mount"}, {"srv-models_mount": UP}),
    "docker-like": (
        {"Wants": "network-online.target containerd.service", "Requires": "sysinit.target system.slice d.socket"},
        {"network-online_target": UP, "containerd_service": UP, "d_socket": UP},
    ),
    "wants what is not installed": (
        {"Wants": "nvidia-fabricmanager.service consul.service"},
        {"nvidia-fabricmanager_service": ABSENT, "consul_service": {"LoadState": "masked"} | DOWN},
    ),
    "a passive target": ({"Wants": "nss-lookup.target"}, {"nss-lookup_target": DOWN}),
    "a target of targets": (
        {"Wants": "x.target"}, {"x_target": DOWN | {"Wants": "y.target"}, "y_target": DOWN | {"Wants": "x.target"}},
    ),
    "bound to a device that is there": ({"BindsTo": "dev-nvme1n1.device"}, {"dev-nvme1n1_device": UP}),
    "upholds one that is up": ({"Upholds": "proxy.service"}, {"proxy_service": UP}),
    "a directory of its own": ({"RuntimeDirectory": "triton"}, {"b_service": {"RuntimeDirectory": "triton2"}}),
    "a directory that is kept": (
        {"RuntimeDirectory": "ml", "RuntimeDirectoryPreserve": "restart"}, {"b_service": {"RuntimeDirectory": "ml"}},
    ),
    "a directory of one that is down": ({"RuntimeDirectory": "ml"}, {"b_service": DOWN | {"RuntimeDirectory": "ml"}}),
    "a dynamic user": ({"DynamicUser": "yes", "RemoveIPC": "yes", "UID": "61234", "User": "a", "Group": "a"}, {}),
    "a dynamic user of what it starts": (
        {"Wants": "x.service"},
        {"x_service": DOWN | {"RemoveIPC": "yes", "DynamicUser": "yes", "User": "x", "Group": "x"}},
    ),
    "conflicts with one that is down": ({"Conflicts": "shutdown.target b.service"}, {"b_service": DOWN}),
    "before version 249": (dict.fromkeys(("PropagatesStopTo", "OnSuccess", "OnSuccessJobMode", "Upholds")), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDINARY, ids=lambda case: case.replace(" ", "-"))
def test_ordinary_units(case: str) -> None:
    """Services as people write them are restarted."""
    own, others = ORDINARY[case]
    assert judge({**BASE, **own}, AROUND | others).refusal == ""


@pytest.mark.parametrize(
    "key", ["Conflicts", "ConflictedBy", "Requires", "BindsTo", "Wants", "BoundBy", "ConsistsOf", "OnFailure"]
)
@pytest.mark.parametrize("value", [None, "a;b", '"open', " ".join(f"u{number}.service" for number in range(300))])
def test_what_cannot_be_seen(key: str, value: str | None) -> None:
    """Missing, no names, or too many to ask for: not the same as none."""
    with pytest.raises(UnseenProcesses):
        judge({key: value}, {})
