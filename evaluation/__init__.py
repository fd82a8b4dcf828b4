"""How good gpuwatch is, measured by `make evaluate`. Not installed with gpuwatch, which imports nothing of it."""
