"""How to reach a Prometheus-compatible server. Standard library only, so that settings import quickly."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit, urlunsplit

TARGET_LABELS = ("job", "instance", "namespace", "pod")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Address and credentials of a Prometheus API, and limits for its queries.

    url: up to, not including, `/api/v1`: `https://prom.example`, `https://mimir.example/prometheus`,
    `http://vmselect:8481/select/0/prometheus`. A user and password in it become `username` and `password`.
    bearer_token: sent with each query; a file is safer.
    username, password: for basic authentication, instead of a token.
    insecure_skip_verify: true trusts any certificate; for tests.
    bearer_token_file: read before each query, as mounted tokens are rotated.
    ca_file: PEM with the authorities to trust instead of the system's; it wins over REQUESTS_CA_BUNDLE.
    cert_file, key_file: client certificate (mTLS); without key_file, cert_file holds both.
    headers: sent with each query, e.g. `X-Scope-OrgID` for Mimir's tenants.
    matchers: label → value that only the series of this cluster have, e.g. `cluster: eu-1` on Thanos; '' for series
    without the label. Added to every query. Without matchers, gpuwatch looks for labels such as `cluster` itself.
    trusted_targets: exporters that gpuwatch cannot recognise, such as those outside Kubernetes: each item is labels
    among job, instance, namespace and pod, which all have to match.
    timeout_seconds: for one query; sent to the server, after which gpuwatch waits 5 s more for the server's error.
    retries: further attempts on 429, 5xx and broken connections.
    concurrency: queries at once.
    max_samples_per_query: queries of more samples are divided by Node beforehand; below the 50 million of Prometheus'
    --query.max-samples. Where a server allows less, gpuwatch divides further.

    Raises ValueError with the field's name, without a secret's value. Secrets are not in the repr.
    """

    url: str
    bearer_token: str = field(default="", repr=False)
    bearer_token_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    insecure_skip_verify: bool = False
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    matchers: Mapping[str, str] = field(default_factory=dict)
    trusted_targets: tuple[Mapping[str, str], ...] = ()
    timeout_seconds: float = 60.0
    retries: int = 3
    concurrency: int = 4
    max_samples_per_query: int = 20_000_000

    def __post_init__(self) -> None:
        self._take_url_apart()
        self._check_credentials()
        self._check_headers()
        self._check_matchers()
        for name in ("timeout_seconds", "concurrency", "max_samples_per_query"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: must be greater than 0, is {getattr(self, name)}")
        if not self.retries >= 0:
            raise ValueError(f"retries: must not be negative, is {self.retries}")

    @property
    def secrets(self) -> tuple[str, ...]:
        """Values to remove from messages; those under 8 characters are too common in ordinary text."""
        return tuple(value for value in (self.bearer_token, self.password, *self.headers.values()) if len(value) >= 8)

    def _take_url_apart(self) -> None:
        try:
            parts = urlsplit(self.url.strip())
            port = parts.port
        except ValueError:
            # The parser's message shows the url and a password in it.
            raise ValueError("url: cannot be read; write it as https://prometheus.example:9090") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("url: must begin with http:// or https:// and name a host")
        if parts.query or parts.fragment:
            raise ValueError("url: must have no ? or #; give tokens and tenants as bearer_token or headers")
        if "/api/v1" in parts.path.rpartition("/proxy")[2]:  # the API server's own proxy has it before /proxy
            raise ValueError("url: give the part before /api/v1, for example https://mimir.example/prometheus")
        if parts.username is not None or parts.password is not None:
            if self.username or self.password:
                raise ValueError("username: set both in the url and separately; remove one")
            object.__setattr__(self, "username", unquote(parts.username or ""))
            object.__setattr__(self, "password", unquote(parts.password or ""))
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        place = host if port is None else f"{host}:{port}"
        object.__setattr__(self, "url", urlunsplit((parts.scheme, place, parts.path.rstrip("/"), "", "")))

    def _check_credentials(self) -> None:
        ways = [name for name in ("bearer_token", "bearer_token_file", "username") if getattr(self, name)]
        if len(ways) > 1:
            raise ValueError(f"{ways[1]}: {' and '.join(ways)} are both given; leave one out")
        if self.password and not self.username:
            raise ValueError("username: missing, but a password is set")
        if ":" in self.username:
            raise ValueError("username: cannot hold a colon in basic authentication")
        if not self.bearer_token.isprintable() or not self.bearer_token.isascii():
            raise ValueError("bearer_token: contains a line break or another character that a header cannot have")
        if self.key_file and not self.cert_file:
            raise ValueError("cert_file: missing, but a key_file is set")
        if self.ca_file and self.insecure_skip_verify:
            raise ValueError("insecure_skip_verify: contradicts ca_file; leave one out")

    def _check_headers(self) -> None:
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name):
                raise ValueError(f"headers: {name!r} is no header name; correct it")
            if not value.isprintable() or value != value.strip():
                raise ValueError(f"headers: the value of {name} contains a line break, or begins or ends with a space")
            if name.lower() == "authorization" and (self.bearer_token or self.bearer_token_file or self.username):
                raise ValueError(
                    "headers: Authorization contradicts bearer_token, bearer_token_file and username; drop it"
                )
        object.__setattr__(self, "headers", dict(self.headers))

    def _check_matchers(self) -> None:
        for name in self.matchers:
            if not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
                raise ValueError(f"matchers: {name!r} is no label name; correct it")
        for item in self.trusted_targets:
            if unknown := sorted(item.keys() - set(TARGET_LABELS)):
                raise ValueError(f"trusted_targets: {', '.join(unknown)} is none of {', '.join(TARGET_LABELS)}")
            if not item or not all(item.values()):
                raise ValueError(
                    "trusted_targets: an item without a label or a value would trust every target; fill it"
                )
