"""The inference engine: scheduling, prefill, decode, choices and memory."""
