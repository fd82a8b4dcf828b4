"""Destinations of reports: a folder, an S3 bucket, and the services of Apprise. Each sends, or raises SendError."""

import hashlib
import logging
import mimetypes
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gpuwatch.say.deliver.policy import DeliveryPolicy
from gpuwatch.sources.store.state_file import replace_file

# In these schemes the host is an address; elsewhere (slack://token/…) it can be a secret.
_HOST_IS_NO_SECRET = frozenset({"json", "jsons", "form", "forms", "xml", "xmls", "mailto", "mailtos", "workflows"})
_TRY_AGAIN = frozenset({408, 425, 429})
_ERROR_CHARS = 400
_BINARY = "application/octet-stream"


class SendError(Exception):
    """The report was not sent. The message has no secret. final: an immediate retry cannot help."""

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A report or notification as it is sent. id: see `Sending`."""

    id: str
    title: str
    summary_markdown: str
    files: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """name: without secrets, and the same in every run."""

    name: str
    send: Callable[[Message], None]


def destinations(policy: DeliveryPolicy) -> tuple[Destination, ...]:
    """Nothing is read or connected to before `send`."""
    found = []
    if policy.folder is not None:
        folder = policy.folder
        found.append(Destination(name=f"folder {folder}", send=lambda report: _to_folder(report, folder)))
    if policy.s3_bucket:
        where = f" at {policy.s3_endpoint}" if policy.s3_endpoint else ""
        name = f"s3://{'/'.join(filter(None, (policy.s3_bucket, policy.s3_prefix.strip('/'))))}{where}"
        found.append(Destination(name=name, send=lambda report: _to_s3(report, policy)))
    return (*found, *(_notification(entry, policy) for entry in policy.urls))


def names_of(policy: DeliveryPolicy) -> frozenset[str]:
    return frozenset(target.name for target in destinations(policy))


def of_people(policy: DeliveryPolicy) -> frozenset[str]:
    """Names of the notification services: chats, mail and webhooks."""
    return frozenset(_notification(entry, policy).name for entry in policy.urls)


def _to_folder(report: Message, folder: Path) -> None:
    try:
        target = folder / report.id
        target.mkdir(parents=True, exist_ok=True)
        for name, content in report.files.items():
            replace_file(target / name, [content])
    except OSError as error:
        raise SendError(f"{error.filename or folder}: {error.strerror}") from error


def _to_s3(report: Message, policy: DeliveryPolicy) -> None:
    """Keys derive from the report's content, so a retry overwrites objects with the same content."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client = boto3.session.Session().client(
            "s3",
            endpoint_url=policy.s3_endpoint or None,
            region_name=policy.s3_region or None,
            config=Config(
                connect_timeout=policy.timeout_seconds,
                read_timeout=policy.timeout_seconds,
                retries={"total_max_attempts": 1},  # `deliver` counts and records retries
                # Since 1.36 boto3 adds checksums that many S3-compatible stores refuse.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                s3={"addressing_style": "path"} if policy.s3_endpoint else {},
            ),
        )
        prefix = policy.s3_prefix.strip("/")
        for name, content in report.files.items():
            client.put_object(
                Bucket=policy.s3_bucket,
                Key="/".join(filter(None, (prefix, report.id, name))),
                Body=content,
                ContentType=mimetypes.guess_type(name)[0] or _BINARY,
            )
    except ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        details = error.response.get("Error", {})
        text = f"{details.get('Code', status)}: {details.get('Message', 'no message')}"
        raise SendError(text, final=400 <= status < 500 and status not in _TRY_AGAIN) from None
    except BotoCoreError as error:
        raise SendError(f"{type(error).__name__}: {error}") from None
    except OSError as error:
        raise SendError(f"{error.filename}: {error.strerror}") from error


def _notification(entry: str, policy: DeliveryPolicy) -> Destination:
    if entry.startswith(("env:", "file:")):
        name = entry
    else:
        parts = urlsplit(entry)
        host = f" {parts.hostname}" if parts.scheme.lower() in _HOST_IS_NO_SECRET and parts.hostname else ""
        # The hash distinguishes URLs of one service; it is too short to find a secret by.
        name = f"{parts.scheme.lower()}{host} ({hashlib.sha256(entry.encode()).hexdigest()[:6]})"
    return Destination(name=name, send=lambda report: _notify(report, _resolve(entry), policy))


def _resolve(entry: str) -> str:
    kind, _, where = entry.partition(":")
    if kind == "env":
        url = os.environ.get(where, "").strip()
        if not url:
            raise SendError(f"the variable {where} is not set; it has to hold an Apprise URL", final=True)
        return url
    if kind != "file":
        return entry
    try:
        lines = Path(where).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise SendError(f"{where}: cannot be read ({getattr(error, 'strerror', 'no text')})", final=True) from None
    if len(lines) != 1:
        raise SendError(f"{where}: has to hold one Apprise URL and nothing else", final=True)
    return lines[0]


def _notify(report: Message, url: str, policy: DeliveryPolicy) -> None:
    """At least once: a process killed during the call sends the report again, with the same Idempotency-Key where there
    are headers."""
    import apprise
    from apprise.attachment.memory import AttachMemory

    asset = apprise.AppriseAsset(async_mode=False, app_id="gpuwatch", app_desc="gpuwatch", app_url="")
    with _captured_log() as lines:
        plugin = apprise.Apprise.instantiate(url, asset=asset)
        if plugin is None:
            why = _reason(lines, url) or "unknown scheme, or a part is missing"
            raise SendError(f"Apprise does not understand the URL: {why}", final=True)
        plugin.socket_connect_timeout = plugin.socket_read_timeout = policy.timeout_seconds
        headers = getattr(plugin, "headers", None)
        if isinstance(headers, dict):
            headers.setdefault("Idempotency-Key", report.id)
        attach = None
        if url.lower().startswith(("mailto:", "mailtos:")) and policy.attach_files:
            attach = [
                AttachMemory(  # type: ignore[no-untyped-call]
                    content=content, name=name, mimetype=mimetypes.guess_type(name)[0] or _BINARY
                )
                for name, content in report.files.items()
            ]
        else:
            # Too long a message is cut, not refused. Apprise would keep only the first attachment.
            plugin.overflow_mode = apprise.OverflowMode.TRUNCATE
        sender = apprise.Apprise(asset=asset)
        sender.add(plugin)
        sent = sender.notify(
            title=report.title, body=report.summary_markdown, body_format=apprise.NotifyFormat.MARKDOWN, attach=attach
        )
    if not sent:
        raise SendError(_reason(lines, url) or "Apprise gives no reason")


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    """Apprise's log lines. Its calls return only true or false (caronc/apprise#306): the reason is in the log, for a
    failed connection at DEBUG. That level contains secrets, so the application's handlers do not get it."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = record.getMessage()
            if record.levelno >= logging.WARNING or text.startswith(("Socket Exception", "Response Details", "SMTP")):
                lines.append(text)

    log = logging.getLogger("apprise")
    listener = Listener()
    before = log.level, log.propagate
    log.addHandler(listener)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    try:
        yield lines
    finally:
        log.removeHandler(listener)
        log.setLevel(before[0])
        log.propagate = before[1]


def _reason(lines: list[str], url: str) -> str:
    """The log in one line, without parts of the URL that may be secret."""
    text = re.sub(r"\s+", " ", "; ".join(line.strip().rstrip(".") for line in lines))
    for secret in _secrets(url):
        text = text.replace(secret, "***")
    return text[:_ERROR_CHARS]


def _secrets(url: str) -> list[str]:
    """Parts of the URL that must not be shown, longest first: all but the scheme, a harmless host and `_WORDS`."""
    parts: Any = urlsplit(url)
    host = parts.hostname or "" if parts.scheme.lower() in _HOST_IS_NO_SECRET else ""
    rest = url.partition("://")[2]
    found = {rest, *re.split(r"[:/@?&=#+]", rest)}
    found |= {unquote(item) for item in found}
    shown = {host.lower(), "", *_WORDS}
    return sorted((item for item in found if item.lower() not in shown and len(item) > 2), key=len, reverse=True)


# Words in URLs that are no secrets; without them error messages would be unreadable.
_WORDS = frozenset({"hook", "smtp", "mode", "format", "verify", "yes", "from", "starttls", "ssl", "insecure"})
