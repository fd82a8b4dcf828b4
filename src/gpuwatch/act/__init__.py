"""Findings become plans, and plans become Remediations, one step at a time."""
