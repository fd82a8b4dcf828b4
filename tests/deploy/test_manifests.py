"""The manifests, the image and the settings fit each other, the command line and the model."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.api import Object
from deploy.manifests import DEPLOY, documents
from gpuwatch import __version__
from gpuwatch.act.plan.policy import PlanPolicy
from gpuwatch.act.remediations import PAUSE
from gpuwatch.app.cli.main import cli
from gpuwatch.app.settings import load_settings
from gpuwatch.facts.frameworks import keys
from gpuwatch.facts.model.decision import ActionKind, Mode

ROOT = DEPLOY.parent
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
FOLDERS = ("observe", "base", "report")


def found(place: str, kind: str, name: str = "gpuwatch") -> Object:
    (one,) = (
        each for each in documents(DEPLOY / place) if each["kind"] == kind and each["metadata"]["name"].startswith(name)
    )
    return one


def pod_specs() -> list[dict[str, Any]]:
    job = found("report", "CronJob")["spec"]["jobTemplate"]["spec"]
    return [each["template"]["spec"] for each in (found("base", "Deployment")["spec"], job)]


def test_every_manifest_is_used_or_applied_by_itself() -> None:
    used = {
        (DEPLOY / folder / name).resolve()
        for folder in FOLDERS
        for name in yaml.safe_load((DEPLOY / folder / "kustomization.yaml").read_text())["resources"]
    }
    alone = {*(DEPLOY / "roles").glob("*.yaml"), *(DEPLOY / "optional").glob("*.yaml")}
    elsewhere = DEPLOY / "chart"  # test_chart
    written = {path for path in DEPLOY.rglob("*.yaml") if path.name != "kustomization.yaml"}
    written = {path for path in written if elsewhere not in path.parents}
    assert written == {path for path in used if path.is_file()} | alone
    told = (DEPLOY / "README.md").read_text()
    for path in alone:
        name = path.stem.rpartition("-")[2] if path.stem.startswith("enforce-") else path.name
        assert name in told, f"{path.name} is not in deploy/README.md"


def test_names_are_given_once() -> None:
    every = [each for place in ("base", "report/cronjob.yaml", "roles", "optional") for each in _all(DEPLOY / place)]
    names = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in every]
    assert len(names) == len(set(names))
    assert {namespace for _, namespace, _ in names} == {None, "gpuwatch"}


def _all(place: Path) -> list[Object]:
    if place.is_dir() and not (place / "kustomization.yaml").exists():
        return [each for file in sorted(place.glob("*.yaml")) for each in documents(file)]
    return list(documents(place))


def test_the_settings_are_the_defaults_and_are_understood(tmp_path: Path) -> None:
    data = found("observe", "ConfigMap")["data"]
    file = tmp_path / "settings.yaml"
    file.write_text(data["settings.yaml"])
    settings = load_settings(file, {})
    assert set(settings.plan.modes.values()) == {Mode.OBSERVE}
    assert {ActionKind.TAINT_NODE, ActionKind.EVICT_GANG, ActionKind.RELEASE_GANG} <= set(settings.plan.modes)
    assert settings.plan == PlanPolicy(modes=settings.plan.modes)
    assert settings.prometheus is not None


@pytest.mark.parametrize("index", [0, 1], ids=["controller", "report"])
def test_what_runs_is_a_command_with_these_options(index: int) -> None:
    (container,) = pod_specs()[index]["containers"]
    command, *arguments = container["args"]
    options = {option for parameter in cli.commands[command].params for option in parameter.opts}
    assert {argument.partition("=")[0] for argument in arguments} <= options
    assert all("=" in argument for argument in arguments)


def test_the_controller_is_set_to_what_is_mounted_and_served() -> None:
    (container,) = pod_specs()[0]["containers"]
    settings = load_settings(environment={each["name"]: each.get("value", "") for each in container["env"]})
    with_variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    assert with_variables == {"GPUWATCH_RUN__FOLDER": "/var/lib/gpuwatch"}
    assert settings.run.listen_port == container["ports"][0]["containerPort"]
    assert settings.run.namespace in ("", "gpuwatch")
    grace = pod_specs()[0].get("terminationGracePeriodSeconds", 30)  # Kubernetes' default
    assert settings.run.shutdown_timeout_seconds < grace
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert with_variables["GPUWATCH_RUN__FOLDER"] in writable


@pytest.mark.parametrize("index", [0, 1], ids=["controller", "report"])
def test_what_is_named_is_mounted_and_the_rest_cannot_be_written(index: int) -> None:
    spec = pod_specs()[index]
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert {each["name"] for each in mounts.values()} == {each["name"] for each in spec["volumes"]}
    for path in (argument.partition("=")[2] for argument in container["args"][1:]):
        if not path.startswith("/"):
            continue
        mount = next(each for place, each in mounts.items() if path.startswith(f"{place}/"))
        assert mount.get("readOnly", False) is (mount["name"] == "settings")
    settings = found("observe", "ConfigMap")
    assert spec["volumes"][0]["configMap"]["name"] == settings["metadata"]["name"]
    (file,) = settings["data"]
    assert f"--config=/etc/gpuwatch/{file}" in container["args"]
    assert spec["serviceAccountName"] == found("observe", "ServiceAccount")["metadata"]["name"]


def test_selectors_choose_the_controller_alone() -> None:
    deployment, job = found("base", "Deployment")["spec"], found("report", "CronJob")["spec"]["jobTemplate"]["spec"]
    chosen = deployment["selector"]["matchLabels"]
    labels = deployment["template"]["metadata"]["labels"]
    assert chosen.items() <= labels.items()
    assert not chosen.items() <= job["template"]["metadata"]["labels"].items()
    assert found("base", "Service")["spec"]["selector"] == chosen
    assert found("base", "PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == chosen
    (container,) = deployment["template"]["spec"]["containers"]
    ports = {each["name"] for each in container["ports"]}
    assert found("base", "Service")["spec"]["ports"][0]["targetPort"] in ports
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} == {
        "/healthz",
        "/readyz",
    }
    policy = found("optional/network-policy.yaml", "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["ingress"][0]["ports"][0]["port"] in ports


def test_the_pause_is_where_the_code_looks_and_applying_it_ends_none() -> None:
    shipped = found("base", "ConfigMap", PAUSE)
    assert shipped["metadata"]["name"] == PAUSE
    assert "data" not in shipped


def test_own_keys_are_of_the_group() -> None:
    for document in documents(DEPLOY / "base" / "crds.yaml"):
        assert document["spec"]["group"] == keys.PREFIX.rstrip("/")


# The image


def test_the_image_runs_as_nobody_what_the_package_installs() -> None:
    (user,) = re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE)
    for spec in pod_specs():
        context = spec["securityContext"]
        assert user == f"{context['runAsUser']}:{context['runAsGroup']}"
        assert context["runAsNonRoot"] is True
    (entry,) = re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert yaml.safe_load(entry) == ["gpuwatch"]
    assert "gpuwatch" in project["scripts"]
    versions = {spec["containers"][0]["image"] for spec in pod_specs()}
    assert versions == {f"gpuwatch:{__version__}"}
    assert f"gpuwatch:{__version__}" in DOCKERFILE


def test_the_image_has_locked_dependencies_alone() -> None:
    commands = DOCKERFILE.replace("\\\n", " ").replace("&&", "\n").splitlines()
    installs = [shlex.split(line) for line in commands if "/bin/pip" in line and " install " in line]
    locked_ones = [words for words in installs if "-r" in words]
    assert {words[words.index("-r") + 1] for words in locked_ones} == {"/build/build.txt", "/build/runtime.txt"}
    assert all({"--require-hashes", "--only-binary"} <= set(words) for words in locked_ones)
    (package,) = (words for words in installs if "-r" not in words)
    assert "--no-deps" in package
    locked = (ROOT / "requirements" / "runtime.txt").read_text()
    names = set(re.findall(r"^([A-Za-z0-9._-]+)==", locked, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[<>=~;\[ ]", each)[0] for each in project["dependencies"]}
    assert wanted <= names
    assert re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE) == ["${BASE}", "${BASE}"]


def test_what_the_image_copies_is_there_and_let_through() -> None:
    let_through = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert let_through[0] == "*"
    copied = [
        source
        for line in DOCKERFILE.splitlines()
        if line.startswith("COPY ") and "--from" not in line
        for source in line.split()[1:-1]
    ]
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert f"!{source}" in let_through
