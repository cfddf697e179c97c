"""Writing datasets: writer, record files, commits, resume."""
