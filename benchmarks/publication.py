"""The ten best partners of every node of a real log, from a fitted forecaster: seconds of one core."""

import time

import measure
from graphs import published_graph

from dyformer.evaluation.forecasts.forecast import fit_forecast
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph

LOG = "ml-10m"
METHOD = "Forecaster without vectors"
ROUNDS = 2
SECONDS = 60


def main() -> None:
    """Measure the tables that are published, of all and of new links; the fit is not counted."""
    graph = published_graph(LOG)
    past = prepare_graph(graph, until=graph.num_steps, config=GraphConfig())
    forecast = fit_forecast(METHOD, METHODS[METHOD], past, seed=0)
    seconds = []
    for _ in range(ROUNDS):
        started = time.process_time()
        forecast.tables(10, ("all", "new"))
        seconds.append(time.process_time() - started)
    measure.verdict(f"publication-{LOG}", seconds, SECONDS, at_most=True, unit="s")


if __name__ == "__main__":
    main()
