"""The exit codes of all commands; docs/names.md lists them from here."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0, "Done."
    FAILED = 1, "What was asked for could not be done: a source is missing or did not answer, or a file is unusable."
    USAGE = 2, "The command line or the settings are wrong. Nothing was asked of any source."
    FOUND = 3, "`analyze --fail-on-findings` found something degraded or idle."
    LIMITED = 4, "`doctor` read its sources, and a rule lacks signals."
    INTERRUPTED = 130, "Ctrl-C, or another SIGINT."

    meaning: str

    def __new__(cls, value: int, meaning: str) -> "ExitCode":
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code
