"""The pages over HTTP: what is served, what is not, and that nothing holds them up."""

import http.client
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.app.controller.http_server import serving
from gpuwatch.app.controller.jobs import Job, Jobs
from gpuwatch.app.controller.metrics import Metrics
from gpuwatch.app.controller.pages import Pages
from gpuwatch.say.deliver.deliver import write_report
from gpuwatch.say.templating import SCRIPT_HASH
from parts.processes import wait_until
from report.test_status_page import standing_by

FILES = {
    "report.html": b"<h1>GPUs</h1>",
    "report.md": b"# GPUs of a week\n\nText\n",
    "report.json": b"{}",
    "teams.csv": b"a,b\n",
    "odd.exe": b"MZ",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.md").write_text("secret")
    reports = tmp_path / "reports"
    write_report(reports / "gpus-of-a-week-1f3c", FILES)
    return reports


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    with serving("127.0.0.1", 0, list, list, Metrics().registry, Pages(standing_by, lambda: folder)) as found:
        yield found


def asked(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    """As it is written: urllib would tidy paths up."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host=False)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def test_the_status_page_may_run_and_ask_for_nothing(port: int) -> None:
    for path in ("/", "/still", "/?x=1"):
        status, headers, body = asked(port, path)
        assert status == 200
        assert headers["Content-Type"] == "text/html; charset=utf-8"
        assert b"This replica stands by: gpuwatch-1_1234 leads" in body
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert re.findall(r"script-src ([^;]*)", policy) == [f"'{SCRIPT_HASH}'"]
    assert b"script-src" not in body  # the page's own policy: none
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert asked(port, "/", "HEAD")[2] == b""
    assert asked(port, "/", "POST")[0] == 501


def test_reports_are_listed_and_their_files_given(port: int, folder: Path) -> None:
    (report,) = [item for item in folder.iterdir() if item.is_dir()]
    listed = asked(port, "/reports/")[2].decode()
    assert "GPUs of a week" in listed
    assert f'href="{report.name}/report.html"' in listed
    assert "odd.exe" not in listed  # it is not served either
    for name, kind in (
        ("report.html", "text/html; charset=utf-8"),
        ("report.json", "application/json"),
        ("teams.csv", "text/csv; charset=utf-8"),
    ):
        status, headers, body = asked(port, f"/reports/{report.name}/{name}")
        assert (status, headers["Content-Type"], body) == (200, kind, FILES[name])
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    "path",
    [
        "/reports/../secret.md",
        "/reports/../../secret.md",
        "/reports//secret.md",
        "/reports/./report.html",
        "/reports/%2e%2e/secret.md",
        "/reports/..%2fsecret.md",
        "/reports/{report}/../../secret.md",
        "/reports/{report}/..",
        "/reports/{report}/%2e%2e%2f%2e%2e%2fsecret.md",
        "/reports/{report}/state.json",
        "/reports/{report}/odd.exe",
        "/reports/{report}/none.html",
        "/reports/{report}/link.html",
        "/reports/link/report.html",
        "/reports/{report}",
        "/reports/{report}/",
        "/reports/.token/x.md",
        "/reports",
        "/secret.md",
        "//etc/passwd",
        "/reports/{report}/report.html%00.md",
    ],
)
def test_nothing_else_of_the_disk_is_given(port: int, folder: Path, path: str) -> None:
    (report,) = [item for item in folder.iterdir() if item.is_dir()]
    (report / "link.html").symlink_to(folder.parent / "secret.md")
    (folder / "link").symlink_to(report)
    status, _, body = asked(port, path.format(report=report.name))
    assert status == 404
    assert b"secret" not in body
    assert b"There are /, /reports/" in body


def test_a_link_in_place_of_a_reports_file_is_not_followed(port: int, folder: Path) -> None:
    (report,) = [item for item in folder.iterdir() if item.is_dir()]
    (report / "report.html").unlink()
    (report / "report.html").symlink_to(folder.parent / "secret.md")
    assert asked(port, f"/reports/{report.name}/report.html")[0] == 404


def test_a_report_without_a_heading_has_its_folders_name(port: int, folder: Path) -> None:
    write_report(folder / "another-1f3c", {"report.html": b"x"})
    listed = asked(port, "/reports/")[2].decode()
    assert "GPUs of a week" in listed
    assert ">another-1f3c<" in listed


def test_without_a_folder_there_are_none(tmp_path: Path) -> None:
    with serving("127.0.0.1", 0, list, list, Metrics().registry, Pages(standing_by, lambda: tmp_path / "none")) as port:
        assert b"There is no report yet." in asked(port, "/reports/")[2]


def test_pages_can_be_left_away() -> None:
    with serving("127.0.0.1", 0, list, list, Metrics().registry) as port:
        for path in ("/", "/reports/"):
            status, _, body = asked(port, path)
            assert (status, body) == (404, b"There are /healthz, /readyz and /metrics.\n")


def test_times_of_jobs_can_be_read_while_one_of_them_hangs() -> None:
    let_go = threading.Event()
    jobs = Jobs((Job("hang", lambda: [let_go.wait(20), None][1], 60, seconds=60),), Metrics(), ())
    jobs.start()
    try:
        wait_until(lambda: "hang" in jobs.times, lambda: "it did not start", 10)
        with jobs._changed:  # whatever else is at it
            began = time.monotonic()
            found = jobs.times["hang"]
            assert time.monotonic() - began < 10
        assert found.running_since is not None
    finally:
        let_go.set()
        assert jobs.stop(10) == []
    assert jobs.times["hang"].running_since is None
    assert jobs.times["hang"].succeeded_at is not None
