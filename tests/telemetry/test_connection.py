"""Settings of a connection: every fault names its field, none shows a secret."""

from dataclasses import replace

import pytest

from gpuwatch.sources.telemetry.connection import Connection

SECRET = "open-sesame"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"url": "prometheus:9090"}, "url"),
        ({"url": "ftp://prometheus"}, "url"),
        ({"url": "https://"}, "url"),
        ({"url": f"https://grace:{SECRET}@host:port"}, "url"),
        ({"url": f"https://host/?token={SECRET}"}, "url"),
        ({"url": "https://host/api/v1/query"}, "url"),
        ({"url": f"https://grace:{SECRET}@host", "username": "other"}, "username"),
        ({"bearer_token": SECRET, "bearer_token_file": "/token"}, "bearer_token_file"),
        ({"bearer_token": SECRET, "username": "grace"}, "username"),
        ({"bearer_token": f"{SECRET}\n"}, "bearer_token"),
        ({"bearer_token": f"{SECRET}ä"}, "bearer_token"),
        ({"password": SECRET}, "username"),
        ({"username": "gr:ace", "password": SECRET}, "username"),
        ({"key_file": "/key"}, "cert_file"),
        ({"ca_file": "/ca", "insecure_skip_verify": True}, "insecure_skip_verify"),
        ({"headers": {"X Key": SECRET}}, "headers"),
        ({"matchers": {'cluster="a"} or up{x': "1"}}, "matchers"),
        ({"matchers": {"__name__": "up"}}, "matchers"),
        ({"trusted_targets": ({"host": "a"},)}, "trusted_targets"),
        ({"trusted_targets": ({},)}, "trusted_targets"),
        ({"trusted_targets": ({"job": "a", "instance": ""},)}, "trusted_targets"),
        ({"headers": {"X-Key": f"{SECRET}\r\nX-Other: 1"}}, "headers"),
        ({"headers": {"authorization": f"Bearer {SECRET}"}, "bearer_token": SECRET}, "headers"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds"),
        ({"retries": -1}, "retries"),
        ({"concurrency": 0}, "concurrency"),
        ({"max_samples_per_query": 0}, "max_samples_per_query"),
    ],
)
def test_a_fault_names_its_field_and_shows_no_secret(given: dict[str, object], field: str) -> None:
    with pytest.raises(ValueError, match=f"^{field}: ") as caught:
        Connection(**{"url": "https://prometheus", **given})  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://prometheus.example", "https://prometheus.example"),
        ("http://mimir:8080/prometheus/", "http://mimir:8080/prometheus"),
        (f"http://grace:{SECRET}@[::1]:9090/", "http://[::1]:9090"),
        (" https://prometheus.example:443 ", "https://prometheus.example:443"),
    ],
)
def test_addresses_are_kept_without_credentials(url: str, kept: str) -> None:
    assert Connection(url=url).url == kept


def test_credentials_of_the_address_are_kept_elsewhere_and_never_shown() -> None:
    connection = Connection(url="https://gr%40ce:open%2Fsesame@host", headers={"X-Key": "k3y-material"})
    assert (connection.username, connection.password) == ("gr@ce", "open/sesame")
    assert "sesame" not in repr(connection)
    assert "k3y" not in repr(connection)
    assert replace(connection, url="https://other").password == "open/sesame"
