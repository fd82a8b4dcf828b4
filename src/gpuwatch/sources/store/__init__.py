"""Stored state: profiles, advice, known faults and deliveries between runs, and Remediations in the cluster."""

SCHEMA = 5
"""Of the saved rows. A state of another schema is refused. Increase it when an older gpuwatch would misread a row."""


class StoreError(Exception):
    """The state cannot be read or written. The message has the place and what to do; no write was partial."""


def other_schema(schema: int) -> str:
    which = "a newer" if schema > SCHEMA else "an older"
    return f"written by {which} gpuwatch (schema {schema}, this one knows only {SCHEMA})"
