"""Output for people (tables, explanations) and for machines (JSON, YAML, CSV, schema). Pure."""
