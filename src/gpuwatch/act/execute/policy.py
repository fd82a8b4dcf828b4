"""The bounds of remediation, each with its unit and the reason for its default."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwatch.facts.model.bounds import named, require

EFFECTS = ("PreferNoSchedule", "NoSchedule", "NoExecute")
"""Effects of a Node's taint, mildest first."""

SOURCE_READS = ("required", "if_reachable", "off")

FILLED_IN = ("node", "remediation", "cause", "reason")
"""Names that `hand_off_object` may use in braces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutePolicy:
    """When and how gpuwatch carries out a plan.

    approval_timeout_seconds: an unapproved proposal expires after it. Three days: a weekend and a Monday.
    notice_period_seconds: how long owners may object after they were notified, before a move, a release or NoExecute.
        An hour: a person at work reads it. A milder taint ends no Pod and has none.
    action_timeout_seconds: time after the notice period to wait for a budget, a PodDisruptionBudget or the rate, and
        then again for the steps. Six hours: a job's next epoch ends in it.
    verification_timeout_seconds: time for Pods to be gone or run elsewhere. 30 min: long grace periods, new pulls.
    stopped_gang_seconds: if a gang that was stopped for a move does not run again within it, a person is called (Event,
        notification, condition, metric). After half of it a gang is resumed beside Pods that still end, where its
        framework allows that. A quarter of an hour: most Pods end within 30 s, and most images are cached.
    release_observation_seconds: time after a release in which its owner may take the GPUs back. A week.
    taint_expiry_seconds: gpuwatch removes its taint if no check has found the Node degraded for so long, also without
        proof of health, so that none stays by mistake. Three days: 3.6 times the median repair of 20 h (InfiniteHBD).
    healthy_for_seconds: every check in this time must find proof of health before a taint is removed. An hour, the
        window in which an event is news for the health rules.
    check_interval_seconds: time between checks of what is in effect. A longer gap restarts the proof of health.
    taint_escalation_seconds: how long one effect of the taint stands before the next, while the Node is degraded. Two
        checks: NoSchedule stands within a quarter of an hour of a finding.
    first_taint_effect, last_taint_effect: mildest and strictest effect. NoExecute ignores PodDisruptionBudgets, so only
        an explicit setting allows it.
    hand_off_label: 'key=value' for a repair system, put on the tainted Node; '' for none.
    hand_off_object: an object made for a repair system, such as a NodeMaintenance; in its texts {node}, {remediation},
        {cause} and {reason} are filled in. Its name must differ by Node. {} for none.
    hand_off_when_empty: hand a Node off only once it takes no new Pods and none is on it but those of DaemonSets and
        static ones, so that a repair system that reboots it ends no work. Otherwise with the taint.
    condition: whether the Node condition GPUDegraded is written.
    device_taints: taint the single device by a DeviceTaintRule where the cluster serves it, and not its Node.
    source_read: before a move, a release or NoExecute that no person approved, gpuwatch reads the exporter of the Node
        once, which has to show the fault or the idleness now. required: without an answer it waits; if_reachable: it
        acts; off: it reads nothing. Required: a series may be forged, stale or of another cluster, a Node's own page
        is not.
    retry_seconds, retry_max_seconds: first wait after a passing obstacle, such as a conflict; doubled up to the second.
    failure_backoff_seconds: how long a target is left alone after a failed Remediation, doubled with each failure in a
        row, up to 16 days; and after it was moved for a Pod that waits.
    obsolete_backoff_seconds: the same after an obsolete, refused or expired one, up to rejection_backoff_seconds, so
        that owners are not notified every hour of a finding that comes and goes.
    rejection_backoff_seconds: how long a target is left alone after a rejection, or after people undid the action. A
        day: a colleague can be asked at work, and a fault that persists is not forgotten by then.
    write_timeout_seconds: the result of a write is read no sooner after its start; above the writer's own timeout, so
        that the write cannot still be under way in another process.
    """

    approval_timeout_seconds: int = 259_200
    notice_period_seconds: int = 3_600
    action_timeout_seconds: int = 21_600
    verification_timeout_seconds: int = 1_800
    stopped_gang_seconds: int = 900
    release_observation_seconds: int = 604_800
    taint_expiry_seconds: int = 259_200
    healthy_for_seconds: int = 3_600
    check_interval_seconds: int = 300
    taint_escalation_seconds: int = 600
    first_taint_effect: str = "PreferNoSchedule"
    last_taint_effect: str = "NoSchedule"
    hand_off_label: str = ""
    hand_off_object: Mapping[str, Any] = field(default_factory=dict)
    hand_off_when_empty: bool = True
    condition: bool = True
    device_taints: bool = True
    source_read: str = "required"
    retry_seconds: int = 60
    retry_max_seconds: int = 3_600
    failure_backoff_seconds: int = 86_400
    obsolete_backoff_seconds: int = 3_600
    rejection_backoff_seconds: int = 86_400
    write_timeout_seconds: int = 120

    def __post_init__(self) -> None:
        notice = ("notice_period_seconds",)
        others = [name for name in named(self, "_seconds") if name not in notice]
        require(self, "execute.", notice, lambda value: value >= 0, "0 or more seconds")
        require(self, "execute.", others, lambda value: value >= 1, "1 or more seconds")
        effects = ("first_taint_effect", "last_taint_effect")
        require(self, "execute.", effects, lambda value: value in EFFECTS, f"one of {', '.join(EFFECTS)}")
        reads = f"one of {', '.join(SOURCE_READS)}"
        require(self, "execute.", ("source_read",), lambda value: value in SOURCE_READS, reads)
        if EFFECTS.index(self.first_taint_effect) > EFFECTS.index(self.last_taint_effect):
            raise ValueError(
                f"execute.first_taint_effect {self.first_taint_effect} is stricter than last_taint_effect "
                f"{self.last_taint_effect}"
            )
        key, equals, value = self.hand_off_label.partition("=")
        if self.hand_off_label and not (key and equals and value):
            raise ValueError(f"execute.hand_off_label is {self.hand_off_label!r}; write it as key=value")
        if self.hand_off_object:
            self._check_object()

    def _check_object(self) -> None:
        wanted = self.hand_off_object
        metadata = wanted.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        for key, value in (
            ("apiVersion", wanted.get("apiVersion")),
            ("kind", wanted.get("kind")),
            ("metadata.name", name),
        ):
            if not isinstance(value, str) or not value:
                raise ValueError(f"execute.hand_off_object: {key} is {value!r}; it must be text")
        if "{node}" not in str(name) and "{remediation}" not in str(name):
            raise ValueError(
                f"execute.hand_off_object: metadata.name {name!r} is the same for every Node; put {{node}} into it"
            )
        for unknown in sorted(set(re.findall(r"\{([a-z_]+)\}", json.dumps(wanted))) - set(FILLED_IN)):
            known = ", ".join(f"{{{each}}}" for each in FILLED_IN)
            raise ValueError(f"execute.hand_off_object: {{{unknown}}} is not one of {known}")

    @property
    def ladder(self) -> tuple[str, ...]:
        return EFFECTS[EFFECTS.index(self.first_taint_effect) : EFFECTS.index(self.last_taint_effect) + 1]

    def retry_after(self, attempts: int) -> int:
        """Seconds to wait after so many failed tries. No jitter, so that people and tests can predict it."""
        return doubled(self.retry_seconds, attempts, self.retry_max_seconds)


def doubled(first: int, times: int, cap: int) -> int:
    return int(min(first * 2 ** min(max(times - 1, 0), 32), cap))
