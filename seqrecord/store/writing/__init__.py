"""Writing datasets: writer and recorder, record files, commits, conversion."""
