"""Everything that writes: the writer, record files, commits, convert, export, clean."""
