"""Interactive sessions: Kubeflow's Notebooks and Workspaces, and DevWorkspaces."""

from gpuwatch.facts.frameworks import common
from gpuwatch.facts.frameworks.framework import Deletes, Framework, Kind, Nature, Never, ReleaseRule, Template, untried
from gpuwatch.facts.frameworks.objects import pointer, stamp
from gpuwatch.facts.frameworks.owner import OwnerSpec

_STOPPED = "kubeflow-resource-stopped"
_LOST = Never("A session's state is lost when it is moved.")


class DevWorkspaceSpec(OwnerSpec, frozen=True):
    started: bool | None = None


NOTEBOOKS = Framework(
    name="Notebook",
    kinds=(
        Kind(
            "kubeflow.org",
            "Notebook",
            ("v1", "v1beta1"),
            suspended=lambda _, annotations: _STOPPED in annotations,
            nature=Nature.SESSION,
            independent=True,
            pod_suffix=r"\d+",
            release=ReleaseRule(
                fields=lambda _, at: ((pointer("metadata", "annotations", _STOPPED), stamp(at)),),
                deletes=Deletes("nothing: its StatefulSet, which has no volume templates, is scaled to zero", None),
                holds=common.counts("/status/readyReplicas"),
                any_value=True,
            ),
            move=_LOST,
            template=Template(common.under("template", "spec"), note="The session restarts."),
        ),
        Kind(
            "kubeflow.org",
            "Workspace",
            ("v1beta1",),
            metadata_only=True,
            nature=Nature.SESSION,
            release=untried("Workspace"),
            move=_LOST,
        ),
        Kind(
            "workspace.devfile.io",
            "DevWorkspace",
            ("v1alpha2",),
            spec=DevWorkspaceSpec,
            suspended=lambda spec, _: spec.started is False,
            nature=Nature.SESSION,
            release=untried("DevWorkspace"),
            move=_LOST,
        ),
    ),
    annotations=(_STOPPED,),
)
