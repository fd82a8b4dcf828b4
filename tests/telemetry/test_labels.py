"""The door for labels: every spelling that exporters used, on rows as they were seen (label_rows.yaml)."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuwatch.facts.model.telemetry import Vendor
from gpuwatch.sources.telemetry.labels import (
    Holder,
    Identity,
    device_matchers,
    holder,
    identity,
    ids,
    looks_like_exporter,
    names_a_host,
    node_label,
    target,
)

ROWS = yaml.safe_load(Path(__file__).with_name("label_rows.yaml").read_text())


def rows_of(question: str) -> pytest.MarkDecorator:
    cases = [pytest.param(row, id=what) for what, rows in ROWS[question].items() for row in rows]
    return pytest.mark.parametrize("row", cases)


@rows_of("identity")
def test_the_device_of_a_row(row: Any) -> None:
    vendor, labels, expected = row
    found = identity(labels, Vendor(vendor))
    assert found == (Identity(*expected) if expected else None)
    assert ids(labels, Vendor(vendor)) == (tuple(expected[:2]) if expected else None)


@rows_of("holder")
def test_who_holds_the_device(row: Any) -> None:
    vendor, labels, expected, *targets = row
    found = holder(labels, Vendor(vendor), frozenset(*targets))
    assert found == (Holder(*expected) if expected else None)


@rows_of("target")
def test_the_targets_own_pod(row: Any) -> None:
    labels, expected = row
    assert target(labels) == expected


@rows_of("host")
def test_the_host(row: Any) -> None:
    labels, expected = row
    assert node_label(labels) == expected


@rows_of("matchers")
def test_matchers_pick_one_device(row: Any) -> None:
    vendor, labels, expected = row
    found = device_matchers(labels, Vendor(vendor))
    assert ",".join(f'{each.label}{each.op}"{each.value}"' for each in found) == expected


@pytest.mark.parametrize(
    ("value", "is_host"),
    [
        ("gpu-node-1", True),
        ("ip-10-0-1-2.ec2.internal", True),
        ("localhost", False),
        ("10.0.1.2", False),
        ("fd00::1", False),
        ("nvidia-dcgm-exporter-tl46n", False),
        ("", False),
    ],
)
def test_what_exporters_give_in_place_of_a_host_name(value: str, is_host: bool) -> None:
    assert names_a_host(value) is is_host


def test_exporter_pods_by_name() -> None:
    assert looks_like_exporter("nvidia-dcgm-exporter-drqwq")
    assert looks_like_exporter("default-metrics-exporter-4kx9p")
    assert not looks_like_exporter("xpumping-station-0")
