"""Files of a mount: which folders are mounts of remote storage, and how those are read."""
