"""PaliGemma in PyTorch: tensors in, tensors out; no files, strings or flags."""
