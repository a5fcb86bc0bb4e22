"""Published vectors stay in one space from week to week where they agree, and mixed spaces are refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from polars.testing import assert_frame_equal
from prefect import Task
from published import latest

from dyformer.experiments.settings import Experiment, OldSettings, as_record
from dyformer.scoring.vector_scores import prepare_vectors
from dyformer.scoring.vector_spaces import MIN_LIFT, agreement, blocks, rotated
from dyformer.training.checkpoint import WeightsDoNotFit
from flows import parallel, stages
from flows.cli import main
from flows.tasks import predict
from flows.tasks.complete_windows import make_complete_snapshots
from flows.tasks.ingest import ingest_log
from flows.tasks.models import PARTS, Contender, open_model, space_of
from flows.tasks.predict import read_vectors, write_forecasts, write_vectors
from flows.tasks.publishing.export import export
from flows.tasks.publishing.publications import publish, published_vectors, vectors_to_publish
from flows.tasks.snapshots import make_snapshots, open_snapshots
from flows.tasks.spaces import read_rotation, space_record
from storage.artifacts.artifact import ArtifactMissing, lineage_of, manifest, open_artifact, read_table, write_artifact
from storage.artifacts.checkpoints import to_bytes
from storage.bytes import files
from storage.champions import MixedSpaces, numbered_after, publications, read_champion, replace_champion
from storage.layout import Layout
from storage.queries import QueryFailed, query

NUM_NODES, WIDTH = 40, 8
COLUMNS = ("space_id", "agreement", "agreement_before", "agreement_of_others")


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[tuple[float, int], NDArray[np.float32]]:
    """Vectors of each model, by the number that is its weights, and each step; nothing is trained or embedded."""
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    made: dict[tuple[float, int], NDArray[np.float32]] = {}

    def embed_range(values: dict[str, Any], batches: range, num_threads: int) -> pl.DataFrame:
        number = float(open_model(values["model"])[0]["weight"])
        return pl.DataFrame({"vector": pl.Series(made[number, values["step"]], dtype=pl.List(pl.Float32))})

    monkeypatch.setattr(predict, "embed_range", embed_range)
    return made


def grown(folder: Path, first: int, num: int) -> str:
    """Commit steps of ten units of time, in each of which all nodes are linked."""
    rows = [f"{n % NUM_NODES},{(n + 1) % NUM_NODES},{n / 4}" for n in range(40 * first, 40 * (first + num))]
    path = folder / f"{first}.csv"
    path.write_text("\n".join(["source,target,time", *rows]))
    reading = {"log": [str(path)], "time_unit": "s", "window": "10s", "bipartite": False}
    ingest_log("mylog", reading, lambda text: None)
    return make_snapshots("mylog")


def model(snapshots: str, number: float) -> str:
    opened = open_snapshots(snapshots)
    lineage = opened.lineage("model", until=2, settings={**as_record(Experiment(), PARTS), "seed": 0, "number": number})
    keys = {"version": 1, "until": 2, "settings": lineage.settings_hash, "seed": 0}
    weights = {"weights.safetensors": to_bytes({"weight": torch.tensor(number)}, {})}
    return write_artifact(opened.layout.artifact("model", "mylog", **keys), weights, lineage)


def champion(snapshots: str, *models: str) -> Contender:
    layout = open_snapshots(snapshots).layout
    contender = Contender(title="Forecaster with DyFormer" if models else "L3", models=models)
    before, stamp = read_champion(layout, "mylog")
    identity = " ".join([contender.title, *map(space_of, models)])
    record = {
        "title": contender.title,
        "models": [layout.relative(each) for each in models],
        "identity": identity,
        "num_tests": 0,
        "tests": {},
        **numbered_after(before),
    }
    assert replace_champion(layout, "mylog", record, stamp)
    return contender


def published(snapshots: str, address: str, vectors: str | None = None) -> str:
    """Publish a model's vectors, with forecasts of no row, as the champion's."""
    opened = open_snapshots(snapshots)
    contender = champion(snapshots, address)
    vectors = published_vectors(snapshots, address) if vectors is None else vectors
    lineage = opened.lineage("forecasts", until=opened.num_steps, settings={"model": address}, inputs=(vectors,))
    keys = {"version": 1, "until": opened.num_steps, "settings": lineage.settings_hash, "seed": 0}
    table = pl.DataFrame({"side": [0], "id": [1], "rank": [1], "step": [opened.num_steps + 1]})
    forecasts = write_artifact(opened.layout.artifact("forecasts", "mylog", **keys), {"forecasts": table}, lineage)
    assert publish(snapshots, contender, forecasts, vectors) is not None
    return vectors


def drawn(seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(NUM_NODES, WIDTH)).astype(np.float32)


def turned(vector_ND: NDArray[np.float32], seed: int, noise: float = 0.1) -> NDArray[np.float32]:
    """The same vectors in the axes of another training, a little moved."""
    rotation_DD = np.zeros((WIDTH, WIDTH))
    for column_B in blocks(WIDTH):
        square_BB = np.random.default_rng([seed, *column_B]).normal(size=(len(column_B), len(column_B)))
        rotation_DD[np.ix_(column_B, column_B)] = np.linalg.qr(square_BB)[0]
    return (rotated(vector_ND, rotation_DD) + noise * drawn(seed)).astype(np.float32)


def table_of(address: str) -> NDArray[np.float32]:
    return np.array(read_table(address, "vectors")["vector"].to_list(), dtype=np.float32)


def test_vectors_of_the_next_week_are_rotated_into_the_space_of_the_last_and_scores_stay(
    given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path
) -> None:
    week = grown(tmp_path, 0, 4)
    first, second = model(week, 1.0), model(week, 2.0)
    given[1.0, 4] = drawn(0)
    one = published(week, first)
    assert space_record(one)["reason"] == "nothing was published before"
    later = grown(tmp_path, 4, 1)
    given[2.0, 5] = turned(drawn(0), 1)
    two = published(later, second)
    record, earlier = space_record(two), table_of(one)
    assert record["space_id"] == space_record(one)["space_id"] == space_of(first)
    assert set(read_table(two, "vectors")["space_id"]) == {space_of(first)}
    assert record["agreement"] > 0.95 > 0.5 > record["agreement_before"]
    assert agreement(table_of(two), earlier).itself > 0.95
    np.testing.assert_array_equal(read_vectors(two), given[2.0, 5])  # of which the scores are made: to the last bit
    history = open_snapshots(later).graph(5)
    pairs = np.repeat(np.arange(NUM_NODES), NUM_NODES), np.tile(np.arange(NUM_NODES), NUM_NODES)
    own, public = (
        prepare_vectors(each, history).table(*pairs, directed=True) for each in (given[2.0, 5], table_of(two))
    )
    np.testing.assert_allclose(public, own, atol=3e-6)
    row = publications(Layout.from_environment(), "mylog").row(-1, named=True)
    assert {name: row[name] for name in COLUMNS} == {name: record[name] for name in COLUMNS}
    assert published_vectors(later, second) == two  # though they were published since


def test_only_the_newest_publication_is_opened_for_the_space_of_new_vectors(
    given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots, addresses, opened = grown(tmp_path, 0, 4), [], []
    first = model(snapshots, 1.0)
    for step in range(4, 7):
        given[1.0, step] = drawn(0)
        addresses.append(published(snapshots, first))
        snapshots = grown(tmp_path, step, 1)
    given[2.0, 7] = turned(drawn(0), 1)
    name = "flows.tasks.publishing.publications.manifest"
    monkeypatch.setattr(name, lambda address: (opened.append(address), manifest(address))[1])
    vectors = published_vectors(snapshots, model(snapshots, 2.0))
    assert opened == addresses[-1:]
    assert space_record(vectors)["space_id"] == space_of(first)


def test_the_views_of_what_is_latest_have_the_rows_of_the_newest_publication_and_no_other(
    given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path
) -> None:
    week = grown(tmp_path, 0, 4)
    first, second = model(week, 1.0), model(week, 2.0)
    given |= {(1.0, 4): drawn(0), (2.0, 5): turned(drawn(0), 1), (1.0, 5): drawn(0)}
    published(week, first)
    later = grown(tmp_path, 4, 1)
    newest = read_table(published(later, second), "vectors")
    published_vectors(later, first)  # written last, and not published
    layout = Layout.from_environment()
    assert query(layout, "select count(*) from vectors").item() == 3 * NUM_NODES
    found = query(layout, "select * from latest_vectors")
    assert_frame_equal(found.select(newest.columns), newest, check_row_order=False)
    assert query(layout, "select step from forecasts order by step").rows() == [(5,), (6,)]
    assert query(layout, "select side, id, rank, step from latest_forecasts").rows() == [(0, 1, 1, 6)]


def test_the_same_weights_keep_their_rotation(
    given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path
) -> None:
    week = grown(tmp_path, 0, 4)
    first, second = model(week, 1.0), model(week, 2.0)
    given |= {(1.0, 4): drawn(0), (2.0, 5): turned(drawn(0), 1), (2.0, 6): turned(drawn(5), 1)}
    published(week, first)
    two = published(grown(tmp_path, 4, 1), second)
    three = published(grown(tmp_path, 5, 1), second)
    rotation_DD = read_rotation(two)
    assert rotation_DD is not None
    np.testing.assert_array_equal(read_rotation(three), rotation_DD)
    np.testing.assert_array_equal(table_of(three), rotated(given[2.0, 6], rotation_DD))
    assert space_record(three)["space_id"] == space_of(first)  # one model is one space, however its vectors move


@pytest.mark.parametrize("case", ["unrelated", "other width"])
def test_a_new_space_begins_where_the_vectors_do_not_agree(
    case: str, given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path
) -> None:
    week = grown(tmp_path, 0, 4)
    first, second = model(week, 1.0), model(week, 2.0)
    given[1.0, 4] = drawn(0)
    published(week, first)
    given[2.0, 5] = drawn(1) if case == "unrelated" else np.hstack([drawn(0), drawn(0)])
    two = published(grown(tmp_path, 4, 1), second)
    record = space_record(two)
    assert record["space_id"] == space_of(second)
    assert record["reason"].startswith("a new space, because ")
    assert record["agreement"] is None if case == "other width" else record["agreement"] < MIN_LIFT
    np.testing.assert_array_equal(table_of(two), given[2.0, 5])
    assert [name for name in sorted(open_artifact(two).entries) if name.endswith(".parquet")] == ["vectors.parquet"]


def test_vectors_of_a_later_step_are_no_reference(
    given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path
) -> None:
    grown(tmp_path, 0, 4)
    later = grown(tmp_path, 4, 1)
    first, second = model(later, 1.0), model(later, 2.0)
    given |= {(1.0, 5): drawn(0), (2.0, 4): turned(drawn(0), 1)}
    published(later, first)
    earlier = make_snapshots("mylog", end_time=40_000_000)
    assert open_snapshots(earlier).num_steps == 4
    assert published_vectors(earlier, second) == write_vectors(earlier, second)


def test_parts_that_another_process_has_removed_are_no_error_where_it_has_finished_the_vectors(
    given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    snapshots = grown(tmp_path, 0, 3)
    given[1.0, 3] = np.ones((NUM_NODES, WIDTH), dtype=np.float32)
    own, honest = model(snapshots, 1.0), parallel.map_ranges

    def removed(*given: Any) -> list[pl.DataFrame]:
        if finishes:
            monkeypatch.setattr(parallel, "map_ranges", honest)
            write_vectors(snapshots, own)
        raise ArtifactMissing("a part")

    for finishes in (False, True):
        monkeypatch.setattr(parallel, "map_ranges", removed)
        if finishes:
            assert len(read_vectors(write_vectors(snapshots, own))) == NUM_NODES
        else:
            with pytest.raises(ArtifactMissing):
                write_vectors(snapshots, own)


def test_mixed_spaces_are_refused_by_name(given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path) -> None:
    week = grown(tmp_path, 0, 4)
    given[1.0, 4] = drawn(0)
    address = model(week, 1.0)
    sound = write_vectors(week, address)
    table = read_table(sound, "vectors")
    mixed = table.with_columns(space_id=pl.when(pl.col("id") == 1).then(pl.lit("other")).otherwise("space_id"))
    opened = open_snapshots(week)
    lineage = opened.lineage("vectors", until=4, settings={"model": space_of(address), "made": "by hand"})
    keys = {"version": 1, "until": 4, "settings": lineage.settings_hash, "seed": 0}
    broken = write_artifact(opened.layout.artifact("vectors", "mylog", **keys), {"vectors": mixed}, lineage)
    with pytest.raises(MixedSpaces, match=f"expected vectors of one space, found .*{space_of(address)}"):
        write_vectors(week, address, onto=broken)
    record = {"vectors": mixed, "space.json": json.dumps({**space_record(sound), "space_id": "other"}).encode()}
    lineage = opened.lineage("vectors", until=4, settings={"model": space_of(address), "made": "with a record"})
    keys["settings"] = lineage.settings_hash
    published(week, address, write_artifact(opened.layout.artifact("vectors", "mylog", **keys), record, lineage))
    with pytest.raises(MixedSpaces, match="vectors of mylog"):
        export("mylog", str(tmp_path / "out"))
    with pytest.raises(MixedSpaces):
        query(Layout.from_environment(), "select * from latest_vectors")


def reads_vectors(forecasts: str) -> bool:
    return any("/vectors/" in name for name in lineage_of(forecasts).inputs)


def test_a_champion_without_vectors_publishes_those_of_the_newest_training(
    given: dict[tuple[float, int], NDArray[np.float32]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def predicted(*options: str) -> tuple[str, dict[str, str]]:
        with pytest.raises(SystemExit) as ended:
            main(["predict", "mylog", *options])
        assert not ended.value.code
        return capsys.readouterr().out, latest(Layout.from_environment(), "mylog")

    given |= {(1.0, step): drawn(0) for step in range(3, 9)}
    snapshots = make_complete_snapshots(lineage_of(grown(tmp_path, 0, 5)).dataset)
    first, scorer = model(snapshots, 1.0), champion(snapshots)
    vectors = published_vectors(snapshots, first)
    publish(snapshots, scorer, write_forecasts(snapshots, scorer), vectors)
    for part, words in ((("--top", "9"), "fewer than 10 links"), (("--links", "new"), "they are of new links alone")):
        assert words in predicted(*part)[0].splitlines()[-1]
        assert publications(Layout.from_environment(), "mylog").height == 1
    output, found = predicted("--top", "12")
    assert "no vectors of its own: they are of the model whose vectors were published last" in output
    assert (found["vectors"], publications(Layout.from_environment(), "mylog").height) == (vectors, 2)
    assert not reads_vectors(found["forecasts"])
    grown(tmp_path, 5, 2)
    later = predicted()[1]["vectors"]
    step = open_snapshots(snapshots).num_steps + 2
    assert (lineage_of(later).until, lineage_of(later).settings["model"]) == (step, space_of(first))
    assert query(Layout.from_environment(), "select distinct step from latest_vectors").rows() == [(step,)]
    files.remove_folder(first)
    grown(tmp_path, 7, 1)
    output, found = predicted()
    assert "no vectors of its own: there is no trained model" in output
    assert output.endswith("published: the view latest_forecasts has them\n")
    assert "vectors" not in found
    with pytest.raises(QueryFailed, match="latest_vectors has no sound part: none was made or published, or each"):
        query(Layout.from_environment(), "select * from latest_vectors")


@pytest.mark.parametrize("error", [WeightsDoNotFit, OldSettings])
def test_weights_that_this_version_cannot_read_leave_such_a_champion_without_vectors(
    given: dict[tuple[float, int], NDArray[np.float32]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
):
    def embed_range(*arguments: Any) -> pl.DataFrame:
        raise error

    given[1.0, 4] = drawn(0)
    snapshots = grown(tmp_path, 0, 4)
    first = model(snapshots, 1.0)
    published(snapshots, first)
    scorer = champion(snapshots)
    later = grown(tmp_path, 4, 1)
    monkeypatch.setattr(predict, "embed_range", embed_range)
    assert vectors_to_publish(later, scorer) is None
    with pytest.raises(error):
        vectors_to_publish(later, champion(snapshots, first))


def test_the_flow_publishes_such_vectors_too(
    given: dict[tuple[float, int], NDArray[np.float32]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    for name, part in vars(stages).items():
        if isinstance(part, Task):
            monkeypatch.setattr(stages, name, part.fn)  # without a server
    given |= {(1.0, step): drawn(0) for step in range(3, 9)}
    snapshots = make_complete_snapshots(lineage_of(grown(tmp_path, 0, 5)).dataset)
    vectors, scorer = published_vectors(snapshots, model(snapshots, 1.0)), champion(snapshots)
    publish(snapshots, scorer, write_forecasts(snapshots, scorer), vectors)
    grown(tmp_path, 5, 2)
    addresses = stages.predict.fn("mylog")
    assert lineage_of(addresses["vectors"]).until == open_snapshots(snapshots).num_steps + 2
    assert lineage_of(addresses["forecasts"]).settings["method"] == "L3"
    assert not reads_vectors(addresses["forecasts"])
    assert latest(Layout.from_environment(), "mylog") == addresses
    assert f"mylog: published what L3 forecasts: {addresses['forecasts']}" in capsys.readouterr().out
