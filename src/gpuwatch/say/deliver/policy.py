"""Destinations of reports, and retries."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from gpuwatch.facts.model.bounds import require

_REFERENCE = re.compile(r"(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)", re.DOTALL)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.+", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryPolicy:
    """Destinations of reports. A setting that is '' or None is no destination.

    folder: each report becomes a folder in it.
    s3_bucket, s3_prefix, s3_region: objects are named prefix/report/file. Credentials come from boto3's chain:
        environment, shared files, the Pod's identity.
    s3_endpoint: of an S3-compatible store, '' for AWS.
    urls: of Apprise, for Slack (slack://), Teams (workflows://), e-mail (mailtos://) and any webhook (jsons://). Each
        is the URL itself, or `env:NAME` or `file:PATH` that contains it; keep secrets in a variable or a file.
    attempts: in one run, each after a wait.
    backoff_seconds, backoff_max_seconds: first wait after a failed attempt, and its maximum; it doubles each time, with
        jitter. A minute in all outlasts a restart of the receiver and does not delay the next report.
    retry_seconds, retry_max_seconds: first wait of a long-running process after a failed run, and its maximum; it
        doubles each time. With 4 attempts a run and 40 in all, retries outlast an outage of eight hours.
    max_attempts: over all runs; then gpuwatch gives the report up for a destination. Its files stay in the outbox.
    timeout_seconds: for a connection, and for a response.
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
        require(self, "delivery.", ("attempts", "max_attempts"), lambda value: value >= 1, "1 or more")
        waits = ("backoff_seconds", "backoff_max_seconds", "retry_seconds", "retry_max_seconds")
        require(self, "delivery.", waits, lambda value: 0 <= value < float("inf"), "a number of seconds")
        require(self, "delivery.", ("timeout_seconds",), lambda value: 0 < value < float("inf"), "above 0")
        if not self.s3_bucket and (self.s3_prefix or self.s3_endpoint or self.s3_region):
            raise ValueError("delivery.s3_bucket is empty, but other settings of S3 are not; name the bucket")
        if self.s3_endpoint:
            parts = urlsplit(self.s3_endpoint)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("delivery.s3_endpoint has to be a URL such as https://minio.example:9000")
            if parts.username or parts.password:
                raise ValueError("delivery.s3_endpoint holds credentials; put them into AWS_ACCESS_KEY_ID and so on")
        for number, url in enumerate(self.urls, 1):
            # The value may be a secret, so the message has only its position.
            if not _REFERENCE.fullmatch(url) and not _URL.fullmatch(url):
                raise ValueError(
                    f"delivery.urls, entry {number}, has to be env:NAME, file:PATH or an Apprise URL such as "
                    "jsons://host/path"
                )
        if len(set(self.urls)) < len(self.urls):
            raise ValueError("delivery.urls names one destination twice")

    def again_after(self, attempts: int) -> float:
        """Seconds from the last run to the next one, after so many failed attempts in all.

        >>> policy = DeliveryPolicy()
        >>> [policy.again_after(attempts) for attempts in (0, 1, 4, 5, 8, 40)]
        [0.0, 60.0, 60.0, 120.0, 120.0, 14400.0]
        """
        runs = -(-attempts // self.attempts)
        return min(self.retry_seconds * 2.0 ** (runs - 1), self.retry_max_seconds) if runs else 0.0
