"""The Kubernetes manifests: valid, consistent with each other, and with what the agent does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from gpuagent import __version__
from gpuagent.config.load import load_config

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.29", "1.37")
"""The oldest and the newest Kubernetes that these are checked against."""
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT, "minItems": 1}
POD_MONITOR = {
    # What is used of https://prometheus-operator.dev/docs/api-reference/api/#monitoring.coreos.com/v1.PodMonitor
    "type": "object",
    "required": ["selector", "podMetricsEndpoints"],
    "additionalProperties": False,
    "properties": {
        "jobLabel": TEXT,
        "selector": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"matchLabels": {"type": "object", "additionalProperties": TEXT}},
        },
        "podMetricsEndpoints": {
            "type": "array",
            "items": {
                "type": "object",
                "additionalProperties": False,
                "properties": {
                    "port": TEXT,
                    "interval": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
                    "scrapeTimeout": {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"},
                    "honorLabels": {"type": "boolean"},
                    "relabelings": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "sourceLabels": TEXTS,
                                "targetLabel": TEXT,
                                "regex": TEXT,
                                "action": {"enum": ["replace", "labeldrop"]},
                            },
                        },
                    },
                },
            },
        },
    },
}


def manifest(name: str) -> Any:
    """One of the files."""
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def pod() -> Any:
    """What the DaemonSet runs."""
    return manifest("daemonset.yaml")["spec"]["template"]["spec"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["namespace.yaml", "serviceaccount.yaml", "daemonset.yaml"])
def test_kubernetes_takes_it(name: str, version: str) -> None:
    """Every field is one that the API server knows, of the type that it wants."""
    kubernetes_validate.validate(manifest(name), version, strict=True)


def test_a_field_that_does_not_exist_is_found() -> None:
    """The check above can fail."""
    wrong = manifest("daemonset.yaml")
    wrong["spec"]["template"]["spec"]["hostPid"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_operator_takes_the_pod_monitor() -> None:
    """It scrapes the port and the pods of the DaemonSet, by fields that the operator documents."""
    monitor, daemonset = manifest("podmonitor.yaml"), manifest("daemonset.yaml")
    jsonschema_rs.validate(POD_MONITOR, monitor["spec"])
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"]["selector"] == daemonset["spec"]["selector"]
    ports = {port["name"] for container in pod()["containers"] for port in container["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports


def test_kustomize_finds_every_file() -> None:
    """Every manifest is in the kustomization, and the overlay patches a container that there is."""
    kustomization = manifest("kustomization.yaml")
    listed = set(kustomization["resources"]) | set(kustomization["configMapGenerator"][0]["files"])
    assert listed == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert kustomization["images"][0]["newTag"] == __version__
    patch = manifest("remedies/kill.yaml")["spec"]["template"]["spec"]
    for kind in ("containers", "initContainers"):
        assert {each["name"] for each in patch[kind]} == {each["name"] for each in pod()[kind]}


def test_what_is_mounted_is_there() -> None:
    """Every mount has its volume and every volume is mounted; the agent has the directories that it uses."""
    volumes = {volume["name"] for volume in pod()["volumes"]}
    mounts = [
        mount for kind in ("containers", "initContainers") for each in pod()[kind] for mount in each["volumeMounts"]
    ]
    assert {mount["name"] for mount in mounts} == volumes
    places = {mount["mountPath"] for mount in pod()["containers"][0]["volumeMounts"]}
    assert {"/etc/gpuagent", "/var/lib/gpuagent", "/run/gpuagent", "/run/gpuagent-client", "/var/log/pods"} <= places


def test_it_asks_for_no_more_than_it_needs() -> None:
    """No privilege, no capability, no writable root, no token, no GPU taken from the work; the host's pids, though."""
    spec = pod()
    container = spec["containers"][0]
    assert spec["hostPID"] is True
    assert spec["automountServiceAccountToken"] is False
    assert "nvidia.com/gpu" not in container["resources"]["requests"] | container["resources"]["limits"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not container["securityContext"]["privileged"]
    assert container["securityContext"]["readOnlyRootFilesystem"]


def test_the_agent_takes_its_configuration() -> None:
    """The ConfigMap's file is one that the agent starts with, and the probes ask where it listens."""
    config = load_config(FOLDER / "gpuagent.yaml", is_root=False)
    container = pod()["containers"][0]
    assert config.listen == f"0.0.0.0:{container['ports'][0]['containerPort']}"
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "/-/healthy", "/-/ready",
    }  # fmt: skip
