"""The whole stack for the tests of this folder, started once; afterwards the tests that start a stack of their own."""

import os
from collections.abc import Iterator

import pytest
from compose_stack import Stack, compose_stack, missing_programs

from storage.layout import Layout


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that need no shared stack first, so that the two never run beside each other."""
    items.sort(key=lambda item: "stack" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    missing = missing_programs()
    if missing:
        reason = f"missing: {', '.join(missing)}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with compose_stack(tmp_path_factory.mktemp("stack")) as one:
        yield one


@pytest.fixture(scope="module")
def store(stack: Stack) -> Iterator[Layout]:
    """The store of the stack, as this process reads it."""
    own = stack.environment("worker-cpu")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        yield Layout(own["DYFORMER_STORAGE"], own["DYFORMER_STATE"])
