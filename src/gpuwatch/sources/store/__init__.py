"""Stored state: profiles, advice and outcomes between runs, and Remediations in the cluster."""


class StoreError(Exception):
    """The state cannot be read or written. The message has the place and what to do; no write was partial."""
