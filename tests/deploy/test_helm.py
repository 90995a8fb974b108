"""The Helm chart, linted and rendered by Helm's own library: valid, and the same as the Kustomize base."""

from __future__ import annotations

import copy
import importlib.machinery
import importlib.util
import json
import re
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from gpuagent import __version__
from gpuagent.config.load import load_config
from tests.deploy.test_kubernetes import POD_MONITOR, TEXT, VERSIONS, manifest

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "gpuagent"
RULES = {
    "fleet": "grafana/prometheus/gpuagent.fleet.yaml",
    "recording": "grafana/prometheus/gpuagent.recording.yaml",
    "rules": "alerts/gpuagent_alerts/shipped/gpuagent.rules.yaml",
}
OPS = {"name": "ops", "slack": {"url_file": "/etc/gpuagent-secrets/slack_url"}}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "elsewhere": {"release": "x", "namespace": "monitoring"},
    "remedies": {"values": {"remedies": {"enabled": True}, "files": {"site.yml": "groups: []\n"}}},
    "agents notify": {
        "values": {
            "config": {"alerting": "node", "receivers": [OPS], "routes": [{"receivers": ["ops"]}]},
            "secretName": "gpuagent",
        }
    },
    "nobody notifies": {"values": {"prometheusRule": {"enabled": False}}},
    "alone": {
        "values": {
            **{name: {"enabled": False} for name in ("podMonitor", "prometheusRule", "dashboards")},
            "runtimeClassName": "",
            "priorityClassName": "",
            "podAnnotations": None,
            "resources": None,
            "serviceAccount": {"create": False},
        }
    },
    "everything": {
        "values": {
            "image": {"digest": f"sha256:{'0' * 64}", "repository": "registry.test/gpuagent"},
            "imagePullSecrets": [{"name": "pull"}],
            "fullnameOverride": "gpu",
            "config": {"listen": "[::]:9900", "disabled_rules": ["Watchdog", "GpuHeldIdle"]},
            "rbac": {"securityContextConstraints": "privileged"},
            "podMonitor": {"labels": {"release": "prometheus"}, "interval": "30s"},
            "prometheusRule": {"labels": {"release": "prometheus"}},
            "dashboards": {"annotations": {"grafana_folder": "GPU"}},
            "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}], "egress": []},
            "nodeSelector": {"nvidia.com/gpu.present": None, "pool": "gpu"},
            "affinity": {"nodeAffinity": {}},
            "podLabels": {"team": "ml"},
            "env": [{"name": "A", "value": "b"}],
            "serviceAccount": {"annotations": {"a": "b"}},
            "extraVolumes": [{"name": "driver", "hostPath": {"path": "/home/kubernetes/bin/nvidia"}}],
            "extraVolumeMounts": [{"name": "driver", "mountPath": "/usr/local/nvidia"}],
        }
    },
}
REFUSED = {
    "additional properties 'images'": {"images": {}},
    "at '/image': additional properties 'tags'": {"image": {"tags": "1"}},
    "at '/config/listen'": {"config": {"listen": "127.0.0.1:9837"}},
    "at '/config/alerting'": {"config": {"alerting": "prometeus"}},
    "at '/podMonitor/interval'": {"podMonitor": {"interval": "15"}},
    "at '/remedies/enabled'": {"remedies": {"enabled": "yes"}},
    "at '/image/digest'": {"image": {"digest": "abc"}},
    "invalid propertyName 'gpuagent.yaml'": {"files": {"gpuagent.yaml": "listen: 0.0.0.0:1"}},
    "at '/stateDirectory'": {"stateDirectory": "state"},
}
DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$"}
TEXT_BY_NAME = {"type": "object", "additionalProperties": TEXT}
PROMETHEUS_RULE = {
    # https://prometheus-operator.dev/docs/api-reference/api/#monitoring.coreos.com/v1.PrometheusRule
    "type": "object",
    "required": ["groups"],
    "additionalProperties": False,
    "properties": {
        "groups": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "rules"],
                "additionalProperties": False,
                "properties": {
                    "name": TEXT,
                    "interval": DURATION,
                    "rules": {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["expr"],
                            "additionalProperties": False,
                            "properties": {
                                **dict.fromkeys(("alert", "record", "expr"), TEXT),
                                "for": DURATION,
                                "keep_firing_for": DURATION,
                                "labels": TEXT_BY_NAME,
                                "annotations": TEXT_BY_NAME,
                            },
                        },
                    },
                },
            },
        }
    },
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("helm_python") is None,
        reason="helm-python-sdk has wheels of Helm's library for x86_64 alone",
    ),
]


def program() -> Any:
    """Load `scripts/release`, which packs the chart."""
    loader = importlib.machinery.SourceFileLoader("release_program", str(ROOT / "scripts" / "release"))
    spec = importlib.util.spec_from_loader("release_program", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def ask_helm(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Helm says of each."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.deploy.render_charts"], input=json.dumps(cases), cwd=ROOT, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@cache
def answers() -> dict[str, dict[str, Any]]:
    """Every case, by its name; those to be refused, by what is said."""
    asked = {**CASES, **{said: {"values": values} for said, values in REFUSED.items()}}
    return dict(zip(asked, ask_helm([{"chart": str(CHART), **case} for case in asked.values()]), strict=True))


@cache
def objects(case: str) -> list[dict[str, Any]]:
    """What a case makes in the cluster; not to be changed."""
    rendered = answers()[case]["rendered"]
    texts = (text for path, text in rendered.items() if not path.endswith("NOTES.txt"))
    return [each for text in texts for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def one(case: str, kind: str, name: str = "") -> Any:
    """The one object of a kind, or that with this end of its name."""
    (found,) = (each for each in objects(case) if each["kind"] == kind and each["metadata"]["name"].endswith(name))
    return found


def notes(case: str) -> str:
    """What is said after an installation."""
    text: str = answers()[case]["rendered"]["gpuagent/templates/NOTES.txt"]
    return text


def merged(base: Any, patch: Any) -> Any:
    """Patch an object by Kubernetes' strategic merge, as far as the overlay uses it."""
    if isinstance(base, dict) and isinstance(patch, dict):
        return {**base, **{key: merged(base[key], value) if key in base else value for key, value in patch.items()}}
    if isinstance(base, list) and isinstance(patch, list) and all(isinstance(each, dict) for each in base + patch):
        key = "mountPath" if any("mountPath" in each for each in base) else "name"
        by_key = {each[key]: each for each in base}
        for each in patch:
            if each.get("$patch") == "delete":
                del by_key[each[key]]
            else:
                by_key[each[key]] = merged(by_key.get(each[key], {}), each)
        return list(by_key.values())
    return patch


def comparable(made: Any) -> Any:
    """Drop what Helm adds to an object to know it again; lists of mounts and others by name are put in order."""
    if isinstance(made, list):
        return sorted((comparable(each) for each in made), key=partial(json.dumps, sort_keys=True))
    if not isinstance(made, dict):
        return made
    added = {"app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by",
             "helm.sh/chart", "checksum/config", "imagePullPolicy"}  # fmt: skip
    kept = {key: comparable(value) for key, value in made.items() if key not in added}
    return {key: value for key, value in kept.items() if value not in ({}, [])}


def by_kustomize(name: str, overlay: str = "") -> Any:
    """A file of the Kustomize base as `kubectl apply -k` sends it."""
    made = manifest(name)
    if overlay:
        made = merged(made, manifest(overlay))
    kustomization = manifest("kustomization.yaml")
    made["metadata"]["namespace"] = kustomization["namespace"]
    image = f"{kustomization['images'][0]['newName']}:{kustomization['images'][0]['newTag']}"
    text = yaml.safe_dump(made).replace("image: gpuagent\n", f"image: {image}\n")
    return yaml.safe_load(text)


@pytest.mark.parametrize("case", CASES)
def test_helm_has_nothing_to_object(case: str) -> None:
    """`helm lint --strict` finds nothing worse than that there is no icon, and the schema takes the values."""
    assert [each["error"] for each in answers()[case]["lint"]] == ["icon is recommended"]


@pytest.mark.parametrize("case", CASES)
def test_kubernetes_takes_all_of_it(case: str) -> None:
    """Every object is one that the API server, or the operator's definitions, know; in the release's namespace."""
    made = objects(case)
    assert {each["metadata"]["namespace"] for each in made} == {CASES[case].get("namespace", "gpuagent")}
    names = [(each["kind"], each["metadata"]["name"]) for each in made]
    assert len(names) == len(set(names))
    for each in made:
        if each["kind"] == "PodMonitor":
            jsonschema_rs.validate(POD_MONITOR, each["spec"])
        elif each["kind"] == "PrometheusRule":
            jsonschema_rs.validate(PROMETHEUS_RULE, each["spec"])
            groups = [group["name"] for group in each["spec"]["groups"]]
            assert len(groups) == len(set(groups))
        else:
            for version in VERSIONS:
                kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("said", REFUSED)
def test_a_slip_in_the_values_is_refused(said: str) -> None:
    """The schema names what is wrong before anything is sent to the cluster."""
    assert said in answers()[said]["refused"]


@pytest.mark.parametrize(
    ("case", "overlay"), [("default", ""), ("remedies", "remedies/kill.yaml")], ids=["base", "remedies"]
)
def test_it_makes_what_kustomize_makes(case: str, overlay: str) -> None:
    """The pods, their account and how they are scraped do not depend on which of both installs them."""
    wanted = [by_kustomize("daemonset.yaml", overlay), by_kustomize("serviceaccount.yaml"),
              by_kustomize("podmonitor.yaml")]  # fmt: skip
    for each in wanted:
        made = copy.deepcopy(one(case, each["kind"]))
        if each["kind"] == "DaemonSet" and overlay:
            mounts = made["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
            mounts.remove(next(mount for mount in mounts if mount.get("subPath") == "site.yml"))
        if each["kind"] in {"DaemonSet", "PodMonitor"}:
            # In the base also the objects have the labels of the pods.
            for side in (made, each):
                del side["metadata"]["labels"]
        else:
            del made["metadata"]["labels"]
        assert comparable(made) == comparable(each)
    config = yaml.safe_load(one(case, "ConfigMap", "gpuagent")["data"]["gpuagent.yaml"])
    assert config == manifest("gpuagent.yaml")


def test_the_agent_takes_what_it_is_configured_with(tmp_path: Path) -> None:
    """Each case's gpuagent.yaml is one that the agent starts with, and it listens where it is scraped."""
    for case in CASES:
        data = next(each["data"] for each in objects(case) if "gpuagent.yaml" in each.get("data", {}))
        (tmp_path / "gpuagent.yaml").write_text(data["gpuagent.yaml"])
        config = load_config(tmp_path / "gpuagent.yaml", is_root=False)
        (port,) = one(case, "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["ports"]
        assert str(config.listen).endswith(f":{port['containerPort']}")


@pytest.mark.parametrize("case", ["default", "elsewhere"])
def test_boards_and_rules_are_those_of_the_repository(case: str) -> None:
    """Nothing is lost or changed on the way: each board and each rule, whatever the release is called."""
    release = CASES[case].get("release")
    prefix = f"{release}-gpuagent" if release else "gpuagent"
    boards = {path.name: json.loads(path.read_text()) for path in (ROOT / "grafana/dashboards").glob("*.json")}
    maps = [each for each in objects(case) if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    assert {name: json.loads(text) for each in maps for name, text in each["data"].items()} == boards
    assert {each["metadata"]["name"] for each in maps} == {f"{prefix}-{Path(name).stem}" for name in boards}
    assert max(len(json.dumps(each)) for each in maps) < 256 * 1024
    for name, path in RULES.items():
        groups = yaml.load((ROOT / path).read_text(), yaml.CSafeLoader)["groups"]
        made = copy.deepcopy(one(case, "PrometheusRule", f"-{name}")["spec"]["groups"])
        # What agents look at many times a minute, a Prometheus sees at each scrape.
        for group, written in zip(made, groups, strict=True):
            if written.get("interval", "1m").endswith("s") and name == "rules":
                assert group.pop("interval") == "15s"
                del written["interval"]
        assert made == groups


def test_nobody_is_told_twice() -> None:
    """The agents' own rules are in Prometheus only where it notifies, and without those that are disabled."""
    names = {each["metadata"]["name"] for each in objects("agents notify") if each["kind"] == "PrometheusRule"}
    assert names == {"gpuagent-fleet", "gpuagent-recording"}
    groups = one("everything", "PrometheusRule", "-rules")["spec"]["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"]}
    assert not {"Watchdog", "GpuHeldIdle"} & alerts
    assert "GpuMemoryFull" in alerts


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("default", "with the rules of PrometheusRule gpuagent-rules"),
        ("default", "registry.example.org is a placeholder"),
        ("agents notify", "Alerts: by the agents, to ops."),
        ("nobody notifies", "NOBODY IS ALERTED"),
        ("remedies", "Agents are root with CAP_KILL"),
        ("elsewhere", "kubectl -n monitoring exec daemonset/x-gpuagent -- gpuagent status"),
        ("everything", "One agent for each node that has the label pool=gpu:"),
    ],
)
def test_the_notes_say_what_to_do(case: str, said: str) -> None:
    """After the installation: how to look, what is still missing, and who is told."""
    assert said in notes(case)


def test_only_what_is_asked_for() -> None:
    """By default no right and no network policy; a policy that opens one port, and a right to be admitted."""
    assert not {"Role", "RoleBinding", "NetworkPolicy"} & {each["kind"] for each in objects("default")}
    assert {each["kind"] for each in objects("alone")} == {"ConfigMap", "DaemonSet"}
    policy = one("everything", "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert policy["ingress"] == [
        {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": [{"namespaceSelector": {}}]}
    ]
    assert policy["egress"] == []
    assert one("everything", "Role")["rules"][0]["verbs"] == ["use"]


def test_the_readme_lists_every_value() -> None:
    """With the default that it has."""
    rows = re.findall(r"^\| `([\w.]+)` \| `(.+?)` \|", (CHART / "README.md").read_text(), re.MULTILINE)

    def leaves(values: Any, path: str = "") -> dict[str, Any]:
        whole = ("nodeSelector", "resources", "updateStrategy", "livenessProbe", "readinessProbe", "podAnnotations",
                 "dashboards.labels")  # fmt: skip
        if not isinstance(values, dict) or not values or path in whole:
            return {path: values}
        found = (leaves(value, f"{path}.{key}" if path else key) for key, value in values.items())
        return {key: value for each in found for key, value in each.items()}

    defaults = leaves(yaml.safe_load((CHART / "values.yaml").read_text()))
    assert {name: json.loads(default) for name, default in rows} == defaults


def test_a_release_packs_all_of_it(tmp_path: Path) -> None:
    """The packed chart renders what the folder does, boards and rules among it, under the version of the agent."""
    packed = tmp_path / "chart.tgz"
    program().chart(ROOT, packed, 1)
    (answer,) = ask_helm([{"chart": str(packed)}])
    assert answer["rendered"] == answers()["default"]["rendered"]
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (described["version"], described["appVersion"]) == (__version__, __version__)
