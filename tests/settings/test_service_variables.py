"""A Service may have any name: the variables that a kubelet makes of it set, change and break no setting."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.pod_environment import service_variables
from gpuwatch.app.settings import PREFIX, Settings, SettingsError, load_settings
from gpuwatch.facts.model.decision import ActionKind, Mode

NAMESPACE = "gpuwatch"
MINE = {
    "GPUWATCH_RUN__LISTEN_PORT": "9090",
    "GPUWATCH_PLAN__MODES__RELEASE_GANG": "suggest",
    "GPUWATCH_PROMETHEUS__URL": "http://prometheus:9090",
    "GPUWATCH_PROMETHEUS__HEADERS__TEAM_PORT": "7",
    "gpuwatch_plan__budget_ratio": "0.05",
}
"""What a person wrote into the Pod."""
PATHS = [
    f"gpuwatch-{group}--{field.name}".replace("_", "-")
    for group, info in Settings.model_fields.items()
    for kind in (info.annotation, *getattr(info.annotation, "__args__", ()))
    if dataclasses.is_dataclass(kind)
    for field in dataclasses.fields(kind)
]
"""Names of Services that make the beginning of a setting's variable."""
WORDS = ["service", "port", "host", "80", "8080", "tcp", "udp", "proto", "addr", "", "a", "run", "listen"]

words = st.lists(st.sampled_from(WORDS), max_size=5).map(lambda each: "".join(f"-{word}" for word in each))
names = st.one_of(
    st.builds(lambda begin, end: f"{begin}{end}".rstrip("-"), st.sampled_from(["gpuwatch", *PATHS]), words),
    st.from_regex(r"gpuwatch[a-z0-9-]{0,30}[a-z0-9]", fullmatch=True),
    st.sampled_from(PATHS).map(lambda each: each.removesuffix("-port")),
)
port_names = st.one_of(words.map(lambda each: each.strip("-")[:15]), st.from_regex(r"[a-z0-9-]{1,15}", fullmatch=True))
ports = st.builds(
    lambda name, port, protocol: {"name": name, "port": port, "protocol": protocol},
    port_names,
    st.sampled_from([80, 8080]) | st.integers(1, 65535),
    st.sampled_from(["TCP", "UDP", "SCTP"]),
)
addresses = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str) | st.sampled_from(["None", "::ffff:1.2.3.4"])


def service(name: str, listed: list[dict[str, Any]], address: str = "10.96.0.10") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": {"clusterIP": address, "ports": listed}}


services = st.lists(st.builds(service, names, st.lists(ports, min_size=1, max_size=4), addresses), max_size=4)


def variables(*listed: dict[str, Any]) -> dict[str, str]:
    return service_variables(listed, NAMESPACE, linked=True)


@given(services)
def test_no_service_sets_changes_or_breaks_a_setting(found: list[dict[str, Any]]) -> None:
    made = variables(*found)
    assert load_settings(None, made) == load_settings(None, {})
    assert load_settings(None, {**made, **MINE}) == load_settings(None, MINE)


@given(services, st.sampled_from(["GPUWATCH_PLAN__BUGET_RATIO", "GPUWATCH_RUN__PORT", "GPUWATCH_X"]))
def test_what_a_person_misspelt_is_refused_beside_any_service(found: list[dict[str, Any]], wrong: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {**variables(*found), wrong: "1"})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == [wrong]


@pytest.mark.parametrize(
    "wrong",
    [
        {"GPUWATCH_PORT": "8080"},
        {"GPUWATCH_PORT": "tcp://10.96.0.10:8080"},
        {"GPUWATCH_SERVICE_PORT": "8080"},
        {"GPUWATCH_SERVICE_HOST": "10.96.0.10"},
        {"GPUWATCH_SERVICE_PORT_HTTP": "8080"},
        {"GPUWATCH_RUN__SERVICE_PORT": "8080"},
        {"gpuwatch_service_port": "8080"},
    ],
    ids=str,
)
def test_a_name_like_that_of_a_service_is_refused_where_there_is_none(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=f"^{next(iter(wrong))}: there is no such variable"):
        load_settings(None, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"GPUWATCH_PORT": "9090"},
        {"GPUWATCH_SERVICE_PORT": "9090"},
        {"GPUWATCH_SERVICE_HOST": "my-host"},
        {"GPUWATCH_SERVICE_PORT_HTTP": "9090"},
        {"GPUWATCH_PORT_8080_TCP": "udp://10.96.0.10:8080"},
    ],
    ids=str,
)
def test_another_value_than_the_services_is_a_persons_and_refused(wrong: dict[str, str]) -> None:
    made = variables(service("gpuwatch", [{"name": "http", "port": 8080}]))
    assert set(wrong) < set(made)
    with pytest.raises(SettingsError) as caught:
        load_settings(None, {**made, **wrong})
    assert str(caught.value).count("there is no such variable") == 1


def test_a_persons_port_is_in_force_beside_a_service_that_makes_its_name() -> None:
    made = variables(service("gpuwatch-run--listen", [{"port": 80}]))
    assert made["GPUWATCH_RUN__LISTEN_PORT"] == "tcp://10.96.0.10:80"
    assert load_settings(None, made).run.listen_port == 8080
    assert load_settings(None, {**made, "GPUWATCH_RUN__LISTEN_PORT": "9090"}).run.listen_port == 9090
    with pytest.raises(SettingsError, match=r"run\.listen_port: "):
        load_settings(None, {**made, "GPUWATCH_RUN__LISTEN_PORT": "http"})


def test_a_mapping_with_any_keys_gets_none_from_services() -> None:
    made = variables(*(service(f"gpuwatch-{name}", [{"port": 80}]) for name in ("plan--modes", "prometheus--matchers")))
    mine = {"GPUWATCH_PLAN__MODES__RELEASE_GANG": "suggest", "GPUWATCH_PROMETHEUS__URL": "http://p"}
    settings = load_settings(None, {**made, **mine})
    assert settings.plan.modes == {ActionKind.RELEASE_GANG: Mode.SUGGEST}
    assert settings.prometheus is not None
    assert settings.prometheus.matchers == {}


def test_the_process_environment_is_read_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made = variables(service("gpuwatch", [{"port": 80}]), service("gpuwatch-run--listen", [{"port": 80}]))
    for name, value in {**made, "GPUWATCH_CURRENCY": "EUR"}.items():
        monkeypatch.setenv(name, value)
    assert all(name.startswith(PREFIX) for name in made)
    assert (load_settings().currency, load_settings().run.listen_port) == ("EUR", 8080)
    assert load_settings(None, {}).currency == "USD"  # what is given takes the process's place
