"""Products of packed and int8 weights on processors."""
