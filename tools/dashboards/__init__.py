"""The Grafana dashboards that gpuwatch ships, built for Grafana 11.6: `python -m tools.dashboards` writes dashboards/.

`parts` has what all boards share, `hardware` and `controller` have four boards each.
"""
