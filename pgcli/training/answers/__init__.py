"""PaliGemma learns answers: its loss, its evaluation, and what is trained of it."""
