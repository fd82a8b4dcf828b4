"""What is sent to a server, and over which connection: credentials, tenants, proxies' habits, TLS."""

import shutil
import ssl
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuwatch.sources.telemetry.prometheus import PrometheusStore
from gpuwatch.sources.telemetry.samples import (
    AnswerRow,
    Function,
    StoreRefused,
    StoreUnreachable,
    TelemetryError,
)
from parts.scripted_server import PROBE, Asked, Reply, Scripted, always, scripted, vector
from telemetry.test_prometheus_errors import AT, ONE_ROW, QUESTION, connection


def sent(server: Scripted) -> Asked:
    return next(each for each in server.asked if each.query != PROBE)


def test_queries_travel_in_the_body_with_time_and_timeout() -> None:
    with scripted(always(ONE_ROW)) as server:
        moment = datetime.fromtimestamp(1_760_000_400.25, UTC)
        PrometheusStore(connection(server.url, timeout_seconds=7)).evaluate(QUESTION, moment)
        asked = sent(server)
        assert (asked.method, asked.path) == ("POST", "/api/v1/query")
        assert asked.form["time"] == "1760000400.250"
        assert asked.form["timeout"] == "7s"


@pytest.mark.parametrize(
    ("behaves", "asked", "shown"),
    [
        ("32", "increase(some_metric[3599999ms])", "increase(some_metric[1h])"),
        ("21", "increase(some_metric[1h])", "increase(some_metric[1h])"),
        ("22", "increase_prometheus(some_metric[1h])", "increase_prometheus(some_metric[1h])"),
    ],
    ids=["prometheus-2", "prometheus-3", "victoria-metrics"],
)
def test_a_server_is_asked_as_it_behaves(behaves: str, asked: str, shown: str) -> None:
    with scripted(lambda each: vector(({}, behaves)) if each.query == PROBE else ONE_ROW) as server:
        store = PrometheusStore(connection(server.url))
        question = replace(QUESTION, function=Function.INCREASE)
        store.evaluate(question, AT)
        assert server.queries == [f"max by (node) ({asked})"]
        assert store.render(question) == f"max by (node) ({shown})"


def test_answers_are_asked_for_uncompressed_unless_a_header_says_otherwise() -> None:
    with scripted(always(ONE_ROW)) as server:
        PrometheusStore(connection(server.url)).evaluate(QUESTION, AT)
        assert sent(server).headers["accept-encoding"] == "identity"
    with scripted(always(ONE_ROW)) as server:
        far = connection(server.url, headers={"accept-encoding": "gzip"})
        PrometheusStore(far).evaluate(QUESTION, AT)
        assert sent(server).headers["accept-encoding"] == "gzip"


def test_the_same_labels_are_one_object_in_all_answers() -> None:
    rows = vector(({"node": "a", "pod": "x"}, "1"), ({"node": "b", "pod": "x"}, "2"))
    with scripted(always(rows)) as server:
        store = PrometheusStore(connection(server.url))
        first, second = store.evaluate(QUESTION, AT), store.evaluate(QUESTION, AT)
        assert [row.labels["node"] for row in first] == ["a", "b"]
        assert all(one.labels is other.labels for one, other in zip(first, second, strict=True))


def test_a_server_that_takes_no_post_is_asked_by_get() -> None:
    def answer(asked: Asked) -> Reply:
        if asked.method == "POST":
            return Reply(405)
        return Reply() if asked.query == PROBE else ONE_ROW

    with scripted(answer) as server:
        store = PrometheusStore(connection(server.url))
        assert store.evaluate(QUESTION, AT) == [AnswerRow({"node": "a"}, 1.5)]
        assert [each.method for each in server.asked] == ["POST", "GET", "GET"]


def test_tenants_prefixes_and_tokens(tmp_path: Path) -> None:
    with scripted(always(ONE_ROW)) as server:
        prefixed = f"{server.url}/prometheus/"
        tenant = connection(prefixed, headers={"X-Scope-OrgID": "team-a"}, bearer_token="token-1234")
        PrometheusStore(tenant).evaluate(QUESTION, AT)
        assert sent(server).path == "/prometheus/api/v1/query"
        assert sent(server).headers["x-scope-orgid"] == "team-a"
        assert sent(server).headers["authorization"] == "Bearer token-1234"

    file = tmp_path / "token"
    with scripted(always(ONE_ROW)) as server:
        store = PrometheusStore(connection(server.url, bearer_token_file=str(file)))
        [missing] = store.evaluate_many([QUESTION], AT)
        assert isinstance(missing, StoreRefused)
        assert f"bearer_token_file {file} cannot be read: No such file" in str(missing)
        for token in ("first", "rotated"):
            file.write_text(f"{token}\n")
            store.evaluate(QUESTION, AT)
            assert server.asked[-1].headers["authorization"] == f"Bearer {token}"
        file.write_text("two\nlines\n")
        with pytest.raises(StoreRefused, match="one line with a token"):
            store.evaluate(QUESTION, AT)


def test_basic_authentication_also_from_the_address() -> None:
    with scripted(always(ONE_ROW)) as server:
        url = server.url.replace("http://", "http://grace:h%C3%B6pper%40@")
        PrometheusStore(connection(url)).evaluate(QUESTION, AT)
        assert sent(server).headers["authorization"] == "Basic Z3JhY2U6aMO2cHBlckA="


def test_a_netrc_file_is_not_taken_for_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login someone password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with scripted(always(ONE_ROW)) as server:
        PrometheusStore(connection(server.url)).evaluate(QUESTION, AT)
        assert "authorization" not in sent(server).headers


# TLS


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a server's certificate for 127.0.0.1 and a client's."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates, and is not here")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test authority", *usage)
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\n")
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing)
    return folder


def served_by(certificates: Path, demand_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    if demand_client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates / "ca.pem")
    return context


def test_an_unknown_authority_is_refused_and_its_certificate_helps(
    certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(always(ONE_ROW), served_by(certificates)) as server:
        with pytest.raises(StoreUnreachable, match=r"no TLS connection: .*certificate.*; give .* as ca_file"):
            PrometheusStore(connection(server.url)).evaluate(QUESTION, AT)
        # Another bundle in the environment does not take the place of the one that was given, but of the system's.
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates / "client.pem"))
        known = connection(server.url, ca_file=str(certificates / "ca.pem"))
        assert PrometheusStore(known).evaluate(QUESTION, AT) == [AnswerRow({"node": "a"}, 1.5)]
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates / "ca.pem"))
        assert PrometheusStore(connection(server.url)).evaluate(QUESTION, AT) == [AnswerRow({"node": "a"}, 1.5)]
        monkeypatch.delenv("REQUESTS_CA_BUNDLE")
        trusting = connection(server.url, insecure_skip_verify=True)
        assert PrometheusStore(trusting).evaluate(QUESTION, AT) == [AnswerRow({"node": "a"}, 1.5)]


def test_a_server_that_demands_a_certificate(certificates: Path) -> None:
    authority = str(certificates / "ca.pem")
    with scripted(always(ONE_ROW), served_by(certificates, demand_client=True)) as server:
        with pytest.raises(StoreUnreachable):
            PrometheusStore(connection(server.url, ca_file=authority)).evaluate(QUESTION, AT)
        client, key = str(certificates / "client.pem"), str(certificates / "client.key")
        known = connection(server.url, ca_file=authority, cert_file=client, key_file=key)
        assert PrometheusStore(known).evaluate(QUESTION, AT) == [AnswerRow({"node": "a"}, 1.5)]
        mismatched = connection(
            server.url, ca_file=authority, cert_file=client, key_file=str(certificates / "server.key")
        )
        with pytest.raises(TelemetryError, match="cert_file"):
            PrometheusStore(mismatched).evaluate(QUESTION, AT)


def test_files_that_are_missing_or_no_certificates(certificates: Path, tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=r"ca_file: there is no /nowhere/ca\.pem"):
        PrometheusStore(connection("https://127.0.0.1:1", ca_file="/nowhere/ca.pem"))
    with pytest.raises(TelemetryError, match=r"cert_file: there is no /nowhere/cert\.pem"):
        PrometheusStore(connection("https://127.0.0.1:1", cert_file="/nowhere/cert.pem"))
    rubbish = tmp_path / "ca.pem"
    rubbish.write_text("no certificate")
    with scripted(always(ONE_ROW), served_by(certificates)) as server, pytest.raises(TelemetryError, match="ca_file"):
        PrometheusStore(connection(server.url, ca_file=str(rubbish))).evaluate(QUESTION, AT)


def test_https_to_a_server_that_speaks_http() -> None:
    with scripted(always(ONE_ROW)) as server, pytest.raises(StoreUnreachable, match="no TLS connection"):
        PrometheusStore(connection(server.url.replace("http", "https"))).evaluate(QUESTION, AT)
