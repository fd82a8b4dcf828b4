"""Carries out what the plan admits, one write at a time: notify, wait, recheck, act, verify, undo
(docs/remediation.md). `advance` is pure and returns the next write; `executor` writes."""
