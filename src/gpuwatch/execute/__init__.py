"""Takes what the plan admits and does it, one write at a time: notify, wait, re-read, re-check, act, verify, undo.

`advance` is pure and says what to write and what then is; `executor` writes. docs/remediation.md tells the course.
"""
