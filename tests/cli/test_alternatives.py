"""--alternatives and --token-logprobs on the command line and from Python."""

import pytest

import pgcli
from pgcli.cli.main import main
from tests.support.exporting import read_rows
from tests.support.runs import EXAMPLES

ASK = ["ask", str(EXAMPLES), "--prompt", "how many shapes are there?", "--model", "demo", "-q"]
SAMPLED = ("--alternatives", "3", "--temperature", "2", "--seed", "4", "--token-logprobs")


def test_alternatives_are_the_same_in_every_output_and_after_resuming(tmp_path, capsys):
    whole, parts = (str(tmp_path / name) for name in ("whole.jsonl", "parts.parquet"))
    assert main([*ASK, *SAMPLED, "-o", whole]) == 0
    assert main([*ASK, *SAMPLED, "-o", parts, "--limit", "5"]) == 0
    other = ("--alternatives", "2", *SAMPLED[2:])
    assert main([*ASK, *other, "-o", parts]) == 13
    assert "alternatives" in capsys.readouterr().err
    assert main([*ASK, *SAMPLED, "-o", parts]) == 0
    rows, resumed = read_rows(whole), pgcli.read(parts)
    for row, answer in zip(rows, resumed, strict=True):
        assert list(row)[-2:] == ["alternatives", "token_logprobs"]
        texts = [one["text"] for one in row["alternatives"]]
        assert texts == [one.text for one in answer.alternatives]
        assert len(texts) == 3
        tokens = row["token_logprobs"]
        assert "".join(one["token"] for one in tokens).strip() == f"{row['answer']}<eos>"
        assert [one["token"] for one in tokens] == [one.token for one in answer.token_logprobs]
        mean = sum(one["logprob"] for one in tokens) / row["tokens"]
        assert row["logprob"] == pytest.approx(mean, rel=1e-4, abs=1e-7)
    assert len({one["text"] for row in rows for one in row["alternatives"]}) > 3
    assert main(["check", parts]) == 0


def test_engine_samples_alternatives_for_each_call():
    engine, image = pgcli.load("demo", device="cpu"), EXAMPLES / "night.jpg"
    call = {"alternatives": 4, "temperature": 2.0, "token_logprobs": True}
    first, again, other = (next(engine.caption(image, **call, seed=seed)) for seed in (0, 0, 1))
    assert first.alternatives == again.alternatives != other.alternatives
    assert len(first.alternatives) == 4
    assert len(first.token_logprobs) == first.tokens
    with pytest.raises(pgcli.errors.UsageError, match="alternatives: -1 is not a whole number"):
        engine.caption(image, alternatives=-1)
