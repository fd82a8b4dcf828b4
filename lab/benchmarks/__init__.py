"""How fast gpuwatch is, measured by `make bench`."""
