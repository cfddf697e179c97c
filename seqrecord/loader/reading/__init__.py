"""Bytes on their way to frames: mapped files, chunks of remote storage in memory."""
