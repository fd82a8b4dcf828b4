"""Plain requests to an API server: what a test creates, and what a user may do."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import requests
from kubernetes import config
from kubernetes.client import Configuration

Object = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """One resource as discovery tells it. `path`: URL of its objects in all Namespaces."""

    api_version: str
    name: str
    kind: str
    namespaced: bool
    verbs: frozenset[str]

    @property
    def base(self) -> str:
        return f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"

    def path(self, namespace: str = "") -> str:
        """URL of its objects in one Namespace, or in all."""
        return f"{self.base}/namespaces/{namespace}/{self.name}" if namespace else f"{self.base}/{self.name}"


def settings_of(kubeconfig: Path | str) -> Any:
    """Address, certificates and token of a kubeconfig's current context; of several files, as $KUBECONFIG names them.
    Raises kubernetes.config.ConfigException where it cannot be used."""
    settings = Configuration()
    load: Any = config
    load.load_kube_config(str(kubeconfig), client_configuration=settings, persist_config=False)
    return settings


class Api:
    """The API server of a kubeconfig, as its user."""

    def __init__(self, kubeconfig: Path | str) -> None:
        settings = settings_of(kubeconfig)
        self._url: str = settings.host
        self._session = requests.Session()
        self._session.trust_env = False  # REQUESTS_CA_BUNDLE would replace the server's own certificate
        self._session.verify = (settings.ssl_ca_cert or True) if settings.verify_ssl else False
        self._session.cert = (settings.cert_file, settings.key_file) if settings.cert_file else None
        self._session.auth = lambda request: _authorized(request, settings)

    def answer(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        parameters: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Whatever the server answers."""
        return self._session.request(
            method,
            f"{self._url}{path}",
            data=None if body is None else json.dumps(body),
            headers={"Content-Type": content_type},
            params=parameters,
            timeout=30,
        )

    def get(self, path: str, **parameters: str) -> Object:
        """Raises RuntimeError with the server's words where the answer is no success; so do all below."""
        return self._successful("GET", path, parameters=parameters)

    def create(self, object_: Object) -> Object:
        """The object as the server stored it, with its `status` written afterwards where it has one."""
        resource = self.resource(object_["apiVersion"], object_["kind"])
        path = resource.path(object_["metadata"].get("namespace", ""))
        created = self._successful("POST", path, object_)
        if "status" not in object_:
            return created
        status = {"status": object_["status"]}
        path = f"{path}/{created['metadata']['name']}/status"
        return self._successful("PATCH", path, status, content_type="application/merge-patch+json")

    def delete(self, object_: Object) -> None:
        meta = object_["metadata"]
        resource = self.resource(object_["apiVersion"], object_["kind"])
        self._successful("DELETE", f"{resource.path(meta.get('namespace', ''))}/{meta['name']}")

    def changes(self, path: str, version: str, *, seconds: int) -> Iterator[Object]:
        """Each change after this resourceVersion, as a watch tells it, until so many seconds have passed."""
        wanted = {"watch": "true", "resourceVersion": version, "timeoutSeconds": f"{seconds}"}
        with self._session.get(f"{self._url}{path}", params=wanted, stream=True, timeout=30) as answer:
            for line in answer.iter_lines(chunk_size=None):
                yield json.loads(line)

    def kubectl_list(self, api_version: str, kind: str) -> Object:
        """What `kubectl get KIND -A -o json` prints: all pages in one List, each object with its kind."""
        path = self.resource(api_version, kind).path()
        items: list[Object] = []
        token = ""
        while True:
            page = self.get(path, limit="500", **({"continue": token} if token else {}))
            for item in page["items"]:
                item["metadata"].pop("managedFields", None)
                items.append({"apiVersion": api_version, "kind": kind, **item})
            token = page["metadata"].get("continue", "")
            if not token:
                return {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"resourceVersion": ""}}

    def resource(self, api_version: str, kind: str) -> Resource:
        key = (api_version, kind)
        if key not in self._resources:
            del self._resources  # a CustomResourceDefinition may have come since
        return self._resources[key]

    @cached_property
    def _resources(self) -> dict[tuple[str, str], Resource]:
        return {(found.api_version, found.kind): found for found in self.resources()}

    def resources(self) -> Iterator[Resource]:
        """Every resource of every served version, without subresources."""
        groups = self.get("/apis")["groups"]
        versions = ["v1", *(version["groupVersion"] for group in groups for version in group["versions"])]
        for version in versions:
            base = f"/apis/{version}" if "/" in version else f"/api/{version}"
            answer = self.answer("GET", base)
            # A group whose definitions were just deleted is listed for a moment more.
            for item in answer.json()["resources"] if answer.ok else ():
                if "/" not in item["name"]:
                    verbs = frozenset(item["verbs"])
                    yield Resource(version, item["name"], item["kind"], item["namespaced"], verbs)

    def _successful(self, method: str, path: str, body: object = None, **options: Any) -> Object:
        answer = self.answer(method, path, body, **options)
        if not answer.ok:
            raise RuntimeError(f"{method} {path} was answered with {answer.status_code}: {answer.text}")
        found: Object = answer.json()
        return found


def _authorized(request: requests.PreparedRequest, settings: Any) -> requests.PreparedRequest:
    """With the token as it is now: one that a command or a provider gives is renewed in time."""
    token = settings.get_api_key_with_prefix("BearerToken", alias="authorization")
    if token:
        request.headers["Authorization"] = token if " " in token else f"Bearer {token}"
    return request
