"""The image as it is shipped: how large it is, what is in it, and that it runs as the manifests run it."""

import json
import os
import signal
import time
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from cluster.control_plane import ControlPlane, ControlPlaneBuild
from deploy.manifests import DEPLOY, documents
from deploy.pod_environment import pod_environment
from e2e.clusters import own
from e2e.live_fleet import node
from e2e.world import World, world
from parts.gpuwatch_run import GpuwatchRun
from parts.image import MAX_COMPRESSED_BYTES, Image, container
from parts.processes import free_port, wait_until
from parts.prometheus_server import ServerBuild
from tools.sbom import bill

pytestmark = [pytest.mark.image, pytest.mark.slow]

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
END_SECONDS = 20
"""Of the 30 that Kubernetes gives a Pod to end."""


def output_of(image: Image, folder: Path, *arguments: str, expected: int = 0, **how: Any) -> str:
    """What it says until it ends by itself."""
    with container(image, folder, arguments, **how) as process:
        code = process.wait(600)
    said = (folder / "log").read_text(encoding="utf-8")
    assert code == expected, said[-4000:]
    return said


def python(image: Image, folder: Path, code: str) -> str:
    return output_of(image, folder, "-c", dedent(code), entrypoint=["python"], writable=["/tmp"])


def test_it_is_no_larger_than_it_may_be(image: Image) -> None:
    assert sum(image.layers) <= MAX_COMPRESSED_BYTES


def test_what_is_not_needed_to_run_is_not_in_it(image: Image) -> None:
    ours = [str(file.relative_to(image.rootfs)) for file in (image.rootfs / "opt" / "gpuwatch").rglob("*")]
    assert len(ours) > 3000
    assert not [name for name in ours if {"lab", "simulate"} & set(Path(name).parts)]
    ends = (".pyc", ".pyx", ".pxd", ".h", ".a")
    parts = {"__pycache__", "tests", "include/arrow", "site-packages/pip", "site-packages/setuptools", "kubernetes/aio"}
    parts |= {"site-packages/aiohttp", "site-packages/yarl"}
    left = [name for name in ours if name.endswith(ends) or any(f"/{part}/" in f"/{name}/" for part in parts)]
    assert left == []
    assert [name for name in ours if any(part in name for part in ("arrow_flight", "arrow_s3"))] == []
    settings = image.config
    assert (settings["User"], settings["Entrypoint"]) == ("65532:65532", ["gpuwatch"])


def test_its_bill_of_materials_lists_what_is_in_it(image: Image) -> None:
    listed = {each["purl"].partition("@")[0] for each in json.loads(bill(image.rootfs))["components"]}
    assert {"pkg:deb/debian/libc6", "pkg:deb/debian/python3-minimal", "pkg:pypi/numpy", "pkg:pypi/kubernetes"} <= listed
    assert not {"pkg:pypi/aiohttp", "pkg:pypi/pip"} & listed


def test_every_module_of_gpuwatch_finds_what_it_imports(image: Image, tmp_path: Path) -> None:
    """And what the libraries load only when they are used: their shared objects, their data."""
    said = python(
        image,
        tmp_path / "imports",
        """
        import importlib, io, pkgutil, zoneinfo
        import gpuwatch
        names = [each.name for each in pkgutil.walk_packages(gpuwatch.__path__, "gpuwatch.")]
        for name in names:
            importlib.import_module(name)
        import apprise, boto3, numpy, pandas, pyarrow, pyarrow.compute, pyarrow.parquet
        from scipy.optimize import LinearConstraint, milp
        from sklearn.linear_model import HuberRegressor
        file = io.BytesIO()
        pandas.DataFrame({"gpu": ["a", "b"], "ratio": [0.5, 1.0]}).to_parquet(file)
        assert pyarrow.compute.sum(pyarrow.parquet.read_table(file)["ratio"]).as_py() == 1.5
        x = numpy.arange(20.0)
        assert abs(HuberRegressor().fit(x[:, None], 2 * x).coef_[0] - 2) < 0.01
        assert milp(numpy.array([1.0]), constraints=LinearConstraint([[1.0]], 3.0)).x[0] == 3
        keys = {"region_name": "eu-west-1", "aws_access_key_id": "a", "aws_secret_access_key": "b"}
        for service in ("s3", "sts", "sso", "sso-oidc"):
            boto3.client(service, **keys)
        assert apprise.Apprise.instantiate("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ")
        zoneinfo.ZoneInfo("Europe/Berlin")
        print(len(names), "modules")
        """,
    )
    assert int(said.split()[-2]) > 100


def test_it_can_write_nowhere_and_has_no_rights(image: Image, tmp_path: Path) -> None:
    said = python(
        image,
        tmp_path / "rights",
        """
        import os, pathlib
        status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
        print(os.getuid(), os.getgid(), int(status["CapEff"], 16), int(status["CapBnd"], 16), int(status["NoNewPrivs"]))
        try:
            pathlib.Path("/opt/gpuwatch/new").touch()
        except OSError as error:
            print(error.strerror)
        """,
    )
    assert said.splitlines() == ["65532 65532 0 0 1", "Read-only file system"]


def test_the_demo_runs_in_it(image: Image, tmp_path: Path) -> None:
    said = output_of(image, tmp_path / "demo", "demo", writable=["/tmp"])
    assert "What gpuwatch says at the end" in said


@pytest.fixture(scope="module")
def living(
    control_plane_build: ControlPlaneBuild, newest_prometheus: ServerBuild, tmp_path_factory: pytest.TempPathFactory
) -> World:
    """A cluster with a GPU Node and the base manifests, and a Prometheus that scrapes it."""
    with (
        own(control_plane_build) as cluster,
        world(cluster, newest_prometheus, tmp_path_factory.mktemp("world"), [node("gpu-0", "pool")]) as found,
    ):
        yield found


def in_a_pod(living: World, folder: Path, port: int) -> dict[str, Any]:
    """What the Deployment gives to its container, and the kubelet to every one: arguments of `container`."""
    (deployment,) = [each for each in documents(DEPLOY / "base") if each["kind"] == "Deployment"]
    (settings,) = [each for each in documents(DEPLOY / "observe") if each["kind"] == "ConfigMap"]
    (shipped,) = deployment["spec"]["template"]["spec"]["containers"]
    chosen = yaml.safe_load(settings["data"]["settings.yaml"])
    chosen["prometheus"]["url"] = living.prometheus
    configured, account = folder / "settings", folder / "account"
    configured.mkdir()
    account.mkdir()
    (configured / "settings.yaml").write_text(yaml.safe_dump(chosen))
    plane = living.cluster.own
    assert isinstance(plane, ControlPlane)
    user = json.loads(living.cluster.account("image").read_text())["users"][0]["user"]
    (account / "token").write_text(user["token"])
    (account / "ca.crt").write_bytes(plane.certificate.read_bytes())
    (account / "namespace").write_text("gpuwatch")
    for file in (configured, account, *configured.iterdir(), *account.iterdir()):
        os.chown(file, 65532, 65532)
    mounts = {each["name"]: each["mountPath"] for each in shipped["volumeMounts"]}
    host, _, api_port = plane.url.removeprefix("https://").partition(":")
    pod = {
        "metadata": {"name": "gpuwatch-0", "namespace": "gpuwatch"},
        "spec": deployment["spec"]["template"]["spec"],
    }
    services = living.api.get("/api/v1/services")["items"]
    environment = {
        **pod_environment(pod, shipped, services, lambda *_: {}),
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": api_port,
        "GPUWATCH_RUN__LISTEN_PORT": str(port),  # others' 8080 is on this network too
    }
    assert shipped["securityContext"]["readOnlyRootFilesystem"]
    return {
        "arguments": shipped["args"],
        "environment": environment,
        "read_only": {mounts["settings"]: configured, ACCOUNT: account},
        "writable": [mounts["work"], mounts["tmp"]],
    }


def test_the_controller_runs_as_its_deployment_says(image: Image, living: World, tmp_path: Path) -> None:
    port = free_port()
    pod = in_a_pod(living, tmp_path, port)
    begun = time.monotonic()
    with container(image, tmp_path / "controller", **pod) as process:
        run = GpuwatchRun(process, port, tmp_path / "controller" / "log")

        def ready() -> bool:
            assert process.poll() is None, run.said()[-4000:]
            return run.asked("/readyz") == (200, "ok\n")

        wait_until(ready, lambda: f"not ready: {run.asked('/readyz')} {run.said()[-4000:]}", 180)
        ready_seconds = time.monotonic() - begun
        assert run.asked("/healthz") == (200, "ok\n")
        metrics = run.asked("/metrics")[1]
        assert "gpuwatch_leader 1.0" in metrics
        assert 'gpuwatch_devices{state="reporting"} 8.0' in metrics
        status, page = run.asked("/")
        assert status == 200
        assert "This replica leads. 8 of 8 GPUs and MIG instances report" in page
        told = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_SECONDS) == 0, run.said()[-4000:]
        ended_seconds = time.monotonic() - told
    assert json.loads(run.said().splitlines()[-1])["message"] == "stopped"
    print(f"ready after {ready_seconds:.1f} s, ended {ended_seconds:.1f} s after SIGTERM")


def test_without_a_folder_to_write_to_it_goes_on_and_its_page_says_why_there_is_no_report(
    image: Image, living: World, tmp_path: Path
) -> None:
    """As a Pod without fsGroup, whose emptyDir is root's. A report is due each hour, so that one is written at once on
    any day of the week."""
    port = free_port()
    pod = {**in_a_pod(living, tmp_path, port), "writable": ["/tmp"]}
    settings = tmp_path / "settings" / "settings.yaml"
    chosen = yaml.safe_load(settings.read_text())
    chosen["run"] = {**chosen.get("run", {}), "report_schedule": "0 * * * *"}
    settings.write_text(yaml.safe_dump(chosen))
    with container(image, tmp_path / "controller", **pod) as process:
        run = GpuwatchRun(process, port, tmp_path / "controller" / "log")
        wait_until(
            lambda: "Read-only file system: &#39;/var/lib/gpuwatch" in run.asked("/")[1],
            lambda: f"{process.poll()} {run.asked('/')} {run.said()[-4000:]}",
            180,
        )
        # Its state is in Checkpoints, so the cycle needs no folder.
        assert run.asked("/readyz") == (200, "ok\n")


def test_the_doctor_runs_in_it(image: Image, living: World, tmp_path: Path) -> None:
    pod = in_a_pod(living, tmp_path, free_port())
    pod["arguments"] = ["doctor", "--prometheus", living.prometheus]
    with container(image, tmp_path / "doctor", **pod) as process:
        code = process.wait(300)
    said = (tmp_path / "doctor" / "log").read_text()
    assert code in (0, 4), said
    assert "Prometheus" in said
