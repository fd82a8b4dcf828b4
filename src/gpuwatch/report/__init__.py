"""Pure: what was concluded, for people (tables, explanations) and for machines (JSON, YAML, CSV and the schema)."""
