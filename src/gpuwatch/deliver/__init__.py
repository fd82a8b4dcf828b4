"""Reports on their way out: a folder, S3-compatible storage, and notifications. A failed delivery loses nothing."""
