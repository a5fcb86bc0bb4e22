"""Old versions of datasets -> removed from the store and from MLflow."""

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
