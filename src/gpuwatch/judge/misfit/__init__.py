"""Rules that find workloads on the wrong devices. Pure."""
