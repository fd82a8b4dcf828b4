"""Cards and their nodes.

The physics of a model is chosen so that the A100 part of a fleet comes near the telemetry of the Acme Kalos cluster
(idle 60–66 W, a CUDA context without work 85–100 W, full load at the 400 W limit); floors and contexts of H100 and T4
are those of real exposition pages (67 W idle and 114 W with a model on H100; 17 and 29 W on T4).
"""

import uuid
from dataclasses import dataclass

import msgspec
import numpy as np

from gpuwatch.facts.catalog.tables import checked, packaged, read_csv
from lab.simulate.plan import FleetPlan


class CardModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU model. Demand in watts = floor + context + sm·SM + tensor·TENSOR + dram·DRAM, cut at the limit."""

    name: str  # in the names of its nodes
    pool: str
    label: str  # modelName as the exporter prints it
    product: str  # nvidia.com/gpu.product
    family: str
    compute_major: int
    compute_minor: int
    memory_mib: int
    reserved_mib: int
    floor_watts: float
    context_watts: float
    sm_watts: float
    tensor_watts: float
    dram_watts: float
    limit_watts: float
    idle_clock_mhz: int
    max_clock_mhz: int
    idle_memory_clock_mhz: int
    memory_clock_mhz: int
    celsius_per_watt: float
    slowdown_celsius: float
    nvlink_megabytes_per_second: float  # 0: no NVLink
    pcie_bytes_per_second: float
    pcie_generation: int  # 16 lanes each
    has_memory_sensor: bool
    has_row_remap: bool
    instance_type: str
    machine: str


_MODELS = ("a100", "h100", "l4", "t4")


def card_models(text: str, file: str) -> tuple[CardModel, ...]:
    """One model per column, in the order of _MODELS. Raises CatalogError that names file, column and field."""
    rows = list(read_csv(text, file, ("field", *_MODELS)))
    return tuple(
        checked(
            {"name": model, **{row.text("field"): row.text(model) for row in rows}},
            CardModel,
            f"{file}, column {model!r}",
            strict=False,
        )
        for model in _MODELS
    )


A100, H100, L4, T4 = card_models(packaged("cards.csv", "lab.simulate"), "cards.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A MIG instance of an A100-80GB. `share` is its part of the compute slices."""

    gi: str
    profile: str
    share: float
    memory_mib: int


def _instances(*profiles: str) -> tuple[Instance, ...]:
    """GI ids as dcgm-exporter numbers them on an A100: 1 and 2 for 3g, 3 to 6 for 2g, 7 to 13 for 1g."""
    following = {"3g.40gb": 1, "2g.20gb": 3, "1g.10gb": 7}
    memory = {"3g.40gb": 40192, "2g.20gb": 19968, "1g.10gb": 9728}
    made = []
    for profile in profiles:
        made.append(
            Instance(gi=str(following[profile]), profile=profile, share=int(profile[0]) / 7, memory_mib=memory[profile])
        )
        following[profile] += 1
    return tuple(made)


MIG_LAYOUTS = (_instances("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"), _instances(*["1g.10gb"] * 7))


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One physical GPU. The factors are its manufacturing spread: at equal work another card of the model draws
    up to 22 % more or less, 8 % on average (arXiv 2208.11035)."""

    index: int
    uuid: str
    pci_bus_id: str
    power_factor: float
    floor_factor: float
    thermal_factor: float
    ambient_celsius: float
    instances: tuple[Instance, ...] = ()

    def instance(self, gi: str) -> Instance | None:
        return next((one for one in self.instances if one.gi == gi), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A node with its cards and the dcgm-exporter that runs on it."""

    index: int
    name: str
    uid: str
    pool: str
    role: str  # which workloads it is for: gang, job8, mixed, serving, shared, mig, contended
    model: CardModel
    cards: tuple[Card, ...]
    replicas: int  # of the time-slicing device plugin; 1: not shared
    address: str
    exporter_pod: str
    exporter_address: str
    vocabulary: str
    extended: bool
    has_health_watches: bool
    has_xid_totals: bool  # DCGM_EXP_XID_ERRORS_TOTAL, from 4.8.3 on
    prints_zero_xid: bool  # exporters before DCGM 4.5 print 0 before the first XID, later ones nothing
    driver_version: str
    age_days: float
    scrape_offset_seconds: float

    @property
    def slices_mig(self) -> bool:
        return any(card.instances for card in self.cards)

    def memory_mib(self, instance: Instance | None) -> float:
        """What Pods can use of an instance, or of a whole card."""
        return float(self.model.memory_mib - self.model.reserved_mib if instance is None else instance.memory_mib)


# One block of 64 GPUs, in the order in which smaller fleets get a part of it: (role, model, GPUs).
_BLOCK = (
    ("mixed", A100, 8),
    ("job8", A100, 8),
    ("mixed", H100, 8),
    ("serving", L4, 4),
    ("shared", T4, 4),
    ("mig", A100, 8),
    ("gang", A100, 8),
    ("gang", A100, 8),
    ("job8", H100, 8),
)


def build_machines(plan: FleetPlan) -> tuple[Machine, ...]:
    """Exactly `plan.gpus` cards: blocks of 64 repeated, the last node smaller where they do not fit."""
    rng = plan.rng("machines")
    machines: list[Machine] = []
    counts: dict[str, int] = {}
    left = plan.gpus
    # Extended exporters are spread evenly, not drawn at random, so that a small fleet has both kinds.
    credit = float(rng.random())
    while left > 0:
        for role, model, usual in _BLOCK:
            size = min(left, usual if usual < 8 else plan.gpus_per_node)
            if size == 0:
                break
            left -= size
            credit += plan.extended_share
            extended = credit >= 1.0
            credit -= float(extended)
            counts[model.label] = counts.get(model.label, 0) + 1
            machines.append(make_machine(plan, rng, len(machines), role, model, size, counts[model.label], extended))
    return tuple(machines)


def make_machine(
    plan: FleetPlan,
    rng: np.random.Generator,
    index: int,
    role: str,
    model: CardModel,
    size: int,
    number: int,
    extended: bool,
) -> Machine:
    vocabulary = plan.vocabulary
    if vocabulary == "mixed":
        vocabulary = "dcgm49" if index % 2 else "dcgm"
    prints_zero_xid = vocabulary == "dcgm" and bool(rng.random() < 0.3)
    rack, position = divmod(index, 200)
    return Machine(
        index=index,
        name=f"{model.name}-node-{number:02d}",
        uid=make_uid(rng),
        pool=f"{model.pool}{'-mig' if role == 'mig' else ''}",
        role=role,
        model=model,
        cards=_cards(rng, size, mig=role == "mig"),
        replicas=4 if role in ("shared", "contended") else 1,
        address=f"10.20.{rack}.{position + 5}",
        exporter_pod=f"nvidia-dcgm-exporter-{make_suffix(rng)}",
        exporter_address=f"10.{42 + rack}.{position}.7:9400",
        vocabulary=vocabulary,
        extended=extended,
        has_health_watches=extended and bool(rng.random() < 0.5),
        has_xid_totals=extended and not prints_zero_xid and bool(rng.random() < 0.5),
        prints_zero_xid=prints_zero_xid,
        driver_version="535.183.06" if prints_zero_xid else "580.105.08",
        age_days=float(rng.uniform(20, 400)),
        scrape_offset_seconds=round(float(rng.uniform(0, plan.interval_seconds)), 3),
    )


def _cards(rng: np.random.Generator, size: int, *, mig: bool) -> tuple[Card, ...]:
    room = rng.normal(25.5, 1.8)
    cards = []
    for index in range(size):
        layout = MIG_LAYOUTS[index % 2] if mig and size - index <= 2 and size > 2 else ()
        cards.append(
            Card(
                index=index,
                uuid=f"GPU-{make_uid(rng)}",
                pci_bus_id=f"00000000:{0x07 + index * 0x11:02X}:00.0",
                power_factor=float(np.clip(rng.normal(1.0, 0.05), 0.85, 1.22)),
                floor_factor=float(np.clip(rng.normal(1.0, 0.03), 0.93, 1.10)),
                thermal_factor=float(np.clip(rng.normal(1.0, 0.08), 0.8, 1.25)),
                ambient_celsius=float(room + rng.normal(0.0, 1.8)),
                instances=layout,
            )
        )
    return tuple(cards)


def make_uid(rng: np.random.Generator) -> str:
    return str(uuid.UUID(bytes=rng.bytes(16), version=4))


def make_suffix(rng: np.random.Generator, length: int = 5) -> str:
    """A random name suffix in Kubernetes' alphabet: no vowels, no 0, 1 or 3."""
    return "".join(rng.choice(list("bcdfghjklmnpqrstvwxz2456789"), length))
