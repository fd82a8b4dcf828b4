"""A few hours of dcgm-exporter's metrics in which each rule has a GPU or Pod to find, beside some just short of it.

They are in `sick_series.yaml`. SHOWN: section of docs/rules/ → names of all that its query has to show.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import yaml

from detect.situations.notation import values

NOW = 1_760_000_400
STEP_SECONDS = 30
LENGTH = 8 * 3600 // STEP_SECONDS + 1

_DATA = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_GPU, _POD = 'UUID="{}",Hostname="host"', 'exported_namespace="ml",exported_pod'
_LABELS = {
    "gpus": _GPU,
    "pods": f'UUID="of {{0}}",Hostname="host",{_POD}="{{0}}"',
    "share-a": f'{_GPU},{_POD}="share-a"',
    "share-b": f'{_GPU},{_POD}="share-b"',
}
SHOWN: dict[str, set[str]] = {section: set(names) for section, names in _DATA["shown"].items()}


def _series() -> Iterator[tuple[str, str | float | list[object]]]:
    """Each series with its values; a list is repeated."""
    for section, labels in _LABELS.items():
        for metric, said in _DATA[section].items():
            for name, each in said.items():
                yield f"{metric}{{{labels.format(name)}}}", each
    for job, nodes in _DATA["jobs"].items():
        for number, node in enumerate(nodes):
            pod = f'namespace="ml",pod="{job}-{number}",node="{node}"'
            yield f'kube_pod_info{{{pod},created_by_kind="Job",created_by_name="{job}"}}', 1
    yield from _DATA["others"].items()


def openmetrics() -> str:
    """Everything as text for `promtool tsdb create-blocks-from openmetrics`: eight hours, samples 30 s apart."""
    lines: dict[str, list[str]] = defaultdict(list)
    for series, said in _series():
        found = values(" ".join(map(str, said * LENGTH)) if isinstance(said, list) else said, LENGTH)
        for number in np.flatnonzero(~np.isnan(found)):
            at = NOW - (LENGTH - 1 - number) * STEP_SECONDS
            lines[series.partition("{")[0]].append(f"{series} {found[number]} {at}")
    return "\n".join(line for each in lines.values() for line in each) + "\n# EOF\n"
