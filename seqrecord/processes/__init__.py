"""Threads, forks, and what a process may use of its machine."""
