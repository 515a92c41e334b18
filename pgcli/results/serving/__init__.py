"""The page of a result file on a local server: any number of rows, edits that are saved at once.

`rows` finds rows by number and filters them, `edits_log` is the file of the edits, and `server`
answers the page's requests.
"""
