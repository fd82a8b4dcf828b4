"""The command line: the only reader of the clock, and the place where the rooms are put together."""
