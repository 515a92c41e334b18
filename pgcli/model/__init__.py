"""The eye, the decoder and what joins them: tensors in, tensors out; no file, string or flag."""
