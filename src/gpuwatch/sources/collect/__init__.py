"""Reads both sources into one Snapshot with all gaps; saves and loads Snapshots."""
