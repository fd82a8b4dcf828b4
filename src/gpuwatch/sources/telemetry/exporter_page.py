"""Reads the exporters of one Node directly: one GET of each page, at the address that the API server has."""

import time
from collections.abc import Iterable, Sequence
from functools import cache
from queue import Empty, SimpleQueue
from threading import Thread

import requests
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from gpuwatch.facts.catalog.metrics import MetricRow, metric_rows, plausible_range
from gpuwatch.facts.model.telemetry import DeviceId, Scope, Signal, SourceRead
from gpuwatch.sources.telemetry.labels import ids
from gpuwatch.sources.telemetry.questions import in_si

_SECONDS = 5.0
"""For the connection and for each part of the answer; twice as much for all of it. Most take less than a second."""
_MOST_BYTES = 16 * 2**20
"""A page of a Node with 16 GPUs and all of DCGM's fields has less than one MiB."""
_OLD_SECONDS = 300
"""A sample with an older timestamp of its own is not of now; Prometheus looks back for so long."""
_PLAIN = "identity"
_HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": _PLAIN, "User-Agent": "gpuwatch"}


def read_exporters(urls: Sequence[str]) -> SourceRead:
    """What they show. Raises nothing: `failed` says what happened, also where one of several failed."""
    samples: list[Sample] = []
    now = time.time()
    for url in urls:
        try:
            samples += (one for family in text_string_to_metric_families(_page(url)) for one in family.samples)
        except (requests.RequestException, ValueError) as error:
            return SourceRead(failed=f"{url} could not be read: {error}.")
    return _taken((one for one in samples if now - float(one.timestamp or now) < _OLD_SECONDS), " and ".join(urls))


def _page(url: str) -> str:
    """In time also where the server sends byte by byte. Raises RequestException or ValueError."""
    answers: SimpleQueue[bytes | Exception] = SimpleQueue()
    Thread(target=lambda: answers.put(_got(url)), daemon=True).start()
    try:
        content = answers.get(timeout=2 * _SECONDS)
    except Empty:
        raise ValueError(f"its page took more than {2 * _SECONDS:g} s") from None
    if isinstance(content, Exception):
        raise content
    if not content.endswith(b"\n"):
        raise ValueError("its page is empty or cut off")
    return content.decode("utf-8", "backslashreplace")


def _got(url: str) -> bytes | Exception:
    """Sends no credentials, and follows no proxy and no redirect."""
    content = bytearray()
    try:
        with requests.Session() as session:
            session.trust_env = False  # neither its proxies nor ~/.netrc
            with session.get(url, headers=_HEADERS, timeout=_SECONDS, allow_redirects=False, stream=True) as answer:
                if answer.status_code != requests.codes.ok or answer.headers.get("Content-Encoding", _PLAIN) != _PLAIN:
                    return ValueError(f"it answered {answer.status_code}, which is no plain page")
                for chunk in answer.iter_content(65_536):
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        return ValueError(f"its page has more than {_MOST_BYTES} bytes")
    except requests.RequestException as error:
        return error
    return bytes(content)


@cache
def _rows() -> dict[str, list[MetricRow]]:
    """By metric. One that kept its name stands in the catalog for each version of its exporter; once is enough."""
    found: dict[str, list[MetricRow]] = {}
    for row in {(row.metric, row.signal, row.matchers): row for row in metric_rows()}.values():
        found.setdefault(row.metric, []).append(row)
    return found


def _taken(samples: Iterable[Sample], place: str) -> SourceRead:
    """Of the preferred metric of each signal: of several rows the highest, or the lowest if the catalog says so."""
    devices: set[DeviceId] = set()
    best: dict[tuple[DeviceId, Signal], tuple[int, dict[str, float]]] = {}
    each = ((one.labels, one.value, row) for one in samples for row in _rows().get(one.name, ()))
    for labels, last, row in each:
        found = ids(labels, row.vendor)
        if found is None or any(labels.get(label) != value for label, value in row.matchers):
            continue
        devices.update(found)
        value, (low, high) = in_si(float(last), row.scale), plausible_range(row.signal)
        key = (found[row.scope is Scope.PHYSICAL], row.signal)
        preference, kept = best.get(key, (row.preference, {}))
        if not low <= value <= high or (value == 0 and row.zero_means_absent) or row.preference > preference:
            continue
        kept = kept if row.preference == preference else {}
        variant = row.variant(labels)
        kept[variant] = (min if row.combine == "min" else max)(value, kept.get(variant, value))
        best[key] = (row.preference, kept)
    return SourceRead(place, frozenset(devices), {key: kept for key, (_, kept) in best.items()})
