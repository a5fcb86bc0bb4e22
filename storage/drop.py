"""Name of a dataset -> a store without that dataset."""

from storage import files
from storage.events.table import DatasetNotIngested
from storage.layout import Layout
from storage.locks import not_in_use


def check_dataset(layout: Layout, dataset: str) -> None:
    """Raise DatasetNotIngested, with the names of the stored datasets, if the dataset is not in the store."""
    names = layout.dataset_names(files.children(layout.datasets))
    names = [
        name for name in names if files.find(layout.of_dataset(layout.datasets, name))
    ]  # S3 may list empty folders
    if dataset not in names:
        raise DatasetNotIngested(f"no dataset {dataset!r} in {layout.root}; it has: {', '.join(names) or 'none'}")


def drop_dataset(layout: Layout, dataset: str) -> None:
    """Remove the events, artifacts, checkpoints and champion record of a dataset; its files in `1_raw` stay.

    The events are removed last, so that a killed drop can be repeated.

    Raises:
        DatasetNotIngested: no such dataset.
        DatasetInUse: a process of this machine ingests it or trains on it.
    """
    check_dataset(layout, dataset)
    with not_in_use(layout, dataset, "drop"):
        for folder in layout.artifact_folders:
            for kind in files.children(folder):
                files.remove_folder(layout.of_dataset(f"{folder}/{kind}", dataset))
        files.remove_folder(layout.of_dataset(layout.datasets, dataset))
