"""The planted logs: their bytes, and their structure, counted by plain loops over the rows of the CSV."""

import hashlib
from collections import Counter, defaultdict, deque

import numpy as np
import pytest

from dyformer.logs.datasets import DATASETS, GENERATED
from dyformer.logs.events import read_events
from dyformer.logs.plan import declared_by
from dyformer.logs.planted import PLANTED, planted_groups, planted_log
from dyformer.logs.raw_file import RawFile
from dyformer.logs.sniffing import sniff_plan
from storage.raw.log_files import find_logs

DIGESTS = {
    "generated-communities": "05e8831c4e568ee3155ff57692fb52398de7a16e22a94f4ce11c0f470ace5e9b",
    "generated-roles": "c197e5793f3d57940902047b198c97405d13d4d7548da2144088684c74af0dd5",
    "generated-season": "3fe2a545b1749d59f5a39f5b4dd480a79b63426cc131a4733d0f789e92452a7b",
    "generated-repeats": "5f734de0943de3be83ec5ce02918cc39983d6301aa7c2abe6137edb6b882a7f6",
}


def rows_of(name):
    """Give week, source and target of each row, read from the text alone."""
    lines = planted_log(PLANTED[name]).decode().splitlines()
    first = np.datetime64("2024-01-01")
    rows = [line.split(",") for line in lines[1:]]
    weeks = [int((np.datetime64(time.rstrip("Z")) - first) // np.timedelta64(7, "D")) for _, _, time in rows]
    return [(week, int(source[1:]), int(target[1:])) for week, (source, target, _) in zip(weeks, rows, strict=True)]


def fraction(truths):
    truths = list(truths)
    return sum(truths) / len(truths)


def repeated(rows):
    """Give whether each row's pair, in either direction, was there before."""
    seen: set[frozenset[int]] = set()
    for _, source, target in rows:
        yield frozenset((source, target)) in seen
        seen.add(frozenset((source, target)))


def partners_of(rows):
    partners = defaultdict(set)
    for _, source, target in rows:
        partners[source].add(target)
        partners[target].add(source)
    return partners


def past_and_last_week(name):
    rows = rows_of(name)
    last = PLANTED[name].num_weeks - 1
    return [row for row in rows if row[0] < last], [row for row in rows if row[0] == last]


@pytest.mark.parametrize("name", PLANTED)
def test_the_bytes_are_the_same_everywhere(name):
    assert hashlib.sha256(planted_log(PLANTED[name])).hexdigest() == DIGESTS[name]
    assert planted_log(PLANTED[name], seed=1) != planted_log(PLANTED[name], seed=0)


@pytest.mark.parametrize("name", PLANTED)
def test_every_row_is_read_and_every_week_has_as_many(name):
    (file,) = find_logs(None, name, "")
    assert file.open().read() == planted_log(PLANTED[name])
    raw = [RawFile(name=file.name, open=file.open)]
    read = read_events(raw, sniff_plan(raw, declared_by(DATASETS[name])))
    planted, week = PLANTED[name], 7 * 86_400_000_000
    assert read.num_quarantined == 0
    weeks = Counter(((read.events["time"] - read.events["time"].min()) // week).to_list())
    assert weeks == dict.fromkeys(range(planted.num_weeks), planted.num_interactions)
    assert read.events["time"].is_sorted()
    assert (read.events["source"] != read.events["target"]).all()
    assert len(set(read.events["source"]) | set(read.events["target"])) == planted.num_nodes


def test_each_log_that_the_program_makes_is_a_known_dataset():
    assert {"generated", *PLANTED} == set(GENERATED) <= set(DATASETS)


def test_communities_hold_most_links_drift_and_hardly_repeat():
    name = "generated-communities"
    rows, groups = rows_of(name), planted_groups(PLANTED[name])
    assert 0.84 < fraction(groups[week][source] == groups[week][target] for week, source, target in rows) < 0.90
    assert fraction(repeated(rows)) < 0.02
    moved = fraction(groups[week + 1][node] != groups[week][node] for week in range(9) for node in range(900))
    assert 0.045 < moved < 0.055
    past, last = past_and_last_week(name)
    partners = partners_of(past)
    assert 7 < np.mean([len(partners[node]) for node in range(900)]) < 9
    assert fraction(not partners[source] & partners[target] for _, source, target in last) > 0.7
    # Those who moved link no more with their former community, where a sixth of all links would be by chance.
    former = [(groups[0][s], groups[w][t]) for w, s, t in rows if w == 9 and groups[0][s] != groups[9][s]]
    assert fraction(before == now for before, now in former) < 0.1


def test_roles_contact_the_next_role_and_no_neighbour_of_a_neighbour():
    name = "generated-roles"
    rows, groups = rows_of(name), planted_groups(PLANTED[name])
    assert (groups == groups[0]).all()
    assert 0.84 < fraction((groups[0][source] + 1) % 6 == groups[0][target] for _, source, target in rows) < 0.90
    assert fraction(repeated(rows)) < 0.02
    past, last = past_and_last_week(name)
    partners = partners_of(past)
    generator = np.random.default_rng(0)
    linked = fraction(bool(partners[source] & partners[target]) for _, source, target in last)
    any_pair = fraction(bool(partners[a] & partners[b]) for a, b in generator.integers(900, size=(4000, 2)))
    assert linked < any_pair  # common neighbours point away from the next links


def test_seasons_are_the_only_sources_and_return_every_fourth_week():
    name = "generated-season"
    rows, groups = rows_of(name), planted_groups(PLANTED[name])
    assert all(groups[week][source] % 4 == week % 4 for week, source, _ in rows)
    assert 0.84 < fraction(groups[week][source] == groups[week][target] for week, source, target in rows) < 0.90
    sources = defaultdict(set)
    for week, source, _ in rows:
        sources[week].add(source)
    for week in range(4, 12):
        assert not sources[week] & sources[week - 1]
        assert len(sources[week] & sources[week - 4]) > 0.6 * len(sources[week])


def test_repeats_are_with_one_of_the_latest_four_partners():
    rows = rows_of("generated-repeats")
    latest: dict[int, deque[int]] = defaultdict(lambda: deque(maxlen=4))
    among = []
    for _, source, target in rows:
        among.append(target in latest[source])
        latest[source].append(target)
        latest[target].append(source)
    assert 0.80 < fraction(among) < 0.86
    assert fraction(repeated(rows)) > 0.8


def test_groups_drawn_alone_are_those_behind_the_rows():
    """With no other rule than the groups, every row follows them; with the groups of another seed, a sixth does."""
    planted = PLANTED["generated-communities"]
    sure = type(planted)(**{**vars(planted), "following": 1.0})
    lines = [line.split(",") for line in planted_log(sure).decode().splitlines()[1:]]
    rows = [(at // planted.num_interactions, int(s[1:]), int(t[1:])) for at, (s, t, _) in enumerate(lines)]
    own, other = planted_groups(sure), planted_groups(sure, seed=1)
    assert all(own[week][source] == own[week][target] for week, source, target in rows)
    assert fraction(other[week][source] == other[week][target] for week, source, target in rows) < 0.25
