"""Run the notebooks of `examples/` and store their outputs in them: `make notebooks`."""

import resource
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MOST_SECONDS = 60.0  # of a processor, which a busy machine does not change


def check_seconds(name: str, seconds: float) -> None:
    """Raise ValueError for a notebook that takes longer than MOST_SECONDS."""
    if seconds > MOST_SECONDS:
        raise ValueError(f"{name} takes {seconds:.0f} CPU s, and a reader waits at most {MOST_SECONDS:.0f}: shorten it")


def children_seconds() -> float:
    """Give the CPU seconds of the processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Run each notebook in a kernel of its own; print the CPU seconds that it took."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook, before = nbformat.read(path, as_version=4), children_seconds()
        NotebookClient(notebook, timeout=600, record_timing=False).execute()
        seconds = children_seconds() - before
        check_seconds(path.name, seconds)
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        notebook.metadata.pop("language_info", None)  # has the version of Python
        nbformat.write(notebook, path)
        print(f"{path.name}: {seconds:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
