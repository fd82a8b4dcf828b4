"""The names of a simulated fleet: `names.yaml`."""

import msgspec
import yaml

from gpuwatch.catalog.tables import checked, packaged


class Names(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """workloads, images: by kind of work. xids: the exporter's text of each code."""

    teams: tuple[str, ...]
    products: tuple[str, ...]
    people: tuple[str, ...]
    workloads: dict[str, tuple[str, ...]]
    images: dict[str, str]
    xids: dict[int, str]


NAMES = checked(yaml.safe_load(packaged("names.yaml", "gpuwatch.simulate")), Names, "names.yaml")
