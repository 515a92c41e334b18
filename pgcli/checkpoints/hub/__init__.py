"""The Hugging Face Hub: which files a checkpoint needs, fetched, verified and resumed."""
