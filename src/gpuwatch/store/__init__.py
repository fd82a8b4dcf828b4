"""What is remembered: profiles, advice and outcomes between runs, and Remediations in the cluster."""


class StoreError(Exception):
    """The state cannot be read or written. The message says what, where, and what to do; nothing was half written."""
