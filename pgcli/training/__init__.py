"""The built-in model's drawings, their lessons and tokenizer, and the training of models."""
