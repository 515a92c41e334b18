"""The command search: its queries, the rows of its hits, and their page."""
