"""The API version under which a kind is known, for worlds that tests make of names."""

from gpuwatch.facts.frameworks import kind_of


def api_version(kind: str) -> str:
    """kind: may have its API group behind it, 'Job.batch.volcano.sh'. One that is not known is somebody else's."""
    found = kind_of(kind)
    if found is None:
        return "apps/v1" if kind == "DaemonSet" else "example.org/v1"
    return found.api_version if found.versions else f"{found.group}/v1"
