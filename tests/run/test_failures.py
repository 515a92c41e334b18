"""A failed system call loses no row: the run ends with a hint, and resumes."""

import errno
import os
import resource
import signal
from collections import Counter
from functools import partial

import pytest

from tests.support.stub_runs import KINDS, Calls, finish, fresh, rows_of, whole

STEPS = [7, pytest.param(1, marks=pytest.mark.nightly)]
ENDS = (3, 14)


def fail(code, name):
    raise OSError(code, os.strerror(code))


class Full(Calls):
    """Every call from the `number`-th on fails."""

    def is_reached(self) -> bool:
        return self.count >= self.number


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("calls", [Calls, Full])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "engines" not in kind])
def test_run_resumes_after_a_failed_system_call(images, kind, calls, step):
    output, options = KINDS[kind]
    rows, undisturbed = whole(images, kind), 0
    for number in range(1, 1000, step):
        folder = fresh(images, "failing")
        counted = calls(number, partial(fail, errno.ENOSPC if number % 2 else errno.EIO))
        code, said = finish(folder, output, before=counted, **options)
        assert code in ENDS, (number, said)
        assert "Traceback" not in said, (number, said)
        before = Counter(rows_of(folder, output)) if any(folder.iterdir()) else Counter[str]()
        assert before <= Counter(rows), number
        code_resumed, said_resumed = finish(folder, output, **options)
        found = rows_of(folder, output)
        assert code_resumed == 3, (number, said, said_resumed)
        assert found == rows, (number, said, said_resumed)
        # the folder of locks may be another one; after the last call nothing fails any more
        undisturbed = undisturbed + 1 if code == 3 and not said else 0
        if undisturbed == 3:
            assert number > 20
            return


def limit_size_of_files(size):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # which has no size
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "engines" not in kind])
def test_run_resumes_after_a_full_disk(images, kind):
    """As far as a limit of the size of files is one."""
    output, options = KINDS[kind]
    rows = whole(images, kind)
    for size in (0, 100, 1000, 3000, 5000, 9000):
        folder = fresh(images, "full")
        limit = partial(limit_size_of_files, size)
        assert finish(folder, output, before=limit, **options)[0] in ENDS, size
        assert finish(folder, output, **options)[0] == 3
        assert rows_of(folder, output) == rows, size
