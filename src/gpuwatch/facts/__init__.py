"""What is known before anything is read: the nouns, the vendors' facts, the workload frameworks. Pure."""
