"""gpuwatch: GPU observability and remediation for Kubernetes."""

__version__ = "0.1.0"
