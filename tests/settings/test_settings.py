"""Settings: where values come from, and that nothing wrong is taken for a default."""

from pathlib import Path

import pytest

from gpuwatch.app.settings import SettingsError, load_settings
from gpuwatch.facts.model.decision import ActionKind, Mode


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("GPUWATCH_"):
            monkeypatch.delenv(name)


def written(folder: Path, text: str) -> Path:
    file = folder / "gpuwatch.yaml"
    file.write_text(text)
    return file


def test_defaults_observe_and_have_no_prometheus() -> None:
    settings = load_settings()
    assert settings.prometheus is None
    assert {settings.plan.mode(action) for action in ActionKind} == {Mode.OBSERVE}


def test_the_file_of_the_readme(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
prometheus:
  url: https://mimir.example/prometheus
  bearer_token_file: /var/run/secrets/mimir/token
  headers: {X-Scope-OrgID: gpu-team}
plan:
  budget_ratio: 0.05
  modes: {release_gang: suggest}
""",
    )
    settings = load_settings(file)
    assert settings.prometheus is not None
    assert settings.prometheus.headers == {"X-Scope-OrgID": "gpu-team"}
    assert settings.plan.budget_ratio == 0.05
    assert settings.plan.mode(ActionKind.RELEASE_GANG) is Mode.SUGGEST


def test_a_variable_wins_over_the_file_and_leaves_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "plan: {budget_ratio: 0.05, checkpoint_interval_hours: 12}")
    monkeypatch.setenv("GPUWATCH_PLAN__BUDGET_RATIO", "0.2")
    plan = load_settings(file).plan
    assert (plan.budget_ratio, plan.checkpoint_interval_hours) == (0.2, 12)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("plan: {buget_ratio: 0.05}", r"plan\.buget_ratio: there is no such setting; did you mean budget_ratio\?"),
        ("plans: {}", r"plans: there is no such setting; did you mean plan\?"),
        ("plan: {budget_ratio: 5}", r"plan\.budget_ratio is 5"),
        ("plan: {budget_ratio: much}", r"plan\.budget_ratio: .* got 'much'"),
        ("plan: {modes: {release_gang: yes please}}", r"plan\.modes\.release_gang"),
        ("- a list", "it is no mapping; write it as `plan: "),
        ("plan: [unclosed", "is no valid YAML"),
        ("prometheus: {url: 'prom:9090'}", "url: must begin with http"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        load_settings(written(tmp_path, text))


def test_every_fault_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(written(tmp_path, "plan: {a: 1, b: 2}"))
    assert str(caught.value).count("there is no such setting") == 2


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"GPUWATCH_PLAN__BUGET_RATIO: there is no such variable; did you mean"):
        load_settings(environment={"GPUWATCH_PLAN__BUGET_RATIO": "1", "HOME": "/root"})


@pytest.mark.parametrize("name", ["GPUWATCH_PLAN", "GPUWATCH_PROMETHEUS"])
def test_a_variable_of_a_whole_group_that_is_no_json_is_named_and_its_value_not_shown(name: str) -> None:
    with pytest.raises(SettingsError) as raised:
        load_settings(environment={name: "http://user:secret@x"})
    assert str(raised.value).startswith(f"{name}: its value is no JSON object; set one field as {name}__FIELD=VALUE")
    assert "secret" not in str(raised.value)


def test_a_variable_of_a_whole_group_is_a_json_object() -> None:
    assert load_settings(environment={"GPUWATCH_PLAN": '{"budget_ratio": 0.05}'}).plan.budget_ratio == 0.05


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: cannot be read"):
        load_settings(tmp_path / "none.yaml")


def test_no_secret_is_shown(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(written(tmp_path, "prometheus: {url: https://p, bearer_token: s3cr3t-t0ken, username: bob}"))
    assert "s3cr3t" not in str(caught.value)


def test_a_constant_of_the_estimates_is_no_setting(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("advice: {target_speed_ratio: 0.95}\n")
    assert load_settings(file, {}).advice.target_speed_ratio == 0.95
    file.write_text("advice: {speed: {tier_share_ratio: 0.2}, target_speed_ratoi: 0.9}\n")
    with pytest.raises(SettingsError) as caught:
        load_settings(file, {})
    assert "advice.speed: there is no such setting" in str(caught.value)
    assert "target_speed_ratoi: there is no such setting; did you mean target_speed_ratio?" in str(caught.value)
    with pytest.raises(SettingsError, match="GPUWATCH_ADVICE__SPEED__TIER"):
        load_settings(None, {"GPUWATCH_ADVICE__SPEED__TIER": "1"})


def test_the_currency_of_sums_is_three_capital_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings(None, {}).currency == "USD"
    assert load_settings(written(tmp_path, "currency: EUR"), {}).currency == "EUR"
    monkeypatch.setenv("GPUWATCH_CURRENCY", "CHF")
    assert load_settings().currency == "CHF"
    monkeypatch.delenv("GPUWATCH_CURRENCY")
    for wrong in ("eur", "€", "EURO", "''"):
        with pytest.raises(SettingsError, match=r"currency: .*pattern"):
            load_settings(written(tmp_path, f"currency: {wrong}"), {})
