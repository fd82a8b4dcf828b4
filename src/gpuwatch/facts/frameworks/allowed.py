"""Why the Pods of a gang or owner must not be released or moved: by the same rules as `release` and `move`. Pure."""

from collections.abc import Iterable

from gpuwatch.facts.frameworks import BY_NAME, OWNERS
from gpuwatch.facts.frameworks.fights import admitted_by
from gpuwatch.facts.frameworks.framework import Framework, Kind, Never, place_lost
from gpuwatch.facts.model.cluster import Gang, Pod, Workload

_UNKNOWN = "gpuwatch does not know how {} brings its Pods back."


def release_refusal(gang: Gang | None, owner: Workload | None) -> str:
    """'' where it may be released. gang: None for Pods without one."""
    framework, kind = _found(gang, owner)
    if isinstance(kind, Never):
        return kind.reason
    if framework is not None and framework.release is not None:
        return framework.release.reason
    return kind.release.reason if isinstance(kind.release, Never) else _loses(owner) or _held(owner)


def move_refusal(gang: Gang | None, owner: Workload | None, pods: list[Pod], siblings: list[Pod]) -> str:
    """'' where these Pods may be moved. siblings: all live Pods of the owner."""
    framework, kind = _found(gang, owner)
    if isinstance(kind, Never):
        return kind.reason
    if framework is not None and framework.move is not None:
        return framework.move.reason
    if isinstance(kind.move, Never):
        return kind.move.reason
    if lost := _loses(owner):
        return lost
    # Without a gang, a kind whose Pods move one by one is not stopped as a whole.
    if kind.move.whole and not (gang is None and kind.move.one_by_one) and (held := _held(owner)):
        return held
    marks = ({**each.labels, **each.annotations} for each in (*((owner,) if owner else ()), *pods, *siblings))
    if queue := admitted_by(marks, (pod.scheduler for pod in (*pods, *siblings))):
        return place_lost(queue)
    for pod in pods:
        reason = kind.move.stays(pod.labels)
        if reason:
            return f"Pod {pod.ref}: {reason}"
    return _out_of_turn(kind, pods, siblings) if gang is None and kind.move.one_by_one else ""


def _loses(owner: Workload | None) -> str:
    """Why the owner's controller may delete data. Also asked where Kueue stops the owner in place of gpuwatch."""
    kind = OWNERS.get(owner.key) if owner is not None else None
    if owner is None or kind is None:
        return "It is not known what data its owner's controller would delete."
    if isinstance(kind.release, Never):
        return kind.release.reason
    if kind.release.deletes.data is None:
        return ""
    unread = f"It was not read what data the controller of {owner.kind} {owner.name} would delete."
    return unread if owner.loses is None else owner.loses


def _held(owner: Workload | None) -> str:
    """Why a release of it would not be written, or would not last: what `fights.may_release` says of it as read."""
    if owner is None or owner.unreleasable is None:
        return "gpuwatch could not read whether its owner can be released and restored."
    return owner.unreleasable


def _found(gang: Gang | None, owner: Workload | None) -> tuple[Framework | None, Kind | Never]:
    """The gang's framework, and the kind to write."""
    framework = None
    if gang is not None:
        framework = BY_NAME.get(gang.framework)
        if framework is None:
            return None, Never(_UNKNOWN.format(gang.framework))
        if not gang.workload:
            return framework, Never("Its Pods belong to several owners, and gpuwatch acts on one owner at a time.")
        if framework.acts_on is not None:
            return framework, framework.acts_on
    if owner is None:
        return framework, Never("Its owner was not read.")
    return framework, OWNERS.get(owner.key) or Never(_UNKNOWN.format(f"a {owner.kind}"))


def _out_of_turn(kind: Kind, pods: list[Pod], siblings: Iterable[Pod]) -> str:
    moved = {pod.ref for pod in pods}
    waiting = sorted(pod.ref for pod in siblings if pod.ref not in moved and not pod.ready)
    if len(moved) == 1 and not waiting:
        return ""
    why = f"{waiting[0]} is not ready" if waiting else f"{len(moved)} are due"
    return f"A {kind.kind}'s Pods move one by one, while all others are ready; {why}."
