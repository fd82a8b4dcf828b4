"""The bounds of doing, each with its unit and the reason for its default."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

EFFECTS = ("PreferNoSchedule", "NoSchedule", "NoExecute")
"""The ladder of a Node's taint, mildest first."""

FILLED_IN = ("node", "remediation", "cause", "reason")
"""What `hand_off_object` may name in braces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutePolicy:
    """When and how what was planned is done.

    approve_seconds: a proposal that nobody approved expires after it. Three days: a weekend and a Monday.
    announce_seconds: owners have so long to object after the announcement. An hour: somebody at work reads it.
    act_seconds: how long, after the announcement, an opening is looked for (a budget, a PodDisruptionBudget, the rate)
        and the steps may take. Six hours: a job's next epoch ends in it.
    verify_seconds: within which Pods have to be gone, or to run elsewhere. Half an hour: the longest grace periods and
        an image that is pulled anew.
    release_hold_seconds: how long after a release its outcome is open (whoever wants it back undoes it). A week.
    taint_expiry_seconds: our taint goes after it, proof of health or not, so that nothing is fenced for ever by a
        controller that has forgotten why. Three days: 3.6 times the median repair of 20 h (InfiniteHBD trace).
    healthy_seconds: for so long every look has to find proof of health before a taint goes. An hour, the window in
        which an event is news for the health rules.
    look_seconds: distance of two looks at what is held; a proof of health with longer gaps begins anew.
    rung_seconds: how long a rung of the taint's ladder stands before the next, if the Node is degraded still.
    first_effect, last_effect: the ladder's ends. NoExecute ends Pods without asking PodDisruptionBudgets, so that it
        has to be asked for.
    hand_off_label: 'key=value' for a repair system, put on the fenced Node; '' for none.
    hand_off_object: an object made for a repair system, such as a NodeMaintenance; in its texts {node}, {remediation},
        {cause} and {reason} are filled in. Its name has to tell Nodes apart. {} for none.
    hand_off_when_empty: hand a Node off only once it takes no new Pods and no Pod holds an accelerator of it, so that a
        repair system that reboots costs nobody's work. Otherwise with the fence.
    condition: whether the Node condition GPUDegraded is written.
    device_taints: fence the single device by a DeviceTaintRule where the cluster serves it, and not its Node.
    retry_seconds, retry_cap_seconds: first wait after something that may pass (a conflict, a PodDisruptionBudget, the
        rate); doubled each time, up to the cap.
    failure_backoff_seconds, failure_backoff_cap_seconds: after a failed Remediation its target is left alone for so
        long, doubled with each failure in a row.
    lapse_backoff_seconds: the same after one that came to nothing (lapsed, refused, expired), up to declined_seconds:
        a finding that comes and goes is not announced every hour.
    declined_seconds: after a no of people, or what they took back themselves, they are not asked again for so long. A
        day: whoever said it should be asked at work, and a fault that stands has not been forgotten then.
    write_timeout_seconds: a write that was begun and has no result is looked for no sooner; above the writer's own
        timeout, so that it cannot still be under way in another process.
    fresh_seconds: facts that are older decide nothing.
    """

    approve_seconds: int = 259_200
    announce_seconds: int = 3_600
    act_seconds: int = 21_600
    verify_seconds: int = 1_800
    release_hold_seconds: int = 604_800
    taint_expiry_seconds: int = 259_200
    healthy_seconds: int = 3_600
    look_seconds: int = 300
    rung_seconds: int = 1_800
    first_effect: str = "PreferNoSchedule"
    last_effect: str = "NoSchedule"
    hand_off_label: str = ""
    hand_off_object: Mapping[str, Any] = field(default_factory=dict)
    hand_off_when_empty: bool = True
    condition: bool = True
    device_taints: bool = True
    retry_seconds: int = 60
    retry_cap_seconds: int = 3_600
    failure_backoff_seconds: int = 86_400
    failure_backoff_cap_seconds: int = 1_382_400
    lapse_backoff_seconds: int = 3_600
    declined_seconds: int = 86_400
    write_timeout_seconds: int = 120
    fresh_seconds: int = 600

    def __post_init__(self) -> None:
        for name in (item.name for item in fields(self) if item.name.endswith("_seconds")):
            least = 0 if name == "announce_seconds" else 1
            if getattr(self, name) < least:
                raise ValueError(f"execute.{name} is {getattr(self, name)!r}; it has to be {least} or more seconds")
        for name in ("first_effect", "last_effect"):
            if getattr(self, name) not in EFFECTS:
                raise ValueError(f"execute.{name} is {getattr(self, name)!r}; it has to be one of {', '.join(EFFECTS)}")
        if EFFECTS.index(self.first_effect) > EFFECTS.index(self.last_effect):
            raise ValueError(f"execute.first_effect {self.first_effect} is above last_effect {self.last_effect}")
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
                raise ValueError(f"execute.hand_off_object: {key} is {value!r}; it has to be a text")
        if "{node}" not in str(name) and "{remediation}" not in str(name):
            raise ValueError(
                f"execute.hand_off_object: metadata.name {name!r} is the same for every Node; put {{node}} into it"
            )
        for text in _texts(wanted):
            for unknown in set(re.findall(r"\{([a-z_]+)\}", text)) - set(FILLED_IN):
                known = ", ".join(f"{{{each}}}" for each in FILLED_IN)
                raise ValueError(f"execute.hand_off_object: {{{unknown}}} in {text!r} is not one of {known}")

    @property
    def ladder(self) -> tuple[str, ...]:
        return EFFECTS[EFFECTS.index(self.first_effect) : EFFECTS.index(self.last_effect) + 1]

    def retry_after(self, attempts: int) -> int:
        """Seconds to wait after that many tries that failed; without jitter, so that a test and a person can tell."""
        return _doubled(self.retry_seconds, attempts, self.retry_cap_seconds)

    def failed_after(self, failures: int) -> int:
        """Seconds for which a target is left alone after that many failures in a row."""
        return _doubled(self.failure_backoff_seconds, failures, self.failure_backoff_cap_seconds)

    def lapsed_after(self, lapses: int) -> int:
        """Seconds for which a target is left alone after so many in a row that came to nothing."""
        return _doubled(self.lapse_backoff_seconds, lapses, self.declined_seconds)


def _doubled(first: int, times: int, cap: int) -> int:
    return int(min(first * 2 ** min(max(times - 1, 0), 32), cap))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
