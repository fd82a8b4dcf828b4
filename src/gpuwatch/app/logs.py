"""Log lines as text for people or as one JSON object per line."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

from gpuwatch.facts.model.plain_text import plain

LogFormat = Literal["text", "json"]


def fields(**values: object) -> dict[str, dict[str, object]]:
    """`log.info("…", extra=fields(gpus=8))`: values for machines beside the sentence."""
    return {"fields": values}


class _Text(logging.Formatter):
    """A line for each record; those of an exception below it begin with spaces."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{_at(record)} {record.levelname:<7} {plain(record.getMessage())}"]
        if record.exc_info:
            lines += ("  " + plain(line) for line in self.formatException(record.exc_info).splitlines())
        return "\n".join(lines)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _at(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def log_to_stderr(form: LogFormat, verbosity: int = 0) -> None:
    """Sets up logging for the process; libraries log from WARNING on. verbosity: 1 adds the steps of a command, 2 all
    that the libraries log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.DEBUG if verbosity > 1 else logging.WARNING)
    logging.getLogger("gpuwatch").setLevel(logging.DEBUG if verbosity else logging.INFO)
    # Our own listener logs late and overlapping runs.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
