"""Pure: one file per family of rules; each names the statistics that it needs (`…_needs(policy)`)."""
