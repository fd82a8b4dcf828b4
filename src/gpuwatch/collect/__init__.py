"""Both sources into one Snapshot, every gap listed; saves and loads Snapshots."""
