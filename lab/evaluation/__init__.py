"""How good gpuwatch is, measured by `make evaluate`."""
