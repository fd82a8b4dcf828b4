"""The programs: they read the clock and the settings, and connect the other parts."""
