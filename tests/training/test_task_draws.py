"""Tasks are drawn by the recency of their step, with exactly the probabilities of the half-life."""

import numpy as np
import pytest
from toy_graphs import random_graph

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.model.config import ModelConfig
from dyformer.sampling.link_batches import LinkTask, forecast_tasks, reconstruction_tasks
from dyformer.training.config import PretrainConfig
from dyformer.training.loop import TASKS, Stage, draw_tasks
from dyformer.training.stages import pair_source

NUM_DRAWS = 20_000
GRAPH = prepare_graph(
    random_graph(np.random.default_rng(3), num_nodes=40, num_steps=5, num_edges=60), until=5, config=GraphConfig()
)


def stage(tasks: list[LinkTask], half_life: float | None) -> Stage:
    config = PretrainConfig(step_half_life=half_life)
    return Stage(
        name="pretrain",
        number=1,
        tasks=tasks,
        source=pair_source(GRAPH, ModelConfig(), config, seed=0),
        two_views=False,
        loss=lambda model, batch: {},
        config=config,
        seed=7,
    )


def test_a_step_is_drawn_half_as_often_as_one_a_half_life_newer():
    tasks = forecast_tasks(5)  # steps 2 .. 5: three, two, one and no step old
    drawn = draw_tasks(stage(tasks, 1.0), 1, NUM_DRAWS, held_out=False)
    assert [drawn.count(task) / NUM_DRAWS for task in tasks] == pytest.approx(
        [1 / 15, 2 / 15, 4 / 15, 8 / 15], abs=0.01
    )


@pytest.mark.parametrize("half_life", [0.5, 2.0, 4.0, None])
def test_tasks_are_drawn_with_exactly_the_probabilities_of_the_half_life(half_life: float | None):
    tasks = reconstruction_tasks(5, 5, hidden=False)
    weights = [1 if half_life is None else 2 ** (-(5 - task.step) / half_life) for task in tasks]
    choice = np.random.default_rng([7, 1, 3, TASKS]).choice(len(tasks), size=200, p=np.array(weights) / sum(weights))
    assert draw_tasks(stage(tasks, half_life), 3, 200, held_out=False) == [tasks[index] for index in choice]
