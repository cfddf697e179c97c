"""Executes plans in background threads, and ends them on every exit path."""
