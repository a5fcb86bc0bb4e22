import hashlib
import io
from collections import Counter
from itertools import pairwise

import networkx as nx
import pytest

from dyformer.logs.datasets import DATASETS
from dyformer.logs.events import read_events
from dyformer.logs.plan import declared_by
from dyformer.logs.raw_file import RawFile
from dyformer.logs.sniffing import sniff_plan
from dyformer.logs.synthetic import generated_log

WEEK = 7 * 86_400_000_000


@pytest.fixture(scope="module")
def events():
    files = [RawFile(name="generated.csv", open=lambda: io.BytesIO(generated_log()))]
    result = read_events(files, sniff_plan(files, declared_by(DATASETS["generated"])))
    assert result.num_quarantined == 0
    return result.events


@pytest.fixture(scope="module")
def weeks(events):
    steps = (events["time"] - events["time"].min()) // WEEK
    return [events.filter(steps == step) for step in range(int(steps.max()) + 1)]


def pairs(frame):
    return {tuple(sorted(pair)) for pair in frame.select("source", "target").rows()}


def test_the_bytes_are_the_same_everywhere():
    digest = hashlib.sha256(generated_log()).hexdigest()
    assert digest == "d62868fcdd9cd6f59778915144489f15c223a11bda3c248ff82903e0b42c3385"
    assert generated_log(seed=1) != generated_log(seed=0)


def test_about_20_000_interactions_in_12_weeks_in_order(events, weeks):
    assert events.height == 20_000
    assert events["time"].is_sorted()
    assert len(weeks) == 12
    assert min(week.height for week in weeks) > 1_500
    assert (events["source"] != events["target"]).all()


def test_contacts_repeat_far_more_than_chance(weeks):
    for earlier, later in pairwise(weeks):
        old, new = pairs(earlier), pairs(later)
        num_people = len(set(earlier["source"]) | set(earlier["target"]))
        chance = len(old) / (num_people * (num_people - 1) / 2)
        assert len(old & new) / len(new) > 5 * chance


def test_newcomers_keep_arriving(weeks):
    seen = set()
    arrivals = []
    for week in weeks:
        present = set(week["source"]) | set(week["target"])
        arrivals.append(len(present - seen))
        seen |= present
    assert len(seen) == 300
    assert all(count > 0 for count in arrivals[1:11])


def test_communities_are_planted_and_drift(weeks):
    graphs = [nx.Graph(list(pairs(week))) for week in (weeks[0], weeks[-1])]
    parts = [nx.community.louvain_communities(graph, seed=0) for graph in graphs]
    for graph, part in zip(graphs, parts, strict=True):
        shuffled = nx.double_edge_swap(graph.copy(), nswap=3000, max_tries=100_000, seed=0)
        by_chance = nx.community.modularity(shuffled, nx.community.louvain_communities(shuffled, seed=0))
        assert nx.community.modularity(graph, part) > by_chance + 0.1
    both = set(graphs[0]) & set(graphs[1])
    home = [{person: at for at, people in enumerate(part) for person in people & both} for part in parts]
    together = Counter((home[0][person], home[1][person]) for person in both)
    stayed = sum(max(together[here, there] for there in range(len(parts[1]))) for here in range(len(parts[0])))
    assert 0.3 < stayed / len(both) < 0.9
