"""The only room that speaks PromQL and HTTP to Prometheus; units and labels are translated at its door.

`samples` is the seam: a SampleStore evaluates small typed expressions over raw series. Two stores exist,
`prometheus` (a server) and `recording` (files); one conformance suite holds both to the same answers.
`source` is built on the seam alone: discovery, inventory, window statistics, activity and state changes.
"""
