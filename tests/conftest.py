"""Fixtures that every room's tests share: real servers, a real browser."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from cluster.control_plane import ControlPlane, ControlPlaneBuild, find_control_plane, running
from cluster.real_node import missing as missing_of_a_node
from dashboards import rendering
from parts.alertmanager_server import AlertmanagerBuild, find_alertmanager
from parts.appwrapper_controller import AppWrapperBuild, find_appwrapper
from parts.browser import BrowserBuild, find_browser
from parts.browser import running as running_browser
from parts.go_tools import in_ci
from parts.helm_tools import HelmBuild, find_helm, find_helm_3, find_kube_score
from parts.image import Image, built, missing
from parts.operator_server import OperatorBuild, find_operator
from parts.prometheus_server import MAJORS, ServerBuild, find_servers, find_thanos
from parts.workflow_lint import find_actionlint

if TYPE_CHECKING:  # every test run looks for the browser, few start it
    from playwright.sync_api import Browser

# How long one example takes is no property of the code: on a busy machine the default of 0.2 s fails by chance.
settings.register_profile("gpuwatch", parent=settings.get_profile(settings.get_current_profile_name()), deadline=None)
settings.load_profile("gpuwatch")


def _not_to_be_had(what: str, remedy: str = "tests/parts/install --all puts it in place") -> None:
    """Skips the test, but fails it in CI, where everything has to be there."""
    reason = f"{what} is not to be had here; {remedy}"
    if in_ci():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def prometheus_builds() -> dict[int, ServerBuild]:
    return {build.major: build for build in find_servers()}


@pytest.fixture(scope="session", params=MAJORS, ids=[f"prometheus-{major}" for major in MAJORS])
def prometheus_build(request: pytest.FixtureRequest, prometheus_builds: dict[int, ServerBuild]) -> ServerBuild:
    """Each version of Prometheus in turn."""
    if request.param not in prometheus_builds:
        _not_to_be_had(f"Prometheus {request.param}")
    return prometheus_builds[request.param]


@pytest.fixture(scope="session", params=[pytest.param(MAJORS[0], marks=pytest.mark.thorough), *MAJORS[1:]])
def either_prometheus(request: pytest.FixtureRequest, prometheus_builds: dict[int, ServerBuild]) -> ServerBuild:
    """The newer version; the older one in `make verify`: for more of what other tests show with both."""
    if request.param not in prometheus_builds:
        _not_to_be_had(f"Prometheus {request.param}")
    return prometheus_builds[request.param]


@pytest.fixture(scope="session")
def newest_prometheus(prometheus_builds: dict[int, ServerBuild]) -> ServerBuild:
    """One Prometheus, the newest found: for tests to which the version does not matter."""
    if not prometheus_builds:
        _not_to_be_had("Prometheus")
    return prometheus_builds[max(prometheus_builds)]


@pytest.fixture(scope="session")
def alertmanager_build() -> AlertmanagerBuild:
    """Alertmanager with its amtool."""
    found = find_alertmanager()
    if found is None:
        _not_to_be_had("Alertmanager")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def thanos() -> Path:
    """The thanos binary."""
    found = find_thanos()
    if found is None:
        _not_to_be_had("Thanos")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def appwrapper_build() -> AppWrapperBuild:
    """The AppWrapper controller."""
    found = find_appwrapper()
    if found is None:
        _not_to_be_had("The AppWrapper controller")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def operator_build() -> OperatorBuild:
    """The Prometheus Operator."""
    found = find_operator()
    if found is None:
        _not_to_be_had("The Prometheus Operator")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def helm_build() -> HelmBuild:
    """Helm, and kubeconform."""
    found = find_helm()
    if found is None:
        _not_to_be_had("Helm")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def helm_3() -> Path:
    """Helm 3 beside it."""
    found = find_helm_3()
    if found is None:
        _not_to_be_had("Helm 3", "tests/parts/install --helm3 puts it in place")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def kube_score() -> Path:
    """The kube-score binary."""
    found = find_kube_score()
    if found is None:
        _not_to_be_had("kube-score")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def control_plane_build() -> ControlPlaneBuild:
    """The programs of a Kubernetes control plane, for tests that start their own."""
    build = find_control_plane()
    if build is None:
        _not_to_be_had("The Kubernetes control plane")
    assert build is not None
    return build


@pytest.fixture(scope="session")
def control_plane(control_plane_build: ControlPlaneBuild) -> Iterator[ControlPlane]:
    """A Kubernetes API server that all tests of the run share: tests make Namespaces of their own."""
    with running(control_plane_build) as started:
        yield started


@pytest.fixture(scope="session")
def node_build(control_plane_build: ControlPlaneBuild) -> ControlPlaneBuild:
    """The same with the programs of a real Node, for tests that start their own."""
    lacks = missing_of_a_node(control_plane_build)
    if lacks:
        _not_to_be_had(f"A real Node (without {', '.join(lacks)})", "tests/parts/install does it as root on Debian")
    return control_plane_build


@pytest.fixture(scope="session")
def browser_build() -> BrowserBuild:
    """Chromium, and what reads the PDFs that it prints."""
    build = find_browser()
    if build is None:
        _not_to_be_had("Chromium with pdftotext")
    assert build is not None
    return build


@pytest.fixture(scope="module")
def browser(browser_build: BrowserBuild) -> Iterator[Browser]:
    """A headless Chromium that the tests of a module share."""
    with running_browser(browser_build) as started:
        yield started


@pytest.fixture(scope="session")
def renderer() -> Path:
    """The page that draws dashboards, built with npm where it is not yet."""
    npm = rendering.find_npm()
    if npm is None:
        _not_to_be_had("npm", "install Node.js 20 or newer")
    assert npm is not None
    return rendering.built(npm)


@pytest.fixture(scope="session")
def actionlint() -> Path:
    """The actionlint binary."""
    found = find_actionlint()
    if found is None:
        _not_to_be_had("actionlint")
    assert found is not None
    return found


@pytest.fixture(scope="session")
def image() -> Image:
    """The image of deploy/Dockerfile, built where it is not yet."""
    lacks = missing()
    if lacks:
        _not_to_be_had("The image", f"this machine lacks {', '.join(lacks)}; tests/parts/install --image installs it")
    return built()


_PARTS = {
    *("prometheus", "cluster", "browser", "e2e", "helm3", "image", "npm"),  # marks; the rest are fixtures
    *("prometheus_builds", "alertmanager_build", "thanos", "appwrapper_build", "operator_build"),
    *("helm_build", "helm_3", "kube_score", "actionlint", "renderer", "in_cluster"),
}


@pytest.hookimpl(tryfirst=True)  # before -m chooses by them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if {"prometheus_build", "either_prometheus", "newest_prometheus"} & fixtures:
            item.add_marker(pytest.mark.prometheus)
        if "browser_build" in fixtures:
            item.add_marker(pytest.mark.browser)
        if "control_plane_build" in fixtures:
            item.add_marker(pytest.mark.cluster)
        if _PARTS & (fixtures | {mark.name for mark in item.iter_markers()}):
            item.add_marker(pytest.mark.parts)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that does not run has failed: whatever it needs is missing there, and nobody would notice."""
    report = yield
    if in_ci() and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was not run, and CI runs every test: {report.longrepr}"
    return report
