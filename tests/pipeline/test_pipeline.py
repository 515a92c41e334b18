"""The pipeline with functions and plain records in place of images and a model."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.errors import TooManyErrors
from pgcli.pipeline import ErrorBudget, Tally, answers, first_rows, run
from pgcli.pipeline.error_budget import MAX_CONSECUTIVE_ERRORS, MIN_ROWS_FOR_SHARE
from pgcli.pipeline.reorder_buffer import MAX_REFUSED_RUN
from pgcli.records import COLUMNS, PAUSE, Answer, DecodedImage, Fault, Item, error_answer

refuse = partial(error_answer, task="ask", model="fake")


def item(index, prompts=("what?",)):
    return Item(index, f"{index}.png", f"{index}.png", prompts=tuple(prompts))


def decode(items, broken=()):
    """A decoded image for each item; those whose index is in `broken` have a fault."""
    for each in items:
        fault = Fault("truncated", "it ends early") if each.index in broken else None
        yield DecodedImage(each, 8, 8, None, 1.0, fault)


def answer(image, prompt):
    known = dict.fromkeys(COLUMNS) | {"index": image.item.index, "id": image.item.id}
    made = {"prompt": prompt, "answer": f"{image.item.id} {prompt}", "boxes": (), "tokens": 2}
    times = {"vision_ms": 4.0, "prefill_ms": 3.0, "decode_ms": 2.0}
    return Answer(**known | made | times)


def answers_to(image, first):
    return [(first + k, answer(image, prompt)) for k, prompt in enumerate(image.item.prompts)]


def ask(stream):
    """Answers as images come."""
    for first, image in stream:
        yield from answers_to(image, first)


def ask_in_batches(stream, size=3):
    """Answers in groups, each from its last row to its first, as an engine may."""
    held = []
    for first, image in stream:
        held += answers_to(image, first)
        if len(held) >= size:
            yield from reversed(held)
            held = []
    yield from reversed(held)


class Callback:
    """Calls `on_row` for each row, and asks the run to stop after `rows`."""

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


@pytest.mark.parametrize("broken", [(), {0}, {0, 1}, {1}])
def test_rows_are_answered_when_the_input_pauses(broken):
    items, shown = [item(k) for k in range(4)], []

    def pausing(items):
        yield PAUSE
        for image in decode(items, broken):
            yield image
            yield PAUSE
            assert len(shown) == image.item.index + 1  # before the next image is decoded

    def save(row):
        shown.append(row.index)

    tally = run(items, pausing, partial(ask_in_batches, size=100), save, refuse)
    assert shown == [0, 1, 2, 3]
    assert tally.images == 4


def test_rows_are_in_input_order_for_any_answer_order():
    items = [item(k, ("a", "b")) for k in range(10)]
    assert keys(answers(items, decode, ask_in_batches, refuse)) == wanted(items)


def test_bad_image_costs_one_row():
    items = [item(k) for k in range(5)]
    saved = []
    tally = run(items, partial(decode, broken={2}), ask, saved.append, refuse)
    assert [row.error for row in saved] == [None, None, "truncated", None, None]
    assert saved[2].answer is None
    assert saved[2].error_message == "it ends early"
    assert tally.errors == {"truncated": 1}


def test_bad_image_has_an_error_row_for_each_prompt():
    rows = list(answers([item(0, ("a", "b"))], partial(decode, broken={0}), ask, refuse))
    assert [(row.prompt, row.error) for row in rows] == [("a", "truncated"), ("b", "truncated")]


def test_no_items_make_no_rows():
    assert run([], decode, ask, pytest.fail, refuse).rows == 0


@given(st.data())
def test_each_row_is_saved_once_and_in_order(data):
    counts = data.draw(st.lists(st.integers(1, 3), max_size=30))
    broken = data.draw(st.sets(st.integers(0, 29)))
    items = [item(k, map(str, range(count))) for k, count in enumerate(counts)]

    def ask_at_will(stream):
        held = []
        for first, image in stream:
            assert image.item.index not in broken
            held += answers_to(image, first)
            while held and data.draw(st.booleans()):
                yield held.pop(data.draw(st.integers(0, len(held) - 1)))
        yield from data.draw(st.permutations(held))

    rows = list(answers(items, partial(decode, broken=broken), ask_at_will, refuse))
    assert keys(rows) == wanted(items)
    assert [row.error is not None for row in rows] == [row.index in broken for row in rows]


def test_row_is_saved_as_soon_as_earlier_rows_are():
    taken = []

    def watched(items):
        for image in decode(items):
            taken.append(image.item.index)
            yield image

    rows = answers([item(k) for k in range(100)], watched, ask, refuse)
    for expected in range(100):
        assert next(rows).index == expected
        assert len(taken) == expected + 1


@pytest.mark.parametrize("good", [(), (0,), (2500,)], ids=["none", "the first", "one amid"])
def test_folder_of_broken_files_is_not_held_in_memory(good):
    total, taken, left, most = 5000, 0, 0, 0

    def watched(items):
        nonlocal taken, most
        for image in decode(items, broken=set(range(total)) - set(good)):
            taken += 1
            most = max(most, taken - left)
            yield image

    for row in answers([item(k) for k in range(total)], watched, ask_in_batches, refuse):
        assert row.index == left
        left += 1
    assert left == total
    assert most <= 2 * MAX_REFUSED_RUN


def test_scattered_errors_do_not_split_the_stream():
    streams = []

    def counted(stream):
        streams.append(stream)
        return ask_in_batches(stream)

    items = [item(k) for k in range(1000)]
    rows = answers(items, partial(decode, broken=set(range(0, 1000, 2))), counted, refuse)
    assert keys(rows) == wanted(items)
    assert len(streams) == 1


def test_limit_counts_rows_and_decodes_no_further_image():
    items = [item(k, ("a", "b", "c")) for k in range(4)]
    assert [each.prompts for each in first_rows(items, 4)] == [("a", "b", "c"), ("a",)]
    assert [each.prompts for each in first_rows(items, 3)] == [("a", "b", "c")]
    assert list(first_rows(items, 99)) == items

    def untouchable():
        yield item(0)
        pytest.fail("the second item was read")

    assert len(list(first_rows(untouchable(), 1))) == 1
    assert list(first_rows(untouchable(), 0)) == []


def test_on_error_stop_saves_only_the_first_error_row():
    saved = []
    with pytest.raises(TooManyErrors, match=r"after 2 answered rows: 2\.png: truncated") as stopped:
        run(
            [item(k) for k in range(9)],
            partial(decode, broken={2, 3}),
            ask,
            saved.append,
            refuse,
            callback=Callback(ErrorBudget(stop_on_error=True).check),
        )
    assert keys(saved) == [(0, "what?"), (1, "what?"), (2, "what?")]
    assert "--on-error record" in stopped.value.hint


def test_callback_gets_each_saved_row_and_the_tally():
    saved, seen = [], []
    items = [item(k) for k in range(3)]
    final = run(
        items,
        decode,
        ask,
        saved.append,
        refuse,
        callback=Callback(lambda row, tally: seen.append((row, len(saved), tally.rows, tally))),
    )
    assert [entry[:3] for entry in seen] == [(row, k, k) for k, row in enumerate(saved, start=1)]
    assert all(tally is final for *_, tally in seen)


def test_row_that_fails_to_save_is_not_counted():
    seen = []

    def save(row):
        if row.index == 2:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(
            [item(k) for k in range(5)],
            decode,
            ask,
            save,
            refuse,
            callback=Callback(lambda row, tally: seen.append(tally)),
        )
    assert seen[-1].rows == 2


def test_tally_sums_the_rows():
    tally = run([item(k, "ab") for k in range(3)], partial(decode, broken={1}), ask, id, refuse)
    assert (tally.rows, tally.images, tally.tokens) == (6, 3, 8)
    assert (tally.vision_ms, tally.prefill_ms, tally.decode_ms) == (16.0, 12.0, 8.0)
    assert tally.errors == {"truncated": 2}


def test_time_waiting_for_images_is_counted_apart(monkeypatch):
    clock = 0.0
    monkeypatch.setattr("pgcli.pipeline.tally.perf_counter", lambda: clock)
    monkeypatch.setattr("pgcli.pipeline.perf_counter", lambda: clock)

    def slow_look(items):
        nonlocal clock
        for image in decode(items):
            clock += 2.0
            yield image

    def slow_ask(stream):
        nonlocal clock
        for row in ask(stream):
            clock += 5.0
            yield row

    tally = run([item(k) for k in range(3)], slow_look, slow_ask, id, refuse)
    assert tally.waited_seconds == 6.0
    assert tally.seconds == 21.0


@pytest.mark.parametrize("end", ["the save fails", "the model fails", "the reader stops"])
def test_decoding_is_closed_however_the_run_ends(end):
    closed = []

    def with_workers(items):
        try:
            yield from decode(items)
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
        assert closed  # immediately, while the traceback still holds every frame
        del held


class DecodedImages:
    """Decoded images that can be closed and, unlike a generator, are not closed when freed."""

    def __init__(self, items):
        self.images, self.closed = decode(items), False

    def __iter__(self):
        return self

    def __next__(self):
        return next(self.images)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("through", ["answers", "run"])
def test_closing_the_rows_closes_the_decoder_that_others_hold(through):
    held = []

    def decoder(items):
        held.append(DecodedImages(items))
        return held[0]

    def save(row):
        raise OSError("disk full")

    items = [item(k) for k in range(9)]
    if through == "answers":
        rows = answers(items, decoder, ask, refuse)
        next(rows)
        rows.close()
    else:
        with pytest.raises(OSError, match="disk full"):
            run(items, decoder, ask, save, refuse)
    assert held[0].closed


def twice(stream):
    for row in ask(stream):
        yield row
        yield row


def never(stream):
    for _ in stream:
        yield from ()


def only_the_first(stream):
    yield from answers_to(*reversed(next(stream)))


def lose_the_last_prompt(stream):
    for first, image in stream:
        yield from answers_to(image, first)[:-1]


def invent(stream):
    for first, image in stream:
        yield from answers_to(image, first + 1)


def twice_out_of_order(stream):
    for first, image in stream:
        last = answers_to(image, first)[-1]
        yield from (last, last)
        yield from answers_to(image, first)[:-1]


FAULTY = [twice, twice_out_of_order, never, only_the_first, lose_the_last_prompt, invent]


@pytest.mark.parametrize("faulty", FAULTY)
def test_ask_that_loses_or_repeats_a_row_is_detected(faulty):
    items = [item(k, ("a", "b")) for k in range(3)]
    with pytest.raises(AssertionError, match="answered"):
        list(answers(items, decode, faulty, refuse))


def test_tally_starts_at_zero():
    assert Tally() == Tally(errors={})


# --- rows of an earlier run


class FakeLog:
    """A resume log with some rows saved, some answered but not saved, and some of another shard."""

    def __init__(self, saved=(), answered=(), foreign=()):
        self.saved, self.answered, self.foreign = set(saved), set(answered), set(foreign)
        self.checked, self.journaled = [], []
        self.rows = len(self.saved)

    def is_missing(self, row_index, item, prompt):
        self.checked.append((row_index, item.index, prompt))
        return row_index not in self.saved | self.foreign

    def note_image(self, row_indices, image):
        pass

    def is_answered(self, row_index):
        return row_index in self.answered

    def stored_answer(self, row_index):
        columns = {"index": row_index, "id": "stored", "prompt": "", "boxes": (), "tokens": 100}
        return Answer(**dict.fromkeys(COLUMNS) | columns)

    def journal(self, row_index, answer):
        self.journaled.append((row_index, answer.prompt))


@given(st.data())
def test_only_missing_rows_are_asked_and_saved_in_order(data):
    counts = data.draw(st.lists(st.integers(1, 4), max_size=20))
    broken = data.draw(st.sets(st.integers(0, 19)))
    items = [item(k, map(str, range(count))) for k, count in enumerate(counts)]
    fates = data.draw(st.lists(st.sampled_from("sakf"), min_size=sum(counts), max_size=sum(counts)))
    indices = {fate: {k for k, one in enumerate(fates) if one == fate} for fate in "sakf"}
    log = FakeLog(indices["s"], indices["k"], indices["f"])
    asked = []

    def ask_at_will(stream):
        held = []
        for first, image in stream:
            held += answers_to(image, first)
            asked.extend(row_index for row_index, _ in answers_to(image, first))
            while held and data.draw(st.booleans()):
                yield held.pop(data.draw(st.integers(0, len(held) - 1)))
        yield from data.draw(st.permutations(held))

    rows = list(answers(items, partial(decode, broken=broken), ask_at_will, refuse, resume_log=log))
    whole = wanted(items)
    assert log.checked == [(k, *key) for k, key in enumerate(whole)]
    missing = sorted(indices["a"] | indices["k"])
    assert [row.index if row.id == "stored" else (row.index, row.prompt) for row in rows] == [
        k if k in indices["k"] else whole[k] for k in missing
    ]
    assert sorted(asked) == [k for k in sorted(indices["a"]) if whole[k][0] not in broken]


def test_only_answers_that_wait_are_journaled():
    log = FakeLog()
    items = [item(k) for k in range(4)]
    list(answers(items, decode, partial(ask_in_batches, size=2), refuse, resume_log=log))
    assert [row_index for row_index, _ in log.journaled] == [1, 3]


def test_rows_of_an_earlier_run_are_counted_apart():
    saved = []
    items = [item(k) for k in range(5)]
    tally = run(items, decode, ask, saved.append, refuse, resume_log=FakeLog(saved={0, 1}))
    assert (tally.rows_before, tally.rows, tally.images) == (2, 3, 3)
    assert [row.index for row in saved] == [2, 3, 4]


def test_tokens_and_times_of_rows_that_are_copied_are_not_of_this_run():
    """As with --retry-errors, which writes the answers of the earlier run again."""
    items, log = [item(k) for k in range(5)], FakeLog(answered={0, 1, 4})
    tally = run(items, decode, ask, id, refuse, resume_log=log)
    assert (tally.rows, tally.images, tally.tokens) == (5, 2, 4)
    assert (tally.vision_ms, tally.prefill_ms, tally.decode_ms) == (8.0, 6.0, 4.0)


# --- stopping


def test_stop_finishes_started_images_and_takes_no_more():
    saved, taken = [], []

    def watched(items):
        for image in decode(items):
            taken.append(image.item.index)
            yield image

    items = [item(k) for k in range(100)]
    tally = run(items, watched, ask, saved.append, refuse, callback=Callback(rows=7))
    assert tally.rows == len(saved) == 7
    assert len(taken) == 7


def test_images_may_be_left_unanswered_after_a_stop():
    def ask_and_leave(stream):
        held = [answers_to(image, first) for first, image in stream]
        yield from (row for rows in held[:3] for row in rows)

    callback, saved = Callback(), []
    callback.should_stop = lambda: len(saved) > 0 or callback.calls() > 9
    calls = iter(range(1000))
    callback.calls = lambda: next(calls)
    run(
        [item(k) for k in range(100)],
        decode,
        ask_and_leave,
        saved.append,
        refuse,
        callback=callback,
    )
    assert [row.index for row in saved] == [0, 1, 2]


# --- errors


def errors_after(broken, total, **bounds):
    """The number of rows saved by a run of `total` images, and the error that ended it."""
    saved, budget = [], ErrorBudget(**bounds)
    items = [item(k) for k in range(total)]
    looking = partial(decode, broken=set(broken))
    try:
        tally = run(items, looking, ask, saved.append, refuse, callback=Callback(budget.check))
        budget.check_share(tally)
    except TooManyErrors as problem:
        return len(saved), problem
    return len(saved), None


def test_consecutive_errors_stop_the_run():
    saved, problem = errors_after(range(10, 200), 300)
    assert saved == 10 + MAX_CONSECUTIVE_ERRORS
    assert f"{MAX_CONSECUTIVE_ERRORS} errors in a row" in str(problem)
    assert "--max-errors" in problem.hint
    every_other = range(0, 300, 2)
    assert errors_after(every_other, 300) == (300, None)
    assert errors_after(range(200), 300, max_share=1.0) == (300, None)


def test_max_errors_is_the_number_tolerated():
    assert errors_after(range(3), 10, max_errors=3) == (10, None)
    saved, problem = errors_after(range(4), 10, max_errors=3)
    assert saved == 4
    assert "4 of 4 rows" in str(problem)
    assert errors_after([5], 10, max_errors=0)[0] == 6


def test_share_of_errors_needs_many_rows_or_the_end():
    total = MIN_ROWS_FOR_SHARE + 100
    assert errors_after(range(100), total, max_share=0.1) == (total, None)
    saved, problem = errors_after(range(200), total, max_share=0.1)
    assert saved == MIN_ROWS_FOR_SHARE
    assert "20.0%" in str(problem)
    saved, problem = errors_after(range(2), 10, max_share=0.1)
    assert saved == 10
    assert problem is not None
