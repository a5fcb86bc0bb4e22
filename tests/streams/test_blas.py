"""The number of BLAS's threads while several threads of a process need one alone."""

import sys
from threading import Event, Thread
from types import ModuleType

import pytest
import scipy.linalg  # noqa: F401 - so that there is a BLAS
from threadpoolctl import threadpool_info, threadpool_limits

from dyformer.streams.blas import _libraries, one_blas_thread


def threads_of_blas() -> set[int]:
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_the_last_of_several_threads_restores_what_was_before():
    inside, leave, seen = Event(), Event(), []

    @one_blas_thread
    def second() -> None:
        inside.set()
        leave.wait(10)
        seen.append(threads_of_blas())

    with threadpool_limits(2, user_api="blas"):
        with one_blas_thread:
            thread = Thread(target=second)
            thread.start()
            assert inside.wait(10)
            assert threads_of_blas() == {1}
        assert threads_of_blas() == {1}  # the second one goes on
        leave.set()
        thread.join()
        assert seen == [{1}]
        assert threads_of_blas() == {2}


def test_one_in_another_and_an_error_restore_it_too():
    @one_blas_thread
    def failing() -> None:
        with one_blas_thread:
            pass
        assert threads_of_blas() == {1}
        raise ValueError("inside")

    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(ValueError, match="inside"):
            failing()
        assert threads_of_blas() == {2}


def test_another_thread_may_set_its_own_limit_afterwards_while_the_first_one_lives():
    done, leave = Event(), Event()

    def first() -> None:
        with one_blas_thread:
            pass
        done.set()
        leave.wait(10)

    thread = Thread(target=first)
    thread.start()
    assert done.wait(10)
    for number in (2, 1):
        with threadpool_limits(number, user_api="blas"):
            assert threads_of_blas() == {number}
    leave.set()
    thread.join()


def test_libraries_are_looked_for_again_after_an_import_alone(monkeypatch: pytest.MonkeyPatch):
    num_looks = []
    for name in ("first_import", "first_import", "second_import"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        with one_blas_thread:
            assert threads_of_blas() == {1}
        num_looks.append(_libraries.cache_info().misses)
    assert num_looks == [num_looks[0], num_looks[0], num_looks[0] + 1]
