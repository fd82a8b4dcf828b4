"""The terminal, or what stands in its place."""

from __future__ import annotations

import os

from rich.console import Console

_PIPE_WIDTH = 160


def output() -> Console:
    """Standard output. A pipe has no width: it gets one at which a line of a table mostly stays a line for grep,
    unless COLUMNS says which."""
    console = Console(highlight=False)
    return console if console.is_terminal or "COLUMNS" in os.environ else Console(highlight=False, width=_PIPE_WIDTH)
