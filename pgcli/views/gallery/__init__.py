"""A gallery of answers: rows in, one page out that opens from a disk and asks for nothing."""
