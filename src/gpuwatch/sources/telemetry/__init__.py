"""The only room that speaks PromQL and HTTP to Prometheus. It converts exporters' units and labels to gpuwatch's own.

`samples` is the interface: a SampleStore evaluates small typed expressions over raw series. `prometheus` (a server)
and `recording` (files) implement it; one test suite requires the same answers from both.
"""
