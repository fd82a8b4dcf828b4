"""Where reports go, and how hard to try."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

_REFERENCE = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)", re.DOTALL)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Destinations of reports. A setting that is '' or None is no destination.

    folder: a report becomes a folder of files in it.
    s3_bucket, s3_prefix, s3_region: objects are named prefix/report/file. Credentials come from boto3's chain:
        environment, shared files, the Pod's identity.
    s3_endpoint: of an S3-compatible store, '' for AWS.
    urls: of Apprise, for Slack (slack://), Teams (workflows://), e-mail (mailtos://) and any webhook (jsons://). Each
        is `env:NAME` or `file:PATH`, which hold the URL, or the URL itself; one that holds a secret belongs into a
        variable or a file.
    attempts: in one run, each after a wait.
    backoff_seconds, backoff_max_seconds: the wait after the first failed attempt, doubled with each up to the second,
        with jitter: a minute in all outlasts a restart of the receiver, and does not hold up the next report.
    retry_seconds, retry_max_seconds: a process that stays tries again so long after a run that failed, doubled with
        each up to the second: with 4 attempts a run and 40 in all, an outage of eight hours is outlasted.
    max_attempts: over all runs; then a report is given up for a destination, and its files stay in the outbox.
    timeout_seconds: for a connection, and for an answer.
    attach_files: to e-mails.
    """

    folder: Path | None = None
    s3_bucket: str = ""
    s3_prefix: str = ""
    s3_endpoint: str = ""
    s3_region: str = ""
    urls: tuple[str, ...] = field(default=(), repr=False)
    attempts: int = 4
    max_attempts: int = 40
    retry_seconds: float = 60.0
    retry_max_seconds: float = 14_400.0
    backoff_seconds: float = 2.0
    backoff_max_seconds: float = 60.0
    timeout_seconds: float = 15.0
    attach_files: bool = True

    def __post_init__(self) -> None:
        for name in ("attempts", "max_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"delivery.{name} is {getattr(self, name)!r}; it has to be 1 or more")
        for name in ("backoff_seconds", "backoff_max_seconds", "retry_seconds", "retry_max_seconds"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"delivery.{name} is {getattr(self, name)!r}; it has to be a number of seconds")
        if not 0 < self.timeout_seconds < float("inf"):
            raise ValueError(f"delivery.timeout_seconds is {self.timeout_seconds!r}; it has to be above 0")
        if not self.s3_bucket and (self.s3_prefix or self.s3_endpoint or self.s3_region):
            raise ValueError("delivery.s3_bucket is empty, but other settings of S3 are not; name the bucket")
        if self.s3_endpoint:
            parts = urlsplit(self.s3_endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("delivery.s3_endpoint has to be a URL such as https://minio.example:9000")
            if parts.username or parts.password:
                raise ValueError("delivery.s3_endpoint holds credentials; put them into AWS_ACCESS_KEY_ID and so on")
        for number, url in enumerate(self.urls, 1):
            # The value may be a secret, so only its place is named.
            if not _REFERENCE.fullmatch(url) and not _URL.fullmatch(url):
                raise ValueError(
                    f"delivery.urls, entry {number}, is none of env:NAME, file:PATH and an Apprise URL such as "
                    "jsons://host/path"
                )
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("delivery.urls names one destination twice")

    def again_after(self, attempts: int) -> float:
        """Seconds after the last run until the next one, after so many attempts in all that failed.

        >>> policy = DeliveryPolicy()
        >>> [policy.again_after(attempts) for attempts in (0, 1, 4, 5, 8, 40)]
        [0.0, 60.0, 60.0, 120.0, 120.0, 14400.0]
        """
        runs = -(-attempts // self.attempts)
        return min(self.retry_seconds * 2.0 ** (runs - 1), self.retry_max_seconds) if runs else 0.0
