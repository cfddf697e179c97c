"""Executes plans in background threads, and ends all of them on every exit path."""
