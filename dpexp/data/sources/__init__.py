"""Sources: one file for each source of data; ``dpexp.data`` has their registry."""
