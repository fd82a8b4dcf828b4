"""Settings: the policies of the rooms, filled from a YAML file and `GPUWATCH_*` variables. Precedence: command line,
environment variables, file, defaults in the rooms. Unknown keys and variables are errors: a typo in a budget must not
become the default budget."""

import dataclasses
import difflib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import yaml
from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from gpuwatch.account.money import Discount
from gpuwatch.act.execute.policy import ExecutePolicy
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.app.settings.run_policy import ControllerPolicy
from gpuwatch.app.settings.service_variables import service_variables
from gpuwatch.facts.catalog.tables import CatalogError, operators_file
from gpuwatch.judge.health.assess import HealthPolicy
from gpuwatch.judge.idle.assess import IdlePolicy
from gpuwatch.judge.misfit.assess import MisfitPolicy
from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.size.collect import FetchPolicy
from gpuwatch.size.mig_plan import MigPlanPolicy
from gpuwatch.size.policy import AdvicePolicy, ProfilePolicy
from gpuwatch.sources.telemetry.connection import Connection

PREFIX = "GPUWATCH_"
DELIMITER = "__"


class SettingsError(Exception):
    """The message lists every fault with its place."""


class Settings(BaseSettings):
    """Everything that can be set. `GPUWATCH_PLAN__BUDGET_RATIO=0.05` sets plan.budget_ratio."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=DELIMITER, extra="forbid", frozen=True, validate_default=True
    )

    prometheus: Connection | None = None
    health: HealthPolicy = HealthPolicy()
    idle: IdlePolicy = IdlePolicy()
    misfit: MisfitPolicy = MisfitPolicy()
    plan: PlanPolicy = PlanPolicy()
    execute: ExecutePolicy = ExecutePolicy()
    fetch: FetchPolicy = FetchPolicy()
    profiles: ProfilePolicy = ProfilePolicy()
    advice: AdvicePolicy = AdvicePolicy()
    mig_plan: MigPlanPolicy = MigPlanPolicy()
    delivery: DeliveryPolicy = DeliveryPolicy()
    run: ControllerPolicy = ControllerPolicy()
    state: Path | None = None
    """File with the profiles, so that a run fetches only new data, and with past recommendations."""
    prices: Path | None = None
    """CSV or YAML with the operator's own prices of instance types; they override the catalog's."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    """Of all sums of money: ISO 4217, three capital letters. Prices in another currency do not count. The catalog's are
    in USD, so EUR here needs `prices` in EUR."""
    cluster_name: str = ""
    """Name of the cluster in the title of the weekly report."""
    team_label: str = ""
    """Label of Namespaces whose value is their team in the ledger and the weekly report. A Namespace without it is a
    team of its own, and so is each one if this is empty."""
    discounts: tuple[Discount, ...] = ()
    """What you pay of the list prices, such as [{capacity: spot, price_ratio: 0.35}, {instance_types: "p5.*",
    price_ratio: 0.6}]. The first entry that covers a Node counts. capacity: on_demand, spot or reserved, by the Node's
    labels."""
    xid_overrides: Path | None = None
    """YAML with the operator's own classes of XIDs, `xids: {79: {class: fatal, reason: …}}`, over the catalog's."""

    @property
    def namespace(self) -> str:
        """Of the Lease and of the pause: run.namespace, else this Pod's, else that of deploy/."""
        return self.run.namespace or os.environ.get("POD_NAMESPACE", "") or "gpuwatch"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings passes all of them by name
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings passes all of them by name
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings passes all of them by name
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings passes all of them by name
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # load_settings puts the variables over the file


def load_settings(file: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """SettingsError names every fault: unknown keys with the nearest known one, and values out of bounds.

    environment: default is the process's. What a kubelet made of Services is left out of it.
    """
    values = _read(file) if file is not None else {}
    given = os.environ if environment is None else environment
    own = {name: value for name, value in given.items() if name.upper().startswith(PREFIX)}
    of_services = service_variables(own)
    variables = {name: value for name, value in own.items() if name not in of_services}
    faults = [*_unknown_keys(values, Settings, ""), *_unknown_variables(variables), *_unreadable_groups(variables)]
    if faults:
        raise SettingsError("\n".join(faults))
    source = EnvSettingsSource(Settings)
    source.env_vars = {name.lower(): value for name, value in variables.items()}
    try:
        # A Deployment's variable overrides the mounted ConfigMap.
        return Settings(**_over(values, source()))
    except ValidationError as error:
        where = f" (file {file} and {PREFIX}* variables)" if file else f" ({PREFIX}* variables)"
        # Values of a connection or a destination may be secrets, so they are not shown.
        lines = [
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}"
            + ("" if item["loc"][:1] in (("prometheus",), ("delivery",)) else f", got {item['input']!r}")
            for item in error.errors()
        ]
        raise SettingsError("\n".join(line + where for line in lines)) from None


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both, the values of `above` where both have one; mappings key by key."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _read(file: Path) -> dict[str, Any]:
    try:
        values = operators_file(file, yaml.safe_load)
    except CatalogError as error:
        raise SettingsError(str(error)) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise SettingsError(f"{file}: it is no mapping; write it as `plan: {{budget_ratio: 0.05}}`")
    return values


def _fields(kind: object) -> dict[str, Any]:
    """Field → type, of a settings class or a policy; {} for a leaf."""
    if isinstance(kind, type) and issubclass(kind, BaseSettings):
        return {name: _policy(field.annotation) for name, field in kind.model_fields.items()}
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: _policy(hints[field.name]) for field in dataclasses.fields(kind)}
    return {}


def _policy(annotation: object) -> object:
    """The dataclass in `X` or `X | None`."""
    options = getattr(annotation, "__args__", (annotation,))
    return next((item for item in options if dataclasses.is_dataclass(item)), None)


def _unknown_keys(values: Mapping[str, Any], kind: object, path: str) -> Iterator[str]:
    known = _fields(kind)
    for key, value in values.items():
        if key not in known:
            yield f"{path}{key}: there is no such setting{_nearest(str(key), known)}"
        elif isinstance(value, Mapping) and _fields(known[key]):
            yield from _unknown_keys(value, known[key], f"{path}{key}.")


def _unknown_variables(variables: Mapping[str, str]) -> Iterator[str]:
    groups = _fields(Settings)
    known = {PREFIX + name.upper() for name in groups}
    open_ended = set()  # may be mappings with any keys, such as plan.modes
    for name, kind in groups.items():
        for field, below in _fields(kind).items():
            variable = f"{PREFIX}{name}{DELIMITER}{field}".upper()
            known.add(variable)
            known |= {f"{variable}{DELIMITER}{leaf}".upper() for leaf in _fields(below)}
            if below is None:
                open_ended.add(variable)
    for name in sorted(variables):
        upper = name.upper()
        parent = DELIMITER.join(upper.split(DELIMITER)[:2])
        if upper not in known and not (upper.count(DELIMITER) > 1 and parent in open_ended):
            yield f"{name}: there is no such variable{_nearest(upper, known)}"


def _unreadable_groups(variables: Mapping[str, str]) -> Iterator[str]:
    """Variables of a whole group, such as GPUWATCH_PLAN, which are read as JSON. The value may be a secret."""
    for name, value in sorted(variables.items()):
        if _fields(_fields(Settings).get(name.upper().removeprefix(PREFIX).lower())):
            try:
                json.loads(value)
            except ValueError:
                one = f"{name}{DELIMITER}FIELD=VALUE"
                yield f"{name}: its value is no JSON object; set one field as {one}, or all as a JSON object"


def _nearest(name: str, known: Mapping[str, Any] | set[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(sorted(known))}"
