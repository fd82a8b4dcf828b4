"""Rules that find degraded GPUs. Pure."""
