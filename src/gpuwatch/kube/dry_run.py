"""The writer that changes nothing: the server checks each write as it would otherwise, and stores none of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gpuwatch.kube.live_writer import LiveWriter
from gpuwatch.model.remediation import ObjectRef


class DryRunWriter(LiveWriter):
    """Admission, validation, rights, preconditions and budgets all decide (`dryRun=All`). Events are left out."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._dry = True

    @property
    def description(self) -> str:
        return f"{super().description} (dry run)"

    def event(
        self, regarding: ObjectRef, *, at: datetime, reason: str, action: str, note: str, warning: bool = False
    ) -> None:
        """Nothing: nobody is notified of what was not done."""
