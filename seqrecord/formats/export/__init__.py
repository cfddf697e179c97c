"""Exports of datasets: files, LeRobot datasets, the Hugging Face Hub."""
