"""One world for all end-to-end tests: a cluster, a Prometheus, and a fleet that lives in the one and reports to the
other. Each test has pools of its own in it."""

import os
from collections.abc import Iterator

import pytest

from cluster.api import Api, Object
from deploy.manifests import DEPLOY, apply, documents
from e2e.clusters import Cluster, NotToBeUsedError, existing, marked, on_existing, own
from e2e.live_fleet import node
from e2e.world import UNSEEN, World, world
from gpuwatch.facts.model.remediation import Phase
from parts.prometheus_server import ServerBuild

FINAL = {str(phase) for phase in Phase if not phase.open}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is tested without the roles of any mode comes before what needs them."""
    items.sort(key=lambda item: "with_every_role" in getattr(item, "fixturenames", ()))


def pytest_itemcollected(item: pytest.Item) -> None:
    """The marker `cluster` comes with a fixture elsewhere; here the cluster may be another one."""
    item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Of its own, or with E2E_EXISTING=1 the one that KUBECONFIG names."""
    if not on_existing():
        with own(request.getfixturevalue("control_plane_build")) as started:
            yield started
        return
    plugins = request.config.pluginmanager
    terminal, capture = plugins.get_plugin("terminalreporter"), plugins.get_plugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(f"\n{line}")

    try:
        with existing(os.environ, tmp_path_factory.mktemp("kubeconfigs"), say) as found:
            yield found
    except NotToBeUsedError as error:
        pytest.exit(str(error), returncode=2)


@pytest.fixture(scope="session")
def living(
    cluster: Cluster, newest_prometheus: ServerBuild, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """With deploy/base alone: no role of any further mode is there yet."""
    pools = ("seen", "moved", "idle", "kept", "halted", "asked")
    nodes = [node(f"{pool}-0", pool) for pool in pools]
    with world(cluster, newest_prometheus, tmp_path_factory.mktemp("e2e"), nodes) as found:
        yield found


@pytest.fixture(scope="session")
def with_every_role(living: World) -> World:
    for file in sorted((DEPLOY / "roles").glob("*.yaml")):
        apply(living.api, map(marked, documents(file)))
    return living


@pytest.fixture
def allowed(with_every_role: World) -> Iterator[World]:
    """With the roles of every mode, and the guardrails of deploy/base. What has ended is forgotten
    afterwards: a release that one test has undone would make its detector a poor one in the next."""
    yield with_every_role
    for item in with_every_role.remediations():
        if (item.get("status") or {}).get("phase", "Proposed") in FINAL:
            with_every_role.api.delete(item)
            # A replica that has just ended may have left the finalizer to the next one, whose first look counts it.
            _let_go(with_every_role.api, item)


def _let_go(api: Api, item: Object) -> None:
    meta = item["metadata"]
    path = f"{api.resource(item['apiVersion'], item['kind']).path(meta.get('namespace', ''))}/{meta['name']}"
    body = {"metadata": {"finalizers": None}}
    answer = api.answer("PATCH", path, body, content_type="application/merge-patch+json")
    assert answer.ok or answer.status_code == 404, answer.text


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if UNSEEN:
        terminalreporter.section("not looked at, as nobody can on this cluster")
        for line in dict.fromkeys(UNSEEN):
            terminalreporter.write_line(f"NOT SEEN {line}")
