"""Loader timing: `bench` measures a loader, `plan` predicts requests, bytes and memory."""
