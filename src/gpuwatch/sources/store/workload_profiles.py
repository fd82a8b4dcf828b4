"""WorkloadProfile objects: measurements and advice in the workload's Namespace, for people; gpuwatch itself reads its
Store. An object is written when its advice changes and once a day: hourly writes would be three a second at 10,000
workloads."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from gpuwatch.facts.frameworks.objects import Object, difference, ref_of
from gpuwatch.facts.model.sizing import Abstention, Recommendation
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.facts.model.workload_profile import ProfileBook, WorkloadKey, WorkloadProfile
from gpuwatch.sources.kube.writer import ClusterWriter, WriteError
from gpuwatch.sources.store import StoreError
from gpuwatch.sources.store.api_form import FormError, camel_enum, from_api, to_api
from gpuwatch.sources.store.custom_resources import (
    ADVISED,
    API_VERSION,
    PROFILE_KIND,
    ApiCondition,
    ConditionStatus,
    NotRecommended,
    Recommended,
    WorkloadProfileSpec,
    WorkloadProfileStatus,
)

_NAME_LENGTH = 200


def publish(
    writer: ClusterWriter,
    book: ProfileBook,
    recommendations: Iterable[Recommendation] = (),
    abstentions: Iterable[Abstention] = (),
) -> tuple[Gap, ...]:
    """Updates the objects from the book, and deletes those of workloads that are not in it. One that cannot be
    written, for example because its Namespace is gone, is a Gap. Raises StoreError when the existing objects cannot
    be listed."""
    try:
        existing = {
            (each["metadata"]["namespace"], each["metadata"]["name"]): each
            for each in writer.objects(API_VERSION, PROFILE_KIND)
        }
    except WriteError as error:
        raise StoreError(f"workload profiles: {error.message}") from error
    advised = {each.key: _recommended(each) for each in recommendations}
    not_advised = {
        each.key: NotRecommended(at=each.at, reason=each.kind, message=each.reason, resolve=each.resolve)
        for each in abstentions
    }
    gaps: list[Gap] = []
    for key, profile in book.profiles.items():
        if not key.namespace:
            continue
        found = existing.pop((key.namespace, name_of(key)), None)
        status = replace(_summary(profile), recommendation=advised.get(key), abstention=not_advised.get(key))
        try:
            _write(writer, key, found, status)
        except (WriteError, FormError) as error:
            gaps.append(Gap(kind=GapKind.BAD_INPUT, what=f"profile of {key}", detail=f"It is not written: {error}"))
    for object_ in existing.values():
        try:
            writer.delete(ref_of(object_))
        except WriteError as error:
            name = f"{object_['metadata']['namespace']}/{object_['metadata']['name']}"
            gaps.append(
                Gap(kind=GapKind.BAD_INPUT, what=f"workload profile {name}", detail=f"It could not be deleted: {error}")
            )
    return tuple(gaps)


def name_of(key: WorkloadKey) -> str:
    """Readable, and unique by a digest: 'job-train-main-a100-1f3c…'."""
    kind, *_, name = key.workload.split("/")
    words = re.sub(r"[^a-z0-9]+", "-", f"{kind}-{name}-{key.container}-{key.gpu_model}-{key.mig_profile}".lower())
    digest = blake2b(repr((key.workload, key.container, key.gpu_model, key.mig_profile)).encode(), digest_size=6)
    return f"{words.strip('-')[:_NAME_LENGTH].strip('-')}-{digest.hexdigest()}"


def _write(writer: ClusterWriter, key: WorkloadKey, found: Object | None, status: WorkloadProfileStatus) -> None:
    if found is None:
        spec = WorkloadProfileSpec(
            workload=key.workload, container=key.container, gpu_model=key.gpu_model, mig_profile=key.mig_profile
        )
        metadata = {"name": name_of(key), "namespace": key.namespace}
        found = writer.create(
            {"apiVersion": API_VERSION, "kind": PROFILE_KIND, "metadata": metadata, "spec": to_api(spec)}
        )
    old: Mapping[str, Any] = found.get("status") or {}
    if _says_the_same(old, status):
        return
    generation = int(found["metadata"].get("generation", 1))
    new = to_api(replace(status, observed_generation=generation, conditions=(_advised(old, status, generation),)))
    writer.patch(ref_of(found), {"status": difference(old, new)}, subresource="status")


def _says_the_same(old: Mapping[str, Any], new: WorkloadProfileStatus) -> bool:
    try:
        was = from_api(old, WorkloadProfileStatus)
    except FormError:
        return False
    if was.as_of is None or new.as_of is None:
        return False
    return was.as_of.date() == new.as_of.date() and _decision(was) == _decision(new)


def _advised(old: Mapping[str, Any], new: WorkloadProfileStatus, generation: int) -> ApiCondition:
    """The condition Advised. It keeps its time while its status does not change."""
    advised, not_advised = new.recommendation, new.abstention
    at = new.as_of
    if advised is not None:
        status, reason, message, at = ConditionStatus.TRUE, ADVISED, advised.message, advised.at
    elif not_advised is not None:
        status, reason = ConditionStatus.FALSE, camel_enum(not_advised.reason)
        message, at = not_advised.message, not_advised.at
    else:
        status, reason, message = ConditionStatus.UNKNOWN, "Pending", "It was not evaluated yet."
    assert at is not None
    for each in from_api(old, WorkloadProfileStatus).conditions if old else ():
        if (each.type, each.status) == (ADVISED, status) and each.observed_generation:
            at = each.last_transition_time
    return ApiCondition(
        type=ADVISED,
        status=status,
        observed_generation=generation,
        last_transition_time=at,
        reason=reason,
        message=message,
    )


def _decision(status: WorkloadProfileStatus) -> tuple[object, ...]:
    """The fields that a person would act on."""
    advised, not_advised = status.recommendation, status.abstention
    return (
        None if advised is None else (advised.target, advised.patch),
        None if not_advised is None else not_advised.reason,
    )


def _summary(profile: WorkloadProfile) -> WorkloadProfileStatus:
    busy = profile.mean("busy_ratio")
    return WorkloadProfileStatus(
        as_of=profile.as_of,
        first_seen=profile.first_seen,
        last_seen=profile.last_seen,
        coverage_ratio=round(profile.coverage_ratio, 3),
        observed_gpu_hours=round(profile.observed_seconds / 3600, 1),
        gpus_per_pod=profile.gpus_per_pod,
        busy_ratio=None if busy is None else round(busy, 3),
        memory_peak_bytes=max((round(run.peak_bytes) for run in profile.runs if run.peak_bytes), default=None),
    )


def _recommended(given: Recommendation) -> Recommended:
    chosen = given.chosen
    saving = chosen.projected_saving_per_week
    return Recommended(
        at=given.at,
        target=chosen.target.name,
        resource=chosen.target.resource,
        speed_low_ratio=round(chosen.speed.low_ratio, 3),
        speed_likely_ratio=round(chosen.speed.likely_ratio, 3),
        projected_saving_per_week=None if saving is None else round(saving, 2),
        currency="" if saving is None else given.currency,
        saving_gpu_hours_per_week=round(chosen.projected_saving_gpu_hours_per_week, 1),
        confidence_ratio=round(given.confidence_ratio, 3),
        message=given.reason,
        patch=json.dumps(given.change.patch, sort_keys=True) if given.change.patch else "",
        prerequisites=given.change.prerequisites,
        caveats=given.caveats,
    )
