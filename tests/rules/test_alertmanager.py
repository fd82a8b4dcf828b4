"""rules/alertmanager-example.yaml on a real Alertmanager: what silences what, and who is told."""

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from parts.alertmanager_server import AlertmanagerBuild, running_alertmanager
from parts.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "rules" / "alertmanager-example.yaml"
SEVERITY = {
    rule["alert"]: rule["labels"]["severity"]
    for file in ("gpuwatch-alerts.yaml", "gpuwatch-alerts-optional.yaml")
    for group in yaml.safe_load((ROOT / "rules" / file).read_text())["groups"]
    for rule in group["rules"]
}


@pytest.fixture(scope="module")
def manager(alertmanager_build: AlertmanagerBuild, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With the example's rules; its receivers are told nothing, as they stand on no host."""
    config = yaml.safe_load(EXAMPLE.read_text())
    config["receivers"] = [{"name": receiver["name"]} for receiver in config["receivers"]]
    file = tmp_path_factory.mktemp("alertmanager") / "config.yaml"
    file.write_text(yaml.safe_dump(config))
    with running_alertmanager(alertmanager_build, file) as url:
        yield url


def send(url: str, alerts: list[dict[str, str]]) -> None:
    body = json.dumps([{"labels": {"severity": SEVERITY[each["alertname"]], **each}} for each in alerts]).encode()
    request = urllib.request.Request(f"{url}/api/v2/alerts", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        assert answer.status == 200


def queried(build: AlertmanagerBuild, url: str, *what: str) -> list[dict[str, str]]:
    command = [build.amtool, f"--alertmanager.url={url}", "-o", "json", "alert", "query", *what]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [each["labels"] for each in json.loads(done.stdout)]


GPU = {"node": "gpu-1", "UUID": "GPU-a"}
PAIRS = [
    # What fires, what it silences, what it does not.
    (
        "one GPU",
        {"alertname": "GpuXidFatal", **GPU},
        {"alertname": "GpuRowRemapPending", **GPU},
        {"alertname": "GpuRowRemapPending", "node": "gpu-1", "UUID": "GPU-b"},
    ),
    (
        "info",
        {"alertname": "GpuUncorrectableEcc", **GPU},
        {"alertname": "GpuXidApplication", "namespace": "a", **GPU},
        {"alertname": "GpuXidApplication", "node": "gpu-2", "UUID": "GPU-a"},
    ),
    (
        "without a GPU",
        {"alertname": "GpuMissing", "node": "gpu-1", "UUID": "GPU-a"},
        {"alertname": "GpuThermalThrottle", **GPU},
        {"alertname": "GpuNodeWithoutTelemetry", "node": "gpu-7"},
    ),
    (
        "a Node's telemetry",
        {"alertname": "GpuNodeWithoutTelemetry", "node": "gpu-1"},
        {"alertname": "GpuMissing", **GPU},
        {"alertname": "GpuMissing", "node": "gpu-2", "UUID": "GPU-c"},
    ),
    (
        "down",
        {"alertname": "GpuwatchDown"},
        {"alertname": "GpuwatchNoLeader", "namespace": "gpuwatch"},
        {"alertname": "GpuRowRemapPending", **GPU},
    ),
    (
        "paused",
        {"alertname": "GpuwatchPaused", "namespace": "gpuwatch"},
        {"alertname": "GpuwatchRemediationStuck", "namespace": "gpuwatch"},
        {"alertname": "GpuwatchRemediationStuck", "namespace": "other"},
    ),
    (
        "a finding on nothing",
        {"alertname": "GpuwatchCriticalFinding", "kind": "telemetry_missing"},
        None,
        {"alertname": "GpuLowUtilization", "namespace": "a"},
    ),
]


@pytest.mark.prometheus
@pytest.mark.parametrize("number", range(len(PAIRS)), ids=[pair[0] for pair in PAIRS])
def test_what_silences_what(number: int, alertmanager_build: AlertmanagerBuild, manager: str) -> None:
    """Each pair in a cluster of its own: the other side of `equal` is another cluster's, which stays loud."""
    _, source, silenced, loud = PAIRS[number]
    here = {"cluster": f"c{number}"}
    alerts = [{**source, **here}, {**loud, **here}]
    if silenced:
        alerts += [{**silenced, **here}, {**silenced, "cluster": f"far-{number}"}]
    send(manager, alerts)

    def labels(*what: str) -> list[dict[str, str]]:
        found = [
            *queried(alertmanager_build, manager, *what, f"cluster=c{number}"),
            *queried(alertmanager_build, manager, *what, f"cluster=far-{number}"),
        ]
        return [{name: value for name, value in each.items() if name != "severity"} for each in found]

    wait_until(lambda: len(labels("--inhibited")) == bool(silenced), lambda: f"inhibited: {labels('--inhibited')}", 20)
    assert labels("--inhibited") == ([{**silenced, **here}] if silenced else [])
    active = labels("--active")
    for alert in alerts:
        assert (alert in active) is not (alert == {**(silenced or {}), **here}), alert


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("alert", "more", "receivers"),
    [
        ("GpuXidFatal", ["node=gpu-1", "UUID=GPU-a"], "on-call"),
        ("GpuwatchCriticalFinding", ["namespace=team-a-dev"], "team-a,on-call"),
        ("GpuwatchCriticalFinding", ["namespace=team-b"], "on-call"),
        ("GpuwatchCriticalFinding", [], "on-call"),
        ("GpuLowUtilization", ["namespace=team-a"], "team-a"),
        ("GpuXidApplication", ["namespace=team-a"], "team-a"),
        ("GpuXidApplication", ["namespace=team-ab"], "nobody"),
        ("GpuRowRemapPending", ["node=gpu-1"], "platform"),
        ("GpuwatchPaused", ["namespace=gpuwatch"], "nobody"),
    ],
)
def test_who_is_told(alert: str, more: list[str], receivers: str, alertmanager_build: AlertmanagerBuild) -> None:
    command = [alertmanager_build.amtool, "config", "routes", "test", f"--config.file={EXAMPLE}"]
    labels = [f"alertname={alert}", f"severity={SEVERITY[alert]}", *more]
    done = subprocess.run([*command, *labels], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == receivers


def test_every_alert_that_it_names_is_shipped() -> None:
    text = "".join(line for line in EXAMPLE.read_text().splitlines(keepends=True) if not line.lstrip().startswith("#"))
    named = set(re.findall(r"Gpu(?:watch)?[A-Z]\w+", text))
    assert named <= SEVERITY.keys()
