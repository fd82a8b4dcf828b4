"""What the taint of a Node does to gangs that Kueue (0.17 and later) placed there by their topology. Pure.

Once no Pod of such a gang runs on a Node with an untolerated NoSchedule, Kueue gives the gang another, or evicts all of
it. Until then it ends each Pod that is created anew for that Node (kueue#14917). Recorded: tests/fixtures/kueue.
"""

from collections.abc import Iterable
from datetime import timedelta

from gpuwatch.act.placement import label_of, tolerates
from gpuwatch.act.plan.facts import PlanFacts
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.cluster import HOSTNAME, Assigned, Gang, Taint
from gpuwatch.facts.model.decision import ActionKind, Candidate
from gpuwatch.facts.model.remediation import Proposal

_KILLS = 3
"""One may follow a taint, and a second one its owner's retry. A third one shows that it does not end by itself."""


def _moved(taint: Candidate | Proposal, facts: PlanFacts) -> Iterable[tuple[Gang, Assigned, int, int]]:
    """Gangs that the taint moves; how many Pods of each are put on its Nodes, and run there."""
    taints = [Taint(keys.DEGRADED, cause, "NoSchedule") for cause in taint.detectors]
    names = facts.nodes.keys() & set(taint.nodes if taint.action is ActionKind.TAINT_NODE else ())
    hosts = {label_of(facts.nodes[name], HOSTNAME) for name in names}
    for gang in facts.snapshot.cluster.gangs if names else ():
        if gang.assigned is not None:
            members = facts.members[gang.id]
            here = [pod for pod in members if pod.node in names]
            put = sum(count for host, count in gang.assigned.pods.items() if host in hosts) or len(here)
            if put and not all(tolerates(pod.placement.tolerations, each) for pod in members for each in taints):
                yield gang, gang.assigned, put, sum(pod.phase == "Running" and not pod.deleting for pod in here)


def consequence(taint: Candidate, facts: PlanFacts) -> str:
    """What the taint causes beyond its Node, in sentences; '' where it moves no gang."""
    told = []
    for gang, assigned, put, running in _moved(taint, facts):
        told.append(f"Kueue placed {put} Pod{'s' * (put > 1)} of {gang.id} there by its topology.")
        begins = "From NoSchedule on, as none runs there,"
        if running:
            begins = f"NoSchedule ends none that runs. Once none of its Pods runs there ({running} now),"
        told.append(f"{begins} Kueue gives it another Node, or without one evicts and requeues all of it.")
        told += ["Until then it ends each Pod that is created anew for this Node."] if running > 1 else []
        told += [f"Kueue moves it off {each} already; if it loses two, it is evicted." for each in assigned.replaced]
    return " ".join(told)


def sent_back(taint: Candidate | Proposal, facts: PlanFacts) -> str:
    """Why a person decides about this taint: Kueue sends a gang back again and again. '' where it does not, and for
    other actions. Its Pods that Kueue ended within the hour count, and all its evictions if the last was within it."""
    since, pods = facts.snapshot.at - timedelta(hours=1), facts.snapshot.cluster.pods
    for gang, assigned, _, _ in _moved(taint, facts):
        owners = {pod.workload for pod in facts.members[gang.id]}
        count = sum(pod.sent_back is not None and pod.sent_back >= since and pod.workload in owners for pod in pods)
        if assigned.evicted_at is not None and assigned.evicted_at >= since:
            count += assigned.evictions  # Kueue dates no other
        if count >= _KILLS:
            name, space = gang.id.rpartition("/")[2], gang.namespace
            return (
                f"Kueue sent {gang.id} or Pods of it back {count} times within an hour, and this taint moves it. "
                f"`kueuectl stop workload {name} -n {space}`, then `resume`, lets Kueue place all of it anew, behind "
                "what waits in its queue."
            )
    return ""
