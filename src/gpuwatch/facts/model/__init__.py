"""Frozen values that all rooms share. Standard library only; nothing here reads a clock, a file or a network."""
