"""File formats: an index of what a file holds, read from its header alone, and headers for files to write."""
