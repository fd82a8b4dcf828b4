"""The nouns: frozen values that every room speaks in. Standard library only.

Three files, one per subject: `telemetry` (what was measured), `cluster` (what Kubernetes says), and
`decision` (what gpuwatch concludes). Nothing here reads a clock, a file or a network.
"""
