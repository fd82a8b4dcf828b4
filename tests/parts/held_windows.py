"""Windows to make profiles of."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuwatch.facts.model.cluster import Pod
from gpuwatch.facts.model.telemetry import PodRef, Signal
from gpuwatch.facts.model.workload_profile import HeldWindows, ProfileBook, Unfit, WorkloadProfile
from gpuwatch.size.policy import ProfilePolicy
from gpuwatch.size.profile.joint import update_book

START = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
STEP = 300
GIB = 2**30
UNKNOWN = float("nan")
A100 = "NVIDIA A100-SXM4-40GB"
POLICY = ProfilePolicy()
AT_ONCE = ProfilePolicy(start_up_seconds=0)
"""Start-up counts: for tests of something else."""


def at(window: float) -> datetime:
    """The beginning of a window."""
    return START + timedelta(seconds=STEP * window)


def windows(
    busy: float | Sequence[float],
    *,
    count: int = 0,
    first: int = 0,
    device: str = "GPU-0",
    pod: PodRef = "team/pod",
    container: str = "main",
    mig: str = "",
    model: str = A100,
    shared: bool = False,
    fine: bool = True,
    **others: float | Sequence[float] | None,
) -> HeldWindows:
    """busy and others: one value for `count` windows, or one for each. others by Signal's names; None: not exported."""
    many = [busy] * count if isinstance(busy, int | float) else list(busy)
    given: dict[str, float | Sequence[float] | None] = {"busy_ratio": many, **others}
    if fine:
        given["engine_active_ratio"] = many
    values = {
        Signal(name): array("d", [each] * len(many) if isinstance(each, int | float) else each)
        for name, each in given.items()
        if each is not None
    }
    return HeldWindows(
        device=device,
        uuid=device.split("/", maxsplit=1)[0],
        model=model,
        mig_profile=mig,
        pod=pod,
        container=container if pod else "",
        shared=shared,
        start=at(first),
        step_seconds=STEP,
        values=values,
    )


def part(held: HeldWindows, begin: int, end: int) -> HeldWindows | None:
    """What of it lies in the windows from begin to before end."""
    first = round((held.start - START).total_seconds() / STEP)
    length = len(next(iter(held.values.values())))
    low, high = max(begin - first, 0), min(end - first, length)
    if low >= high:
        return None
    return replace(held, start=at(first + low), values={name: each[low:high] for name, each in held.values.items()})


def update(
    book: ProfileBook | None,
    *held: HeldWindows,
    owners: Mapping[PodRef, str] | None = None,
    pods: Sequence[Pod] = (),
    unfit: Sequence[Unfit] = (),
    policy: ProfilePolicy = POLICY,
) -> ProfileBook:
    return update_book(book, held, owners or {}, {pod.ref: pod for pod in pods}, unfit, policy)


def only(book: ProfileBook) -> WorkloadProfile:
    (profile,) = book.profiles.values()
    return profile


def alive(name: str = "pod", *, started: float | None = None, **more: object) -> Pod:
    """A running Pod; `started` in windows."""
    began = None if started is None else at(started)
    return Pod(namespace="team", name=name, phase="Running", started=began, **more)  # type: ignore[arg-type]
