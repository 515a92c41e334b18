"""--alternatives and --token-logprobs on the command line and from Python."""

import pytest

import pgcli
from pgcli.cli.main import main
from tests.support.exporting import read_rows
from tests.support.runs import EXAMPLES

ASK = ["ask", str(EXAMPLES), "--prompt", "how many shapes are there?", "--model", "demo", "-q"]
SAMPLED = ("--alternatives", "3", "--temperature", "2", "--seed", "4", "--token-logprobs")


def test_rows_have_alternatives_and_logprobs_of_tokens(tmp_path):
    output = tmp_path / "rows.jsonl"
    assert main([*ASK, *SAMPLED, "-o", str(output)]) == 0
    for row in read_rows(output):
        assert list(row)[-2:] == ["alternatives", "token_logprobs"]
        assert [set(one) for one in row["alternatives"]] == [{"text", "logprob"}] * 3
        tokens = row["token_logprobs"]
        assert "".join(one["token"] for one in tokens).strip() == f"{row['answer']}<eos>"
        mean = sum(one["logprob"] for one in tokens) / row["tokens"]
        assert row["logprob"] == pytest.approx(mean, rel=1e-4, abs=1e-7)
    answers = {one["text"] for row in read_rows(output) for one in row["alternatives"]}
    assert len(answers) > 3


def test_a_run_with_alternatives_resumes_to_the_same_rows(tmp_path, capsys):
    whole, parts = (str(tmp_path / name) for name in ("whole.jsonl", "parts.jsonl"))
    assert main([*ASK, *SAMPLED, "--no-timing", "-o", whole]) == 0
    assert main([*ASK, *SAMPLED, "--no-timing", "-o", parts, "--limit", "5"]) == 0
    other = ("--alternatives", "2", *SAMPLED[2:])
    assert main([*ASK, *other, "--no-timing", "-o", parts]) == 13
    assert "alternatives" in capsys.readouterr().err
    assert main([*ASK, *SAMPLED, "--no-timing", "-o", parts]) == 0
    keys = ("id", "answer", "tokens")
    assert [[row[key] for key in keys] for row in read_rows(parts)] == [
        [row[key] for key in keys] for row in read_rows(whole)
    ]
    assert texts(read_rows(parts)) == texts(read_rows(whole))
    assert main(["check", parts]) == 0


def texts(found):
    return [[one["text"] for one in row["alternatives"]] for row in found]


def test_parquet_and_json_lines_have_the_same_alternatives(tmp_path):
    for name in ("rows.jsonl", "rows.parquet"):
        assert main([*ASK, *SAMPLED, "-o", str(tmp_path / name)]) == 0
    lines, table = (pgcli.read(tmp_path / name) for name in ("rows.jsonl", "rows.parquet"))
    assert [row.alternatives for row in lines] == [row.alternatives for row in table]
    assert [row.token_logprobs for row in lines] == [row.token_logprobs for row in table]
    saved = tmp_path / "saved.parquet"
    lines.save(saved)
    assert pgcli.read(saved) == lines


def test_engine_samples_alternatives_for_each_call():
    engine, image = pgcli.load("demo", device="cpu"), EXAMPLES / "night.jpg"
    call = {"alternatives": 4, "temperature": 2.0, "token_logprobs": True}
    first, again, other = (next(engine.caption(image, **call, seed=seed)) for seed in (0, 0, 1))
    assert first.alternatives == again.alternatives != other.alternatives
    assert len(first.alternatives) == 4
    assert len(first.token_logprobs) == first.tokens
    with pytest.raises(pgcli.errors.UsageError, match="alternatives: -1 is not a whole number"):
        engine.caption(image, alternatives=-1)
