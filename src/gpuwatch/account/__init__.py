"""One cycle's conclusions: required signals, the Analysis, its costs, and the values of the weekly report. Pure."""
