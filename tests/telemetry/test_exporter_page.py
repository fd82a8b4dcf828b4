"""One read of an exporter's page: what it gives, and what it does not take for an answer."""

import contextlib
import time
from pathlib import Path

import pytest

from gpuwatch.facts.model.telemetry import Signal
from gpuwatch.sources.telemetry import exporter_page
from gpuwatch.sources.telemetry.exporter_page import read_exporters
from parts.http_server import QuietHandler, served
from parts.scripted_server import Reply, scripted

PAGES = Path(__file__).parents[1] / "fixtures" / "exposition"
SICK = """\
DCGM_FI_DEV_GPU_UTIL{UUID="GPU-a",GPU_I_ID="3"} 7
DCGM_FI_DEV_GPU_UTIL{UUID="GPU-b"} 7
DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-b",pod="x"} 0.25
DCGM_FI_PROF_GR_ENGINE_ACTIVE{UUID="GPU-b",pod="y"} 0.5
DCGM_FI_DEV_XID_ERRORS{UUID="GPU-b"} 79
DCGM_EXP_XID_ERRORS_COUNT{UUID="GPU-b",xid="13"} 2
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{UUID="GPU-b"} 9223372036854775794
DCGM_FI_DEV_ROW_REMAP_FAILURE{UUID="GPU-b"} 1 1000
"""


def test_values_come_by_device_in_si_units_of_the_preferred_metric_and_no_blank_or_old_one_counts() -> None:
    with scripted(lambda _: Reply(body=SICK)) as server:
        read = read_exporters([f"{server.url}/metrics"])
    assert read.devices == {"GPU-a/3", "GPU-a", "GPU-b"}
    assert (read.place, read.failed) == (f"{server.url}/metrics", "")
    seen = {key: value for key, value in read.values.items() if key[1] in (Signal.BUSY_RATIO, Signal.XID_CODE)}
    assert seen == {
        ("GPU-a/3", Signal.BUSY_RATIO): {"": 0.07},
        ("GPU-b", Signal.BUSY_RATIO): {"": 0.5},
        ("GPU-b", Signal.XID_CODE): {"": 79.0},
    }
    assert read.values["GPU-b", Signal.XID_WINDOW_COUNT] == {"13": 2.0}
    assert {("GPU-b", Signal.ECC_DBE_VOLATILE_TOTAL), ("GPU-b", Signal.ROW_REMAP_FAILED_STATE)}.isdisjoint(read.values)


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.prom")), ids=lambda page: page.stem)
def test_every_recorded_page_of_an_exporter_shows_its_devices(page: Path) -> None:
    text = page.read_bytes()
    with scripted(lambda _: Reply(body=text if text.endswith(b"\n") else text + b"\n")) as server:
        read = read_exporters([server.url])
    assert read.failed == "" and read.devices and read.values


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Reply(302, headers={"Location": "http://127.0.0.1:1/metrics"}), "it answered 302, which is no plain page"),
        (Reply(401), "it answered 401"),
        (Reply(500), "it answered 500"),
        (Reply(body=SICK, headers={"Content-Encoding": "gzip"}), "it answered 200, which is no plain page"),
        (Reply(body=SICK[:-20]), "its page is empty or cut off"),
        (Reply(), "its page is empty or cut off"),
        (Reply(body=SICK, notified=10_000), "could not be read"),
        (Reply(body=b"#" * 2**20 + b"\n"), "its page has more than 65536 bytes"),
        (Reply(body=SICK, pause_seconds=2), "timed out"),
    ],
    ids=("redirect", "login", "error", "compressed", "cut off", "empty", "too short", "huge", "slow"),
)
def test_what_is_no_answer(reply: Reply, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_page, "_SECONDS", 0.5)
    monkeypatch.setattr(exporter_page, "_MOST_BYTES", 65_536)
    with scripted(lambda _: reply) as server:
        read = read_exporters([f"{server.url}/metrics"])
        server.stop_waiting.set()
    assert said in read.failed and f"{server.url}/metrics could not be read" in read.failed
    assert not read.devices and len(server.asked) == 1


def test_a_server_that_sends_byte_by_byte_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            with contextlib.suppress(OSError):
                for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 1000:  # 50 s
                    self.wfile.write(bytes([byte]))
                    time.sleep(0.05)

    monkeypatch.setattr(exporter_page, "_SECONDS", 0.3)
    with served(Handler) as url:
        began = time.monotonic()
        read = read_exporters([url])
    assert "its page took more than 0.6 s" in read.failed
    assert time.monotonic() - began < 30


def test_one_of_two_exporters_that_does_not_answer_is_no_answer() -> None:
    with scripted(lambda asked: Reply(body=SICK) if asked.path == "/a" else Reply(404)) as server:
        assert read_exporters([f"{server.url}/a", f"{server.url}/b"]).failed.startswith(f"{server.url}/b could not")


def test_no_credentials_and_no_proxy_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with scripted(lambda _: Reply(body=SICK)) as server:
        assert read_exporters([server.url]).failed == ""
    (asked,) = server.asked
    assert asked.method == "GET" and {"authorization", "cookie"}.isdisjoint(asked.headers)
