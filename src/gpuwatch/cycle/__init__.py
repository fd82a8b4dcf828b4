"""One cycle's conclusions: what the rules need, the Analysis, its costs, and the values of the weekly report. Pure."""
