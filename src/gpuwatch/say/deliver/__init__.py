"""Delivers reports and notifications to a folder, S3-compatible storage and notification services."""
