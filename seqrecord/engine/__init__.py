"""Executes a plan in background threads; nothing of them is left when it ends, for any reason."""
