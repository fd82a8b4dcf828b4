"""A cluster recorded as a folder of `kubectl get … -o json` or `-o yaml` lists."""

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from gpuwatch.facts.frameworks.framework import Kind
from gpuwatch.facts.frameworks.objects import KindKey
from gpuwatch.facts.model.cluster import Cluster, FactKind, Unread
from gpuwatch.facts.model.plain_text import plain_json
from gpuwatch.facts.model.telemetry import Gap, GapKind
from gpuwatch.sources.kube import kinds, wire
from gpuwatch.sources.kube.assemble import read_cluster
from gpuwatch.sources.kube.decode import UNDECODABLE, BadObjects, Listing, Take, decode_named, place_of, take_all
from gpuwatch.sources.kube.reader import ClusterError, ClusterReader

T = TypeVar("T")

HOW_TO_RECORD = (
    "for kind in nodes pods namespaces poddisruptionbudgets replicasets deployments statefulsets jobs; "
    "do kubectl get $kind -A -o json > {folder}/$kind.json; done"
)
_GZIP_MAGIC = b"\x1f\x8b"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_page = msgspec.json.Decoder(wire.WirePage)
_array = msgspec.json.Decoder(list[msgspec.Raw])


class RecordedCluster(ClusterReader):
    """Reads every file below the folder, of any name: a List or single objects, as JSON or YAML (also with
    several documents), gzipped or not. If files overlap, an object's highest resourceVersion counts."""

    def __init__(self, folder: Path) -> None:
        self.description = f"recorded cluster in {folder}"
        self._folder = folder

    def check(self) -> None:
        """Raises ClusterError where the folder does not exist or holds no file."""
        if not self._folder.is_dir() or not any(self._folder.iterdir()):
            lacks = "is empty" if self._folder.is_dir() else "is not a folder"
            raise ClusterError(
                f"The recorded cluster {self._folder} {lacks}. Record one with: "
                f"{HOW_TO_RECORD.format(folder=self._folder)}"
            )

    def read(self, now: datetime) -> Cluster:
        """Raises ClusterError when the folder holds no object of a known kind."""
        recording = _Recording(self._folder)
        if not recording.objects_by_kind:
            broken = "".join(f" {gap.what}: {gap.detail}" for gap in recording.gaps[:3])
            raise ClusterError(
                f"{self._folder} holds no Kubernetes object that gpuwatch reads.{broken} Record a cluster with: "
                f"{HOW_TO_RECORD.format(folder=self._folder)}"
            )
        cluster = read_cluster(recording, now)
        # An unreadable file may have held objects of any kind.
        lost = (Unread(kind, "", f"{gap.what}: {gap.detail}") for gap in recording.gaps[:1] for kind in FactKind)
        return replace(cluster, gaps=(*recording.gaps, *cluster.gaps), unread=(*lost, *cluster.unread))


@dataclass(frozen=True, slots=True)
class _RecordedObject:
    raw: msgspec.Raw
    version: int
    file: str


class _BadFileError(Exception):
    """A file, or the rest of one, cannot be read. The message has the place and the reason."""


@dataclass(slots=True)
class _Recording:
    """The `assemble.Source` of a folder."""

    folder: Path
    objects_by_kind: dict[KindKey, dict[tuple[str, str], _RecordedObject]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    empty: set[Kind] = field(default_factory=set)
    """Kinds of recorded lists without an object. In kubectl's lists only the file's name tells the kind."""

    def __post_init__(self) -> None:
        for path in _files(self.folder):
            name = str(path.relative_to(self.folder)) if path != self.folder else path.name
            try:
                for document in _documents(path):
                    self._add_document(document, name)
            except _BadFileError as error:
                self.gaps.append(Gap(kind=GapKind.BAD_INPUT, what=f"file {name}", detail=str(error)))

    def objects(self, kind: Kind, take: Take[T], version: str = "") -> Listing[T]:
        """All recorded objects of the kind, in any API version."""
        del version
        placed = self.objects_by_kind.get(kind.key, {})
        if not placed and kind not in self.empty:
            detail = (
                f"The recording holds no {kind.kind}. If the cluster has any, add the output of "
                f"`kubectl get {kind.resource} -A -o json`."
            )
            return Listing(failure=Gap(kind=GapKind.NOT_SERVED, what=kind.resource, detail=detail))
        found: list[T] = []
        bad = BadObjects()
        take_all(((item.raw, f"file {item.file}") for item in placed.values()), take, found, bad)
        return Listing(found, bad=bad.gaps(kind.resource), bad_places=frozenset(bad.places))

    def _add_document(self, document: bytes, file: str) -> None:
        try:
            if document.lstrip()[:1] == b"[":
                page = wire.WirePage(kind="List", items=_array.decode(document))
            else:
                page = _page.decode(document)
        except UNDECODABLE as error:
            raise _BadFileError(f"{error}; the file holds neither a Kubernetes object nor a List.") from error
        bad = BadObjects()
        if page.kind.endswith("List") and not page.items:
            told = {Path(file).name.partition(".")[0], page.kind.removesuffix("List").lower()}
            self.empty.update(kind for kind in kinds.LISTED if not told.isdisjoint((kind.plural, kind.kind.lower())))
        is_list = page.items is not None or page.kind.endswith("List")
        # The items of a typed list (PodList) do not repeat their kind.
        kind = page.kind.removesuffix("List") if is_list else ""
        for raw in (page.items or ()) if is_list else (msgspec.Raw(document),):
            try:
                self._add(raw, kind, page.api_version, file)
            except (msgspec.DecodeError, ValueError) as error:
                bad.add(place_of(raw), f" (file {file}): {error}")
        self.gaps += bad.gaps(f"file {file}")

    def _add(self, raw: msgspec.Raw, kind: str, api_version: str, file: str) -> None:
        """Raises DecodeError or ValueError for what is no Kubernetes object."""
        named = decode_named(raw)
        kind = named.kind or kind
        if not kind or named.metadata is None:
            raise ValueError("no Kubernetes object: `kind` or `metadata` is missing")
        group = (named.api_version or api_version).rpartition("/")[0]
        key = (group, kind)
        if key not in kinds.READ:
            return
        meta = named.metadata
        version = int(meta.resource_version) if meta.resource_version.isdecimal() else 0
        known = self.objects_by_kind.setdefault(key, {})
        older = known.get((meta.namespace, meta.name))
        if older is None or older.version < version:
            known[meta.namespace, meta.name] = _RecordedObject(raw, version, file)


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise ClusterError(
            f"There is no folder {folder}. Record a cluster with: mkdir {folder}; {HOW_TO_RECORD.format(folder=folder)}"
        )
    return sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )


def _documents(path: Path) -> Iterator[bytes]:
    """The JSON of each document of a file. Raises _BadFileError at the first that cannot be parsed."""
    data = _content(path)
    if data.lstrip()[:1] in (b"{", b"["):
        yield plain_json(_checked_json(data))
    elif data.strip():
        yield from _yaml_documents(data)


def _content(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        if data.startswith(_UTF16):  # what `kubectl … > file` writes in PowerShell
            data = data.decode("utf-16").encode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise _BadFileError(f"It cannot be read: {error}.") from error
    return data.removeprefix(codecs.BOM_UTF8)


def _checked_json(data: bytes) -> bytes:
    try:
        _validate(data)
        _ = data.decode()
    except UNDECODABLE as error:
        reason: Exception = error
        try:
            json.loads(data)
        except ValueError as placed:  # with line and column; msgspec has only the byte
            reason = placed
        raise _BadFileError(f"{reason}; the file is left out.") from error
    return data


_validate = msgspec.json.Decoder(msgspec.Raw).decode


def _yaml_documents(data: bytes) -> Iterator[bytes]:
    documents: Iterator[Any] = yaml.load_all(data, yaml.CSafeLoader)
    while True:
        try:
            document = next(documents)
        except StopIteration:
            return
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
            raise _BadFileError(f"{place}{error.problem or error}; the rest of the file is left out.") from error
        except yaml.YAMLError as error:
            raise _BadFileError(f"It is neither JSON nor YAML text: {error}.") from error
        if document is None:
            continue
        if not isinstance(document, dict | list):
            raise _BadFileError("Text that is neither an object nor a List; the rest of the file is left out.")
        yield plain_json(msgspec.json.encode(document))
