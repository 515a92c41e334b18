"""The command line, in this process."""

import shlex

import pytest

from pgcli.cli.main import main


class Command:
    """Runs commands, given as words or as one line of a shell.

    Each returns its exit code, standard output and standard error.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        self._capsys.readouterr()  # discards what came before
        code = main(shlex.split(str(words[0])) if len(words) == 1 else [*map(str, words)])
        out, err = self._capsys.readouterr()
        return code, out, err
