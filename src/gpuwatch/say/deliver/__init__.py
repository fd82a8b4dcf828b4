"""Delivers reports to a folder, S3-compatible storage and notification services. A failed delivery loses nothing."""
