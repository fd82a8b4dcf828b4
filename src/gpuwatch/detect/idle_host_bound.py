"""Devices that are busy all the time at a low level, because their host does not feed them."""

from collections.abc import Sequence

import numpy as np

from gpuwatch.detect.idle_policy import IdlePolicy
from gpuwatch.detect.idle_signals import DeviceSignals
from gpuwatch.detect.needs import stats
from gpuwatch.model.decision import Evidence
from gpuwatch.model.telemetry import Device, Signal, Statistic
from gpuwatch.profile.explanation import time_text
from gpuwatch.profile.silence import ACTIVE, Lane


def host_bound(
    signals: DeviceSignals, policy: IdlePolicy, devices: Sequence[Device], lane: Lane, step_seconds: int, *, batch: bool
) -> tuple[str, tuple[Evidence, ...]] | None:
    """How these devices wait for their host, as part of a sentence, and the evidence; None where unknown or not so.

    batch: a job always has work, so a low mean is its host's fault. A service may just have few requests: it also needs
        much PCIe traffic.
    """
    window = policy.long_window_seconds
    recent = lane[-(window // step_seconds) :]
    share = np.count_nonzero(recent & ACTIVE) / len(recent)
    means = [signals.value(device, Signal.BUSY_RATIO, Statistic.AVG, window) for device in devices]
    known = [mean for mean in means if mean is not None]
    if not known or len(known) < len(means):
        return None
    mean = max(known)
    if mean > policy.host_bound_busy_ratio or share < policy.host_bound_steps_ratio:
        return None
    traffic = max((signals.host_traffic(device, window) or 0.0 for device in devices), default=0.0)
    feeds = traffic >= policy.host_bound_bytes_per_second
    if not batch and not feeds:
        return None
    busy, received = stats(Statistic.AVG, window, Signal.BUSY_RATIO, Signal.PCIE_RX_BYTES_PER_SECOND)
    note = "the busiest of its devices"
    evidence = [signals.evidence(devices[0], busy, mean, "<=", policy.host_bound_busy_ratio, note)]
    if feeds:
        bound = policy.host_bound_bytes_per_second
        evidence.append(signals.evidence(devices[0], received, traffic, ">=", bound, f"both ways, {note}"))
    text = (
        f"its busiest device is active in {share:.0%} of the last {time_text(window)} and only for {mean:.0%} of the "
        "time: it waits for its host"
    )
    return text, tuple(evidence)
