"""Results come in order from background threads, and no thread outlives its use."""

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from dyformer.sampling.prefetch import loaded

SECONDS = 10.0  # timeout after which a hanging test fails


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")]


def slow_when_early(number: int) -> int:
    time.sleep(0.02 if number % 3 == 0 else 0.0)
    return number


def broken() -> int:
    raise ZeroDivisionError("a job that fails")


def numbers(num: int) -> Iterator[Callable[[], int]]:
    return (partial(int, number) for number in range(num))


@pytest.mark.parametrize("num_threads", [0, 1, 4])
@pytest.mark.parametrize("num_ahead", [0, 3, 100])
def test_results_come_in_the_order_of_the_jobs(num_threads: int, num_ahead: int):
    jobs = (partial(slow_when_early, number) for number in range(12))
    assert list(loaded(jobs, num_threads=num_threads, num_ahead=num_ahead)) == list(range(12))
    assert loader_threads() == []


@pytest.mark.parametrize("num_threads", [0, 2])
def test_no_jobs_give_no_results(num_threads: int):
    assert list(loaded([], num_threads=num_threads, num_ahead=2)) == []


def test_jobs_run_concurrently():
    together = threading.Barrier(2)
    results = list(loaded([partial(together.wait, SECONDS)] * 2, num_threads=2, num_ahead=1))
    assert sorted(results) == [0, 1]


def test_jobs_run_while_the_caller_does():
    together = threading.Barrier(2)
    results = loaded([partial(int, 7), partial(together.wait, SECONDS)], num_threads=1, num_ahead=1)
    assert next(results) == 7
    assert {together.wait(SECONDS), next(results)} == {0, 1}
    results.close()


def test_without_a_thread_the_caller_runs_the_jobs():
    assert list(loaded([threading.get_ident], num_threads=0, num_ahead=2)) == [threading.get_ident()]
    assert list(loaded([threading.get_ident], num_threads=1, num_ahead=2)) != [threading.get_ident()]


@pytest.mark.parametrize("num_ahead", [0, 3])
def test_no_more_than_num_ahead_results_are_made_ahead(num_ahead: int):
    made: list[int] = []
    with closing(loaded((partial(made.append, n) for n in range(50)), num_threads=4, num_ahead=num_ahead)) as results:
        for taken in range(1, 20):
            next(results)
            deadline = time.monotonic() + SECONDS
            while len(made) < taken + num_ahead and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.002)
            assert len(made) == taken + num_ahead


@pytest.mark.parametrize("num_threads", [0, 1, 4])
def test_an_error_is_raised_instead_of_its_result_with_its_traceback(num_threads: int):
    results = loaded([*numbers(3), broken, *numbers(3)], num_threads=num_threads, num_ahead=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="a job that fails") as found:
        next(results)
    assert "broken" in [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert loader_threads() == []
    assert list(results) == []


def test_an_error_in_the_list_of_jobs_is_raised_and_leaves_no_thread():
    def jobs() -> Iterator[Callable[[], int]]:
        yield from numbers(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(loaded(jobs(), num_threads=2, num_ahead=1))
    assert loader_threads() == []


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_of_the_caller_leaves_no_thread(error: type[BaseException]):
    def use() -> None:
        with closing(loaded(numbers(50), num_threads=3, num_ahead=5)) as results:
            next(results)
            assert loader_threads()
            raise error

    with pytest.raises(error):
        use()
    assert loader_threads() == []


def test_closing_early_waits_for_jobs_that_have_begun_and_cancels_the_rest():
    began, done = threading.Event(), threading.Event()

    def job() -> None:
        began.set()
        time.sleep(0.1)
        done.set()

    results = loaded([partial(int, 0), job, *numbers(50)], num_threads=1, num_ahead=10)
    next(results)
    assert began.wait(SECONDS)
    results.close()
    assert done.is_set()
    assert loader_threads() == []


def test_a_job_that_has_not_begun_is_never_called():
    go, late = threading.Event(), []

    def first() -> None:
        assert go.wait(SECONDS)

    results = loaded([partial(int, 0), first, partial(late.append, 1)], num_threads=1, num_ahead=2)
    next(results)
    threading.Timer(0.1, go.set).start()
    results.close()
    assert late == []


@pytest.fixture
def control_c_handler() -> Iterator[None]:
    """Python's own handler, because a process that a shell started in the background ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("control_c_handler")
def test_control_c_while_waiting_leaves_no_thread():
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.1)

    with pytest.raises(KeyboardInterrupt), closing(loaded([interrupt] * 3, num_threads=1, num_ahead=1)) as results:
        next(results)
    assert loader_threads() == []
