"""The command line: it alone reads the clock, and it connects the other packages."""
