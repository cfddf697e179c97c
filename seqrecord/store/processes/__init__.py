"""Threads, forks, and the cores and memory available to a process."""
