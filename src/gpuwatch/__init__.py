"""gpuwatch: GPU observability and remediation for Kubernetes. `gpuwatch.read` gives the results as DataFrames."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuwatch.app.frames import Frames, read

__version__ = "0.1.0"
__all__ = ["Frames", "__version__", "read"]


def __getattr__(name: str) -> Any:
    """Import `frames` on first use: every command imports this module, and few need pandas."""
    if name in ("Frames", "read"):
        from gpuwatch.app import frames

        return getattr(frames, name)
    raise AttributeError(f"module 'gpuwatch' has no attribute {name!r}")
