"""The processes that compute rows: this one, engine processes, other commands, actors of Ray."""
