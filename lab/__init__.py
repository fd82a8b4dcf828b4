"""Simulated fleets, and what is measured on them. Stands beside the package: not in the wheel and not in the image, and
gpuwatch imports nothing of it."""
