"""The summary of a run in progress, and of rows that another process counted."""

from pgcli.run import events
from pgcli.run import progress as module
from pgcli.run.progress import RunProgress, Summary, Tally
from pgcli.run.request import make_request
from tests.support.exporting import answer, refused


def test_summary_during_a_run_has_a_rate_and_no_exit_code(monkeypatch):
    clock = iter([0.0, 3.0, *[5.0] * 9])  # the run begins, answering begins, eight rows are saved
    monkeypatch.setattr(module, "perf_counter", lambda: next(clock))
    progress = RunProgress(make_request("caption", ["a.png"], {"output": "-"}), events.ignore)
    with progress.answering():
        for number in range(8):
            progress.tally.count(answer(number))
        progress.show_rows()
        values = progress.summary.values()
    assert (values["exit_code"], values["ended"], values["rows_per_second"]) == (None, None, 4.0)
    assert (values["seconds"]["answering"], values["seconds"]["total"]) == (2.0, 5.0)
    progress.summary.exit_code = 0
    assert progress.summary.values()["ended"] is not None


def tally_of(*errors: str | None) -> Tally:
    """The count of rows with these errors, None for an answered row."""
    tally = Tally()
    for number, error in enumerate(errors):
        tally.count(answer(number) if error is None else refused(number, error))
    return tally


def add(tally: Tally, *errors: str | None) -> None:
    """Add the rows of another process, which have these errors."""
    failed = [(code, f"{code} of a row") for code in errors if code is not None]
    tally.add(tally_of(*errors).counts, failed)


def test_consecutive_errors_are_counted_across_messages():
    tally = tally_of(None, "truncated")
    add(tally, "not_found", "not_found")
    assert (tally.last_errors, tally.rows) == (3, 4)
    add(tally, "not_found", None, "truncated")
    assert (tally.last_errors, tally.rows, tally.last_error) == (1, 7, "truncated of a row")
    assert tally.errors == {"not_found": 3, "truncated": 2}


def test_rows_without_a_readable_image_get_no_hint_of_faster_decoding():
    request = make_request("caption", ["photos"], {"output": "-"})
    summary = Summary(request, input_rows=200)
    for number in range(200):
        summary.tally.count(refused(number, "missing"))
    summary.tally.images, summary.tally.seconds, summary.tally.waited_seconds = 200, 10.0, 9.0
    assert summary.waiting == ""
    summary.tally.errors.clear()
    assert "--fast-decode" in summary.waiting
