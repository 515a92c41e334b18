"""Answers and error rows with every column filled."""

from pgcli.records import Answer, Box

BOX = Box("red car", 12.25, 30.5, 200.0, 180.0, 0.875, 0.9375)


def answer(index=0, **changes):
    known = {
        "index": index,
        "id": f"{index}.png",
        "image": f"images/{index}.png",
        "width": 640,
        "height": 480,
        "task": "ask",
        "prompt": "what?",
        "answer": "a car",
        "boxes": (),
        "tokens": 3,
        "finish": "stop",
        "logprob": -0.25,
        "load_ms": 1.5,
        "vision_ms": 2.5,
        "prefill_ms": 3.5,
        "decode_ms": 4.5,
        "batch": 8,
        "model": "demo@1",
        "error": None,
        "error_message": None,
    }
    return Answer(**known | changes)


def refused(index=0, code="truncated", message="it ends early", **changes):
    null = dict.fromkeys(("answer", "tokens", "finish", "logprob", "vision_ms", "batch"))
    return answer(index, error=code, error_message=message, **null | changes)
