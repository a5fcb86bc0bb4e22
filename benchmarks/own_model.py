"""Vectors as inputs of a user's own model -> how well it foresees who comes back, beside counts of the past.

The model is scikit-learn's: boosted trees with their usual settings ("trees"), or a logistic regression whose strength
is chosen by cross-validation ("logistic"). It says of each node that is known at the end of a step whether it has a
link in the next step ("comes back"), or one with a node that is no partner of it yet ("new partner"). The last step is
measured: the model is fitted on the labels of the step before it, with inputs as of the step before that, up to which
the vectors are trained. So the vectors of both steps are of the same weights, and nothing reads a step that it
forecasts. Inputs are the counts of `activity_features`, vectors, or both. The interval resamples nodes; a gain is the
difference to the counts in the same model, on the same resamples.

    python benchmarks/own_model.py --seeds 3 generated-communities uci=out.opsahl-ucsocial.gz

N nodes    K width    F inputs    B resamples
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from event_vectors import row_of
from numpy.typing import NDArray
from scipy.sparse.linalg import svds
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from vector_uses import RANK, contacts, graph_of

import dyformer
from dyformer.evaluation.bootstrap import NodeResamples, interval, node_resamples, resampled_metrics
from dyformer.experiments.printed import markdown_rows
from dyformer.experiments.settings import Experiment
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.logs.datasets import DATASETS
from dyformer.logs.planted import PLANTED
from dyformer.scoring.node_head import activity_features
from dyformer.training.stages import DyFormerEmbedder, embed

COUNTS = "counts"
STRENGTHS = [1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0]  # C of the logistic regression
NO_NODE = -1  # the other end of a node that is resampled alone
VectorsOf = Callable[[PreparedGraph], NDArray[np.floating]]
"""A history, whose last step may be later than those of the fit -> the vectors [N, K] of its nodes."""

Fit = Callable[[PreparedGraph, int], VectorsOf]
"""A history and a seed -> what gives vectors."""


def decomposition(graph: PreparedGraph, seed: int) -> VectorsOf:
    """Decompose the contacts of all steps; a later contact moves a vector along the directions that were found."""
    num_nodes = len(graph.history.node_N)
    start_N = np.random.default_rng(seed).normal(size=num_nodes)
    _, value_K, right_KN = svds(contacts(graph.history, 1, graph.until), k=RANK, v0=start_N)
    direction_NK = right_KN.T / np.sqrt(np.maximum(value_K, 1e-12))
    return lambda later: contacts(later.history, 1, later.until)[:, :num_nodes] @ direction_NK


def dyformer_vectors(graph: PreparedGraph, seed: int) -> VectorsOf:
    """Train the default DyFormer; its weights embed later steps, too."""
    usual = Experiment()
    method = DyFormerEmbedder(model=usual.model, pretrain=usual.pretrain, finetune=usual.finetune)
    weights = method.train(graph, seed=seed)
    return lambda later: embed(later, weights, usual.model)


def trees(seed: int) -> Any:
    """Give boosted trees."""
    return HistGradientBoostingClassifier(random_state=seed)


def logistic(seed: int) -> Any:
    """Give a logistic regression on standardised inputs, whose strength has the least log loss of five folds."""
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    scaled = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2_000))
    return GridSearchCV(scaled, {"logisticregression__C": STRENGTHS}, cv=folds, scoring="neg_log_loss")


MODELS: dict[str, Callable[[int], Any]] = {"trees": trees, "logistic": logistic}
"""A seed -> a model of scikit-learn that is not fitted yet."""

KINDS: dict[str, Fit] = {"singular vectors": decomposition, "DyFormer": dyformer_vectors}


def labels(graph: DynamicGraph, before: int) -> dict[str, NDArray[np.bool_]]:
    """Give by name the labels [N] of the nodes known at the end of the step `before`, from the step after it."""
    num_nodes = graph.snapshots[before - 1].num_nodes
    after_NN = contacts(graph, before + 1, before + 1)[:num_nodes].tocoo()
    past_NN = contacts(graph, 1, before).tocoo()
    node_E, partner_E = after_NN.row, after_NN.col  # a link of a node with itself is no edge
    num_all = len(graph.node_N)
    past_K = past_NN.row.astype(np.int64) * num_all + past_NN.col
    is_new_E = ~np.isin(node_E.astype(np.int64) * num_all + partner_E, past_K)
    return {
        name: np.bincount(end_E, minlength=num_nodes) > 0
        for name, end_E in (("comes back", node_E), ("new partner", node_E[is_new_E]))
    }


def inputs(past: PreparedGraph, vectors: dict[str, VectorsOf]) -> dict[str, NDArray[np.floating]]:
    """Give the inputs [N, F] by name: counts, each kind of vectors, and counts with each."""
    count_NF = activity_features(past)
    vector_of = {name: np.asarray(vectors_of(past), dtype=np.float64) for name, vectors_of in vectors.items()}
    both = {f"{COUNTS}, {name}": np.hstack([count_NF, vector_NK]) for name, vector_NK in vector_of.items()}
    return {COUNTS: count_NF, **vector_of, **both}


def measured(graph: DynamicGraph, kinds: Mapping[str, Fit], seed: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield the name of each measure, its value and the ends of its interval: the AUC of each kind of inputs."""
    until = graph.num_steps - 2
    first, second = (prepare_graph(graph, until=step, config=Experiment().graph) for step in (until, until + 1))
    vectors = {name: fit(first, seed) for name, fit in kinds.items()}
    fitted_inputs, measured_inputs = inputs(first, vectors), inputs(second, vectors)
    fitted_labels, measured_labels = labels(graph, until), labels(graph, until + 1)
    node_N = np.arange(len(second.history.node_N))
    resamples = node_resamples([node_N, np.array([NO_NODE])], generator=np.random.default_rng(seed))
    for label, positive_N in measured_labels.items():
        yield f"{label}: nodes", len(positive_N), np.nan, np.nan
        yield f"{label}: positive", positive_N.sum(), np.nan, np.nan
        for title, new_model in MODELS.items():
            auc_of = {}
            for name, input_NF in measured_inputs.items():
                model = new_model(seed).fit(fitted_inputs[name], fitted_labels[label])
                auc_of[name] = auc(resamples, positive_N, model.predict_proba(input_NF)[:, 1])
                value, value_B = auc_of[name]
                yield f"{label}, {title}: {name}", value, *interval(value_B)
                gain, gain_B = value - auc_of[COUNTS][0], value_B - auc_of[COUNTS][1]
                if name != COUNTS:
                    yield f"{label}, {title}: {name}, gain", gain, *interval(gain_B)


def auc(
    resamples: NodeResamples, positive_N: NDArray[np.bool_], score_N: NDArray[np.floating]
) -> tuple[float, NDArray[np.float64]]:
    """Give the AUC of scored nodes, and of each resample [B]."""
    node_N, no_node_N = np.arange(len(score_N)), np.full(len(score_N), NO_NODE)
    value_B, _ = resampled_metrics(resamples, node_N, no_node_N, positive_N, score_N)
    return float(roc_auc_score(positive_N, score_N)), value_B


def read(log: str) -> DynamicGraph:
    """Give the graph of a planted log, or of a known log's file, written NAME=FILE."""
    if log in PLANTED:
        return graph_of(PLANTED[log])[0]
    name, _, file = log.partition("=")
    known = DATASETS[name]
    columns = known.columns
    read_log = dyformer.read_log(
        Path(file),
        source=columns.source,
        target=columns.target,
        time=columns.time,
        time_unit=known.time_unit,
        separator=known.separator,
        bipartite=known.bipartite,
        directed=known.directed,
    )
    return read_log.snapshots(known.window).dynamic


def main() -> None:
    """Print the table of all logs, means over seeds, and the CPU seconds of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("logs", nargs="+", metavar="log", help=f"NAME=FILE of a known log, or {', '.join(PLANTED)}")
    parser.add_argument("--leave-out", type=int, default=0, help="number of last steps that are not read")
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0")
    given = parser.parse_args()
    rows = []
    for log in given.logs:
        graph, started = read(log), time.process_time()
        graph = prefix(graph, graph.num_steps - given.leave_out)
        values = [value for seed in range(given.seeds) for value in measured(graph, KINDS, seed)]
        seconds = f"{(time.process_time() - started) / given.seeds:.0f}"
        rows.append({"log": log.partition("=")[0], **row_of(values), "CPU s a seed": seconds})
        print(rows[-1], flush=True)
    print(
        "\n".join(
            markdown_rows(pl.DataFrame(rows).transpose(include_header=True, header_name="measure", column_names="log"))
        )
    )


if __name__ == "__main__":
    main()
