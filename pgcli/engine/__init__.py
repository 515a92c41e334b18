"""A stream of pictures in, answers out as each ends: batching, generation, device and memory."""
