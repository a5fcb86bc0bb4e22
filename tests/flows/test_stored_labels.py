"""The labels that are read from the event table are those of a plain parser of the log, step by step."""

import csv
import gzip
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dyformer.graphs.interactions import first_positives, positive_coverage
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import Snapshots, make_snapshots, open_snapshots
from storage.events.table import node_dictionary, scan_quarantine

START, DAY = 1_600_000_000, 86_400


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))


def opened(dataset: str, path: Path, **reading) -> Snapshots:
    ingest_log(dataset, {"log": [str(path)], **reading}, show=lambda text: None)
    return open_snapshots(make_snapshots(dataset))


def rows_of(snapshots: Snapshots) -> Counter[tuple[str, int, int]]:
    """Count the labelled rows by the user's own id, step and label."""
    labels, graph = snapshots.labels(), snapshots.graph(snapshots.num_steps)
    ids = dict(node_dictionary(snapshots.layout, snapshots.dataset).select("node", "id").iter_rows())
    users = [str(ids[number]) for number in graph.node_N[labels.node_R]]
    return Counter(zip(users, labels.step_R.tolist(), labels.label_R.tolist(), strict=True))


def test_labels_equal_those_of_a_plain_parser_and_bad_ones_are_in_quarantine(tmp_path: Path):
    generator, rows = np.random.default_rng(0), []
    for number in range(300):  # in no order of time, both sides with the same ids, some rows without a label
        label = generator.choice(["0", "1", "", "0.0", "1.0", "soon", "0.5"], p=[0.5, 0.2, 0.1, 0.1, 0.06, 0.02, 0.02])
        user, page, day = generator.integers(20), generator.integers(20), generator.integers(30)
        rows.append(f"{user},{page},{START + DAY * day + number},{label}")
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["user,item,time,label", *rows]) + "\n")
    found = opened("mine", path, time_unit="s", window="7d trim 3d 2d", max_bad="20%")
    values = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
    good = [row.split(",") for row in rows if row.rpartition(",")[2] in (*values, "")]
    times = [int(row[2]) for row in good]
    first, last = min(times) + 3 * DAY, max(times) - 2 * DAY
    expected = Counter(
        (user, (int(time) - first) // (7 * DAY) + 1, values[label])
        for user, _, time, label in good
        if first <= int(time) <= last and label
    )
    assert rows_of(found) == expected
    assert len(set(found.labels().step_R.tolist())) == found.num_steps
    reasons = scan_quarantine(found.layout, "mine").collect()["reason"].to_list()
    assert reasons == ["bad label"] * sum(row.endswith((",soon", ",0.5")) for row in rows)
    assert reasons


def test_labels_of_late_rows_are_of_the_version_that_has_them(tmp_path: Path):
    (tmp_path / "1.csv").write_text(f"user,item,time,label\na,x,{START},0\na,x,{START + 15 * DAY},0\n")
    before = opened("mine", tmp_path / "1.csv", time_unit="s", window="7d", bipartite=True)
    (tmp_path / "2.csv").write_text(f"user,item,time,label\na,y,{START + DAY},1\n")
    after = opened("mine", tmp_path / "2.csv")
    assert [int(each.labels().label_R.sum()) for each in (before, after)] == [0, 1]
    assert first_positives(after.labels(), 2)[0].tolist() == []


def test_a_log_without_labels_has_none(tmp_path: Path):
    (tmp_path / "log.csv").write_text(f"user,item,time\na,x,{START}\nb,x,{START + 8 * DAY}\n")
    labels = opened("mine", tmp_path / "log.csv", time_unit="s", window="7d").labels()
    assert len(labels.node_R) == len(labels.label_R) == 0
    assert labels.label_R.dtype == np.int8


def test_the_published_form_of_reddit_and_a_renumbered_one_without_header_have_the_same_labels(tmp_path: Path):
    generator, rows = np.random.default_rng(1), []
    for number in range(60):
        user, page, label = generator.integers(9), generator.integers(4), int(generator.random() < 0.1)
        rows.append((user, page, 20_000.0 * number + 0.5, label, *generator.normal(size=172).round(3)))
    published, renumbered = tmp_path / "reddit.csv", tmp_path / "renumbered.csv"
    names = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    published.write_text(names + "".join(",".join(map(str, row)) + "\n" for row in rows))
    short = [f"{user},{page + 9},{time:.0f},{label}\r\n" for user, page, time, label, *_ in rows]
    renumbered.write_text("".join(short))
    one, other = opened("snap-reddit", published), opened("again", renumbered, **AS_REDDIT)
    expected = Counter((str(row[0]), int((row[2] - 0.5) // 250_000) + 1, row[3]) for row in rows)
    assert rows_of(one) == rows_of(other) == expected
    assert sum(row[3] for row in rows) > 2


AS_REDDIT = {"source": 0, "target": 1, "time": 2, "label": 3, "bipartite": True, "time_unit": "s", "window": "250000s"}


def test_wikipedia_has_the_labels_of_its_file(shared_log: Callable[[str], Path]):
    path = shared_log("snap-wikipedia")
    with gzip.open(path, "rt", newline="") as lines:
        rows = [(row["u"], int(row["ts"]) // 250_000 + 1, int(row["label"])) for row in csv.DictReader(lines)]
    found = opened("snap-wikipedia", path)
    assert rows_of(found) == Counter(rows)
    labels, first_step = found.labels(), {}
    for user, step, _ in rows:
        first_step.setdefault(user, step)
    banned = [(user, step) for user, step, label in rows if label]
    assert len(banned) == int(labels.label_R.sum()) == 217
    for step in range(1, 12):
        known = [user for user, when in banned if when == step and first_step[user] < step]
        assert positive_coverage(labels, step) == (sum(when == step for _, when in banned), len(known))
        assert first_positives(labels, step)[1].sum() == len(known)
