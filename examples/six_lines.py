"""The Python API in six lines: python examples/six_lines.py"""

import pgcli

engine = pgcli.load("demo")
for answer in engine.caption(["examples/images/one.png", "examples/images/turned.jpg"]):
    print(answer.id, answer.answer)
for answer in engine.detect("examples/images/one.png", ["star"]):
    print(answer.boxes)
