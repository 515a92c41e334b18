"""The pipeline, with functions and dictionaries in place of pictures and a model."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.errors import TooManyErrors
from pgcli.pipeline import ErrorBudget, Tally, answers, first_rows, run
from pgcli.pipeline.error_budget import MAX_CONSECUTIVE_ERRORS, MIN_ROWS_FOR_SHARE
from pgcli.pipeline.reorder_buffer import MAX_REFUSED_RUN
from pgcli.records import COLUMNS, Answer, DecodedImage, Fault, Item, error_answer

refuse = partial(error_answer, task="ask", model="fake")


def item(index, prompts=("what?",)):
    return Item(index, f"{index}.png", f"{index}.png", prompts=tuple(prompts))


def look(items, broken=()):
    """A picture of every item; those whose index is in `broken` have a fault."""
    for each in items:
        fault = Fault("truncated", "it ends early") if each.index in broken else None
        yield DecodedImage(each, 8, 8, None, 1.0, fault)


def answer(picture, prompt):
    known = dict.fromkeys(COLUMNS) | {"index": picture.item.index, "id": picture.item.id}
    made = {"prompt": prompt, "answer": f"{picture.item.id} {prompt}", "boxes": (), "tokens": 2}
    times = {"vision_ms": 4.0, "prefill_ms": 3.0, "decode_ms": 2.0}
    return Answer(**known | made | times)


def places(picture, first):
    return [(first + k, answer(picture, prompt)) for k, prompt in enumerate(picture.item.prompts)]


def ask(stream):
    """Answers as pictures come."""
    for first, picture in stream:
        yield from places(picture, first)


def ask_in_batches(stream, size=3):
    """Answers in groups, each from its last row to its first, as an engine may."""
    held = []
    for first, picture in stream:
        held += places(picture, first)
        if len(held) >= size:
            yield from reversed(held)
            held = []
    yield from reversed(held)


class Callback:
    """Looks on: `on_row` is called for each row, and after `rows` of them an end is asked for."""

    def __init__(self, on_row=lambda row, tally: None, rows=None):
        self.called, self.rows, self.seen = on_row, rows, 0

    def on_row(self, row, tally):
        self.seen += 1
        self.called(row, tally)

    def should_stop(self):
        return self.rows is not None and self.seen >= self.rows


def keys(rows):
    return [(row.index, row.prompt) for row in rows]


def wanted(items):
    return [(each.index, prompt) for each in items for prompt in each.prompts]


def test_rows_leave_in_input_order_whatever_the_order_of_the_answers():
    items = [item(k, ("a", "b")) for k in range(10)]
    assert keys(answers(items, look, ask_in_batches, refuse)) == wanted(items)


def test_a_bad_image_costs_only_itself():
    items = [item(k) for k in range(5)]
    saved = []
    tally = run(items, partial(look, broken={2}), ask, saved.append, refuse)
    assert [row.error for row in saved] == [None, None, "truncated", None, None]
    assert saved[2].answer is None
    assert saved[2].error_message == "it ends early"
    assert tally.errors == {"truncated": 1}


def test_a_bad_image_has_a_row_for_each_of_its_prompts():
    rows = list(answers([item(0, ("a", "b"))], partial(look, broken={0}), ask, refuse))
    assert [(row.prompt, row.error) for row in rows] == [("a", "truncated"), ("b", "truncated")]


def test_no_items_are_no_rows():
    assert run([], look, ask, pytest.fail, refuse).rows == 0


@given(st.data())
def test_every_row_leaves_once_and_in_order(data):
    counts = data.draw(st.lists(st.integers(1, 3), max_size=30))
    broken = data.draw(st.sets(st.integers(0, 29)))
    items = [item(k, map(str, range(count))) for k, count in enumerate(counts)]

    def ask_at_will(stream):
        held = []
        for first, picture in stream:
            assert picture.item.index not in broken
            held += places(picture, first)
            while held and data.draw(st.booleans()):
                yield held.pop(data.draw(st.integers(0, len(held) - 1)))
        yield from data.draw(st.permutations(held))

    rows = list(answers(items, partial(look, broken=broken), ask_at_will, refuse))
    assert keys(rows) == wanted(items)
    assert [row.error is not None for row in rows] == [row.index in broken for row in rows]


def test_a_row_leaves_as_soon_as_those_before_it_have_left():
    taken = []

    def watched(items):
        for picture in look(items):
            taken.append(picture.item.index)
            yield picture

    rows = answers([item(k) for k in range(100)], watched, ask, refuse)
    for expected in range(100):
        assert next(rows).index == expected
        assert len(taken) == expected + 1


@pytest.mark.parametrize("good", [(), (0,), (2500,)], ids=["none", "the first", "one amid"])
def test_a_folder_of_broken_files_is_not_gathered_in_memory(good):
    total, taken, left, most = 5000, 0, 0, 0

    def watched(items):
        nonlocal taken, most
        for picture in look(items, broken=set(range(total)) - set(good)):
            taken += 1
            most = max(most, taken - left)
            yield picture

    for row in answers([item(k) for k in range(total)], watched, ask_in_batches, refuse):
        assert row.index == left
        left += 1
    assert left == total
    assert most <= 2 * MAX_REFUSED_RUN


def test_errors_here_and_there_do_not_break_up_the_stream():
    streams = []

    def counted(stream):
        streams.append(stream)
        return ask_in_batches(stream)

    items = [item(k) for k in range(1000)]
    rows = answers(items, partial(look, broken=set(range(0, 1000, 2))), counted, refuse)
    assert keys(rows) == wanted(items)
    assert len(streams) == 1


def test_limit_counts_rows_and_looks_at_no_picture_beyond_them():
    items = [item(k, ("a", "b", "c")) for k in range(4)]
    assert [each.prompts for each in first_rows(items, 4)] == [("a", "b", "c"), ("a",)]
    assert [each.prompts for each in first_rows(items, 3)] == [("a", "b", "c")]
    assert list(first_rows(items, 99)) == items

    def untouchable():
        yield item(0)
        pytest.fail("the second item was read")

    assert len(list(first_rows(untouchable(), 1))) == 1
    assert list(first_rows(untouchable(), 0)) == []


def test_on_error_stop_saves_the_first_error_row_and_no_more():
    saved = []
    with pytest.raises(TooManyErrors, match=r"after 2 answered rows: 2\.png: truncated") as stopped:
        run(
            [item(k) for k in range(9)],
            partial(look, broken={2, 3}),
            ask,
            saved.append,
            refuse,
            callback=Callback(ErrorBudget(stop_on_error=True).check),
        )
    assert keys(saved) == [(0, "what?"), (1, "what?"), (2, "what?")]
    assert "--on-error record" in stopped.value.hint


def test_each_row_is_reported_after_it_is_saved_with_the_tally_so_far():
    saved, seen = [], []
    items = [item(k) for k in range(3)]
    final = run(
        items,
        look,
        ask,
        saved.append,
        refuse,
        callback=Callback(lambda row, tally: seen.append((row, len(saved), tally.rows, tally))),
    )
    assert [entry[:3] for entry in seen] == [(row, k, k) for k, row in enumerate(saved, start=1)]
    assert all(tally is final for *_, tally in seen)


def test_a_row_that_could_not_be_saved_is_not_counted():
    seen = []

    def save(row):
        if row.index == 2:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(
            [item(k) for k in range(5)],
            look,
            ask,
            save,
            refuse,
            callback=Callback(lambda row, tally: seen.append(tally)),
        )
    assert seen[-1].rows == 2


def test_the_tally_sums_what_the_rows_say():
    tally = run([item(k, "ab") for k in range(3)], partial(look, broken={1}), ask, id, refuse)
    assert (tally.rows, tally.images, tally.tokens) == (6, 3, 8)
    assert (tally.vision_ms, tally.prefill_ms, tally.decode_ms) == (16.0, 12.0, 8.0)
    assert tally.errors == {"truncated": 2}


def test_the_time_the_model_waits_for_pictures_is_not_the_models_own(monkeypatch):
    clock = 0.0
    monkeypatch.setattr("pgcli.pipeline.tally.perf_counter", lambda: clock)
    monkeypatch.setattr("pgcli.pipeline.perf_counter", lambda: clock)

    def slow_look(items):
        nonlocal clock
        for picture in look(items):
            clock += 2.0
            yield picture

    def slow_ask(stream):
        nonlocal clock
        for row in ask(stream):
            clock += 5.0
            yield row

    tally = run([item(k) for k in range(3)], slow_look, slow_ask, id, refuse)
    assert tally.waited_seconds == 6.0
    assert tally.seconds == 21.0


@pytest.mark.parametrize("end", ["the save fails", "the model fails", "the reader stops"])
def test_the_looking_is_closed_whatever_ends_the_run(end):
    closed = []

    def with_workers(items):
        try:
            yield from look(items)
        finally:
            closed.append(True)

    class Broken(Exception):
        pass

    def save(row):
        if end == "the save fails":
            raise Broken

    def failing_ask(stream):
        for row in ask(stream):
            yield row
            if end == "the model fails":
                raise Broken

    items = [item(k) for k in range(9)]
    if end == "the reader stops":
        rows = answers(items, with_workers, failing_ask, refuse)
        next(rows)
        rows.close()
        assert closed
    else:
        with pytest.raises(Broken) as held:
            run(items, with_workers, failing_ask, save, refuse)
        assert closed  # at once, while the traceback still holds every frame
        del held


def twice(stream):
    for row in ask(stream):
        yield row
        yield row


def never(stream):
    for _ in stream:
        yield from ()


def only_the_first(stream):
    yield from places(*reversed(next(stream)))


def lose_the_last_prompt(stream):
    for first, picture in stream:
        yield from places(picture, first)[:-1]


def invent(stream):
    for first, picture in stream:
        yield from places(picture, first + 1)


def twice_out_of_order(stream):
    for first, picture in stream:
        last = places(picture, first)[-1]
        yield from (last, last)
        yield from places(picture, first)[:-1]


FAULTY = [twice, twice_out_of_order, never, only_the_first, lose_the_last_prompt, invent]


@pytest.mark.parametrize("faulty", FAULTY)
def test_an_ask_that_loses_or_repeats_a_row_is_found_out(faulty):
    items = [item(k, ("a", "b")) for k in range(3)]
    with pytest.raises(AssertionError, match="answered"):
        list(answers(items, look, faulty, refuse))


def test_a_tally_starts_at_nothing():
    assert Tally() == Tally(errors={})


# --- what is there already


class FakeLog:
    """A resume log with some rows saved, some answered but not saved, and some of another shard."""

    def __init__(self, saved=(), answered=(), foreign=()):
        self.saved, self.answered, self.foreign = set(saved), set(answered), set(foreign)
        self.checked, self.journaled = [], []
        self.rows = len(self.saved)

    def is_missing(self, row_index, item, prompt):
        self.checked.append((row_index, item.index, prompt))
        return row_index not in self.saved | self.foreign

    def is_answered(self, row_index):
        return row_index in self.answered

    def stored_answer(self, row_index):
        columns = {"index": row_index, "id": "stored", "prompt": "", "boxes": ()}
        return Answer(**dict.fromkeys(COLUMNS) | columns)

    def journal(self, row_index, answer):
        self.journaled.append((row_index, answer.prompt))


@given(st.data())
def test_only_what_is_not_there_is_asked_and_every_due_row_leaves_in_order(data):
    counts = data.draw(st.lists(st.integers(1, 4), max_size=20))
    broken = data.draw(st.sets(st.integers(0, 19)))
    items = [item(k, map(str, range(count))) for k, count in enumerate(counts)]
    fates = data.draw(st.lists(st.sampled_from("sakf"), min_size=sum(counts), max_size=sum(counts)))
    places_of = {fate: {k for k, one in enumerate(fates) if one == fate} for fate in "sakf"}
    log = FakeLog(places_of["s"], places_of["k"], places_of["f"])
    asked = []

    def ask_at_will(stream):
        held = []
        for first, picture in stream:
            held += places(picture, first)
            asked.extend(place for place, _ in places(picture, first))
            while held and data.draw(st.booleans()):
                yield held.pop(data.draw(st.integers(0, len(held) - 1)))
        yield from data.draw(st.permutations(held))

    rows = list(answers(items, partial(look, broken=broken), ask_at_will, refuse, resume_log=log))
    whole = wanted(items)
    assert log.checked == [(k, *key) for k, key in enumerate(whole)]
    due = sorted(places_of["a"] | places_of["k"])
    found = [place for place in due if place in places_of["k"] or True]
    assert [row.index if row.id == "stored" else (row.index, row.prompt) for row in rows] == [
        place if place in places_of["k"] else whole[place] for place in found
    ]
    assert sorted(asked) == [k for k in sorted(places_of["a"]) if whole[k][0] not in broken]


def test_a_row_that_waits_for_an_earlier_one_is_told_of_and_no_other():
    log = FakeLog()
    items = [item(k) for k in range(4)]
    list(answers(items, look, partial(ask_in_batches, size=2), refuse, resume_log=log))
    assert [place for place, _ in log.journaled] == [1, 3]


def test_rows_that_were_there_count_apart():
    saved = []
    items = [item(k) for k in range(5)]
    tally = run(items, look, ask, saved.append, refuse, resume_log=FakeLog(saved={0, 1}))
    assert (tally.rows_before, tally.rows, tally.images) == (2, 3, 3)
    assert [row.index for row in saved] == [2, 3, 4]


# --- an end that is asked for


def test_what_is_under_way_is_finished_and_nothing_more_is_taken():
    saved, taken = [], []

    def watched(items):
        for picture in look(items):
            taken.append(picture.item.index)
            yield picture

    items = [item(k) for k in range(100)]
    tally = run(items, watched, ask, saved.append, refuse, callback=Callback(rows=7))
    assert tally.rows == len(saved) == 7
    assert len(taken) == 7


def test_pictures_that_are_left_unanswered_then_are_no_mistake():
    def ask_and_leave(stream):
        held = [places(picture, first) for first, picture in stream]
        yield from (row for rows in held[:3] for row in rows)

    callback, saved = Callback(), []
    callback.should_stop = lambda: len(saved) > 0 or callback.calls() > 9
    calls = iter(range(1000))
    callback.calls = lambda: next(calls)
    run([item(k) for k in range(100)], look, ask_and_leave, saved.append, refuse, callback=callback)
    assert [row.index for row in saved] == [0, 1, 2]


# --- errors


def errors_after(broken, total, **bounds):
    """How many rows were saved when a run of so many pictures ended, and what ended it."""
    saved, tolerance = [], ErrorBudget(**bounds)
    items = [item(k) for k in range(total)]
    looking = partial(look, broken=set(broken))
    try:
        tally = run(items, looking, ask, saved.append, refuse, callback=Callback(tolerance.check))
        tolerance.check_share(tally)
    except TooManyErrors as problem:
        return len(saved), problem
    return len(saved), None


def test_so_many_errors_in_a_row_end_the_run():
    saved, problem = errors_after(range(10, 200), 300)
    assert saved == 10 + MAX_CONSECUTIVE_ERRORS
    assert f"{MAX_CONSECUTIVE_ERRORS} errors in a row" in str(problem)
    assert "--max-errors" in problem.hint
    every_other = range(0, 300, 2)
    assert errors_after(every_other, 300) == (300, None)
    assert errors_after(range(200), 300, max_share=1.0) == (300, None)


def test_so_many_errors_are_borne_and_no_more():
    assert errors_after(range(3), 10, max_errors=3) == (10, None)
    saved, problem = errors_after(range(4), 10, max_errors=3)
    assert saved == 4
    assert "4 of 4 rows" in str(problem)
    assert errors_after([5], 10, max_errors=0)[0] == 6


def test_a_share_of_errors_counts_once_there_are_many_rows_or_all():
    total = MIN_ROWS_FOR_SHARE + 100
    assert errors_after(range(100), total, max_share=0.1) == (total, None)
    saved, problem = errors_after(range(200), total, max_share=0.1)
    assert saved == MIN_ROWS_FOR_SHARE
    assert "20.0%" in str(problem)
    saved, problem = errors_after(range(2), 10, max_share=0.1)
    assert saved == 10
    assert problem is not None
