"""The Grafana dashboards that gpuwatch ships, built for Grafana 11.6: `python -m tools.dashboards` writes dashboards/.

A YAML file here is a board; `boards` reads it, `queries` has the PromQL that panels share, `grafana` makes the JSON.
"""
