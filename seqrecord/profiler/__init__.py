"""Timing of loaders: `bench` runs one, `plan` predicts requests, bytes and memory."""
