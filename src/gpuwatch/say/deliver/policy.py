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
    retry_seconds: first wait of a long-running process after a turn of four attempts that failed; it doubles each time,
        up to four hours.
    max_attempts: over all turns; then gpuwatch gives it up for a destination.
    timeout_seconds: for a connection, and for a response.
    attach_files: to e-mails.
    """

    folder: Path | None = None
    s3_bucket: str = ""
    s3_prefix: str = ""
    s3_endpoint: str = ""
    s3_region: str = ""
    urls: tuple[str, ...] = field(default=(), repr=False)
    max_attempts: int = 40
    retry_seconds: float = 60.0
    timeout_seconds: float = 15.0
    attach_files: bool = True

    def __post_init__(self) -> None:
        require(self, "delivery.", ("max_attempts",), lambda value: value >= 1, "1 or more")
        require(self, "delivery.", ("retry_seconds",), lambda value: 0 <= value < float("inf"), "a number of seconds")
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
