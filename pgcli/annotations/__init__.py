"""What people corrected: edits of a page of results, and files of annotation tools."""
