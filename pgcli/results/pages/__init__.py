"""Pages of HTML that need no network: markup, style, script and data in one file."""
