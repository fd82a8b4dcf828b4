"""GPUs that report, and of which no rule knows whether they are well."""

from collections.abc import Iterable, Sequence

from gpuwatch.facts.model.decision import Advice, Finding, FindingKind, Subject, Verdict
from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.judge.fleet import Fleet, PhysicalGpu, Tells, conclude, on_node
from gpuwatch.judge.rule import without_statistics

_TELLS = Tells(FindingKind.HEALTH_UNKNOWN, "no rule could tell the health of the device", "info: fix_monitoring")


def _unassessed(fleet: Fleet) -> Iterable[Finding]:
    """One finding for each reporting GPU that no rule before could assess, or for a machine that has only such GPUs."""
    for home, gpus in fleet.at_home.items():
        left = [gpu for gpu in gpus if gpu.uuid not in fleet.assessed]
        if len(left) < 2 or len(left) < len(gpus) or fleet.everything:
            yield from (_health_unknown(gpu, "it reports") for gpu in left)
        else:
            yield _health_unknown(on_node(home), f"its {len(gpus)} GPUs report", left)


def _health_unknown(on: PhysicalGpu | Subject, who: str, gpus: Sequence[PhysicalGpu] = ()) -> Finding:
    return conclude(
        on,
        _TELLS,
        Verdict.UNKNOWN,
        f"{who}, but no health rule has the signals or the samples that it needs",
        advice=Advice.FIX_MONITORING,
        missing=[Signal.XID_CODE, Signal.ROW_REMAP_FAILED_STATE, Signal.ECC_DBE_VOLATILE_TOTAL],
        gpus=gpus,
        node=gpus[0].lead.node if gpus else None,
    )


HEALTH_UNKNOWN = without_statistics(_TELLS, _unassessed)
