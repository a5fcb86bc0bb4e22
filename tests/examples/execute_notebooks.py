"""Run the notebooks of `examples/` and store their outputs in them: `make notebooks`."""

import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def main() -> None:
    """Run each notebook in a kernel of its own; print the seconds that it took."""
    for path in sorted(EXAMPLES.glob("*.ipynb")):
        notebook, begun = nbformat.read(path, as_version=4), time.monotonic()
        NotebookClient(notebook, timeout=600, record_timing=False).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        notebook.metadata.pop("language_info", None)  # has the version of Python
        nbformat.write(notebook, path)
        print(f"{path.name}: {time.monotonic() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
