"""Old versions of datasets, and whole datasets -> removed from the store and from MLflow."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from storage.layout import Layout

KEEP = 10


def pruned(dataset: str, keep: int = KEEP) -> list[str]:
    """Remove old versions of a dataset from the store and from MLflow; return what was done, as sentences."""
    from dyformer.logs.counts import counted
    from storage.layout import Layout
    from storage.removal import prune as prune_store
    from storage.tracking.mlflow_client import failures, reason
    from storage.tracking.runs import open_tracker
    from storage.tracking.upkeep import prune_runs

    layout = Layout.from_environment()
    lines = [f"removed {counted(len(prune_store(layout, dataset, keep)), 'artifact')} of {dataset} from {layout.root}"]
    try:
        num_runs = prune_runs(open_tracker(layout), dataset, keep)
        lines.append(
            f"removed the files and model versions of {counted(num_runs, 'run')} from MLflow; their metrics stay"
        )
    except failures() as error:
        lines.append(f"MLflow keeps all files until the next time, because it failed: {reason(error)}")
    return lines


def dropped(dataset: str, *, everything: bool = False) -> list[str]:
    """Remove a dataset from the store, and with `everything` whatever else has its rows or ids; return what was done.

    That are its runs and model in MLflow, fetched files, and events that a server received. They go first, so that a
    call that fails can be repeated.

    Raises:
        DatasetNotIngested: no such dataset.
        DatasetInUse: a process of this machine ingests it or trains on it.
        InvalidInput: MLflow cannot remove the runs.
    """
    from storage.layout import Layout
    from storage.removal import drop_dataset, remove_raw

    layout, lines = Layout.from_environment(), []

    def remove_others() -> None:
        lines.extend(_removed_runs(layout, dataset))
        if remove_raw(layout, dataset):
            lines.append(f"removed the files and the received events of {dataset} in 1_raw")

    drop_dataset(layout, dataset, remove_others if everything else lambda: None)
    return [*lines, f"removed the events, artifacts, checkpoints and champion of {dataset} from {layout.root}"]


def _removed_runs(layout: "Layout", dataset: str) -> list[str]:
    """Remove the runs and the model of a dataset from MLflow; return what was done."""
    from dyformer import InvalidInput
    from dyformer.logs.counts import counted
    from storage.tracking.addresses import without_password
    from storage.tracking.mlflow_client import database_of, failures, reason
    from storage.tracking.runs import open_tracker
    from storage.tracking.upkeep import remove_runs

    tracker, address = open_tracker(layout), without_password(layout.tracking_uri)
    database = database_of(tracker.uri)
    if database is not None and not database.exists():
        return []
    try:
        num_runs, has_model = remove_runs(tracker, dataset)
    except failures() as error:
        raise InvalidInput(
            f"MLflow at {address} cannot remove the runs of {dataset}, so that the store was not touched:"
            f" {reason(error)}; repeat the command once it can"
        ) from error
    removed = [f"{counted(num_runs, 'run')}"] * bool(num_runs) + ["the registered model"] * has_model
    return [f"removed {' and '.join(removed)} of {dataset} from MLflow at {address}"] if removed else []


def prune_published(layout: "Layout", keep: int) -> tuple[list[str], list[str]]:
    """Remove the old versions of each dataset that publishes forecasts; those of one in use wait for the next time.

    Returns:
        What was done, as sentences, and one for each dataset with a fault, which stays as it is.
    """
    from storage.bytes import files
    from storage.bytes.objects import StoreUnreachable
    from storage.champions import publications
    from storage.locks import DatasetInUse
    from storage.removal import removable

    lines, problems = [], []
    for dataset in layout.dataset_names(files.children(layout.datasets)):
        try:
            if not publications(layout, dataset).is_empty() and removable(layout, dataset, keep):
                lines += pruned(dataset, keep)
        except DatasetInUse:
            continue
        except StoreUnreachable:  # of all datasets
            raise
        except Exception as error:  # noqa: BLE001, because no fault of one dataset may stop the others
            problems.append(f"{dataset}: {error}")
    return lines, problems
