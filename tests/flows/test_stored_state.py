"""Claims about the stored state and the stored forecaster: one pass, the same bytes, nothing later than its time."""

import errno
import json
import os
import re
from functools import partial

import numpy as np
import pytest
from live_logs import NAME, START, ingest, rows_of, stored_state
from typer.testing import CliRunner

from dyformer.scoring.event_forecaster import EventForecaster
from dyformer.streams.event_log import EventQueries
from flows.cli import app
from flows.tasks import event_state
from flows.tasks.event_state import (
    events_before,
    make_horizon,
    make_model,
    newest_model,
    read_model,
    read_state,
)
from flows.tasks.live import current_ranking, open_horizon, open_ranking, packed_ranking
from storage.artifacts.artifact import ArtifactDamaged, lineage_of, read_bytes
from storage.events.commits import take_back
from storage.layout import EVENT_MODEL, STATE, Layout

ROWS = rows_of()


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch):
    """Fit few trees, because a test needs a forecaster and not a good one."""
    few = partial(EventForecaster, gate_rounds=8, past_rounds=8, new_rounds=8)
    monkeypatch.setattr(event_state, "EventForecaster", few)


@pytest.fixture
def store(tmp_path):
    return Layout(str(tmp_path / "store"))


def bytes_of_a_pass_from_the_beginning(layout, tmp_path, parts, **reading):
    """Ingest all parts in another store, of which only the last version has a state; give its bytes and its record."""
    other = Layout(str(tmp_path / "other"))
    for number, rows in enumerate(parts):
        ingest(other, tmp_path, rows, number, **reading)
    address = stored_state(other)
    return read_bytes(address, STATE), lineage_of(address)


def parts_of(*borders):
    return [ROWS[first:last] for first, last in zip((0, *borders), (*borders, len(ROWS)), strict=True)]


def in_the_middle_of_a_time(start):
    """Find a border that has equal times on both sides."""
    return next(row for row in range(start, len(ROWS)) if ROWS[row][2] == ROWS[row - 1][2])


@pytest.mark.parametrize("borders", [(900,), (400, 401, 1_000), (in_the_middle_of_a_time(500), 800)])
def test_a_state_brought_up_to_date_has_the_bytes_of_a_pass_from_the_beginning(store, tmp_path, borders, monkeypatch):
    parts, absorbed = parts_of(*borders), []
    observe = event_state.EventState.observe
    monkeypatch.setattr(
        event_state.EventState, "observe", lambda self, log: absorbed.append(len(log)) or observe(self, log)
    )
    address = ""
    for number, rows in enumerate(parts):
        ingest(store, tmp_path, rows, number)
        address = stored_state(store)
    assert absorbed == [len(rows) for rows in parts], "each event is read once"
    expected, lineage = bytes_of_a_pass_from_the_beginning(store, tmp_path, parts)
    assert read_bytes(address, STATE) == expected
    assert lineage_of(address).settings == lineage.settings
    assert read_state(address).num_events == len(ROWS)


def test_a_state_is_made_anew_where_an_event_is_older_than_those_it_has(store, tmp_path, monkeypatch):
    late, rest = ROWS[100:150], [*ROWS[:100], *ROWS[150:]]
    absorbed = []
    observe = event_state.EventState.observe
    monkeypatch.setattr(
        event_state.EventState, "observe", lambda self, log: absorbed.append(len(log)) or observe(self, log)
    )
    address = ""
    for number, rows in enumerate((rest, late)):
        ingest(store, tmp_path, rows, number)
        address = stored_state(store)
    assert absorbed == [len(rest), len(ROWS)]
    log = events_before(store, NAME, 2).log
    assert np.all(np.diff(log.time_E) >= 0)
    state = event_state.EventState(log.num_sources, log.num_targets, read_state(address).settings)
    observe(state, log)
    assert all(
        np.array_equal(array, read_state(address).to_arrays()[name]) for name, array in state.to_arrays().items()
    )


def test_a_state_without_a_commit_that_was_taken_back_is_that_of_the_log_without_it(store, tmp_path):
    expected = []
    for number, rows in enumerate((ROWS[:700], ROWS[700:])):
        ingest(store, tmp_path, rows, number)
        expected.append(read_bytes(stored_state(store), STATE))
    take_back(store, NAME)
    assert read_bytes(stored_state(store), STATE) == expected[0]
    ingest(store, tmp_path, [("new", "page", ROWS[-1][2] + 5), *ROWS[700:]][::-1], 2)
    log = events_before(store, NAME, 4).log
    state = event_state.EventState(log.num_sources, log.num_targets, read_state(stored_state(store)).settings)
    state.observe(log)
    stored = read_state(stored_state(store)).to_arrays()
    assert all(np.array_equal(array, stored[name]) for name, array in state.to_arrays().items())


def test_nodes_of_a_commit_that_was_taken_back_shift_no_other_node(store, tmp_path, monkeypatch):
    wrong = [(f"x{number}", f"y{number}", ROWS[700][2]) for number in range(5)]
    new = [("new", "page", ROWS[-1][2] + 5), ("late", "p3", START - 50)]  # so that the state is made anew
    for number, rows in enumerate((ROWS[:700], wrong)):
        ingest(store, tmp_path, rows, number)
    take_back(store, NAME)
    ingest(store, tmp_path, [*ROWS[700:], *new], 2)
    other = Layout(str(tmp_path / "other"))  # without the wrong commit
    ingest(other, tmp_path, [*ROWS, *new], 3)
    found, expected = (
        current_ranking(layout, NAME, version, read_model(make_model(NAME, layout=layout)))
        for layout, version in ((store, 4), (other, 1))
    )
    users = {user for user, _, _ in [*ROWS, *new]}
    for user in sorted(users):
        assert found.past(user, 20) == expected.past(user, 20) != []
        assert found.rank(user, k=20).targets == expected.rank(user, k=20).targets
    assert found.past("x1", 20) == []


def test_a_store_that_cannot_be_written_has_the_same_ranking_after_a_new_commit_and_gives_the_reason(
    store, tmp_path, monkeypatch
):
    for number, rows in enumerate(parts_of(1_000)):
        ingest(store, tmp_path, rows, number)
        make_model(NAME, layout=store)
        if number == 0:
            stored_state(store)
    lines = []

    def refuse(*arguments):
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        unwritten = open_ranking(NAME, layout=store, show=lines.append)
        assert not event_state.is_state_stored(store, NAME, 2)
    assert re.fullmatch("bringing the state .*\nthe state of .* is not stored, .*Read-only.*", "\n".join(lines))
    written = open_ranking(NAME, layout=store)
    assert event_state.is_state_stored(store, NAME, 2)
    for user in sorted({user for user, _, _ in ROWS}):
        found, expected = (opened.ranking.rank(user, k=10) for opened in (unwritten, written))
        assert found.targets == expected.targets
        np.testing.assert_array_equal(found.probability_K, expected.probability_K)


def test_text_ids_of_a_commit_that_was_taken_back_leave_the_others_integers(store, tmp_path):
    rows = [(user[1:], page[1:], time) for user, page, time in ROWS]
    for number, part in enumerate((rows[:700], [*rows[700:], ("7", "page", ROWS[-1][2])])):
        ingest(store, tmp_path, part, number)
    assert not open_ranking(NAME, layout=store).has_integer_ids
    take_back(store, NAME)
    assert open_ranking(NAME, layout=store).has_integer_ids


def test_a_state_that_exists_is_not_made_again_and_damage_is_named(store, tmp_path, monkeypatch):
    ingest(store, tmp_path, ROWS, 0)
    address = stored_state(store)
    monkeypatch.setattr(event_state, "_brought_up_to", None)
    assert stored_state(store) == address
    with open(f"{address}/{STATE}", "r+b") as stream:  # noqa: PTH123, because a byte is changed in place
        stream.seek(2_000)
        byte = stream.read(1)
        stream.seek(2_000)
        stream.write(bytes([byte[0] ^ 1]))
    with pytest.raises(ArtifactDamaged):
        read_state(address)


@pytest.mark.parametrize("directed", [True, False])
def test_a_log_with_one_side_has_its_state_too(store, tmp_path, directed):
    rows = [(user.replace("u", "n"), page.replace("p", "n"), time) for user, page, time in ROWS]
    address = ""
    for number, part in enumerate((rows[:700], rows[700:])):
        ingest(store, tmp_path, part, number, bipartite=False, directed=directed)
        address = stored_state(store)
    settings = read_state(address).settings
    assert (settings.two_sides, settings.directed) == (False, directed)
    log = events_before(store, NAME, 2).log
    state = event_state.EventState(log.num_sources, log.num_targets, settings)
    state.observe(log)
    assert all(
        np.array_equal(array, read_state(address).to_arrays()[name]) for name, array in state.to_arrays().items()
    )


def test_a_forecaster_is_fitted_once_and_reads_nothing_at_its_time_or_later(store, tmp_path):
    ingest(store, tmp_path, ROWS, 0)
    before = ROWS[900][2] * 1_000_000
    past = make_model(NAME, before=before, layout=store)
    assert (lineage_of(past).max_event_time or 0) == before - 1
    changed = Layout(str(tmp_path / "changed"))
    garbage = [(f"u{row % 12}", "p0", time) for row, (_, _, time) in enumerate(ROWS[900:])]
    ingest(changed, tmp_path, [*[row for row in ROWS if row[2] < ROWS[900][2]], *garbage], 0)
    other = make_model(NAME, before=before, layout=changed)
    assert read_model(other).record() == read_model(past).record()
    assert read_model(make_model(NAME, layout=store)).record() != read_model(past).record()


def test_the_newest_forecaster_that_a_time_allows_is_chosen(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("flows.console.SECONDS_BETWEEN_LINES", 0.02)
    ingest(store, tmp_path, ROWS[:900], 0)
    assert newest_model(store, NAME) is None
    past = make_model(NAME, before=ROWS[400][2] * 1_000_000, layout=store)
    assert newest_model(store, NAME) is None, "one for an earlier time knows less than there is"
    assert newest_model(store, NAME, before=ROWS[800][2] * 1_000_000) == past
    first = make_model(NAME, layout=store)
    progress = capsys.readouterr().err
    assert re.search(rf"fit the event forecaster of {NAME}: [1-9]\d* of \d+, \d+ s, about \d+ s left", progress)
    assert newest_model(store, NAME) == first
    ingest(store, tmp_path, ROWS[900:], 1)
    assert newest_model(store, NAME) == first, "it stays until another one is made"
    second = make_model(NAME, layout=store)
    assert newest_model(store, NAME) == second != first
    assert newest_model(store, NAME, before=ROWS[1_000][2] * 1_000_000) == first
    assert newest_model(store, NAME, before=ROWS[800][2] * 1_000_000) == past
    assert newest_model(store, NAME, before=ROWS[400][2] * 1_000_000) == past
    assert newest_model(store, NAME, before=ROWS[399][2] * 1_000_000) is None
    take_back(store, NAME)
    assert newest_model(store, NAME) == first, "the second one was fitted on rows that were taken back"
    assert newest_model(store, NAME, version=2) == second


def test_a_package_has_the_events_of_its_version_and_no_later_forecaster(store, tmp_path):
    for number, rows in enumerate(parts_of(900)):
        ingest(store, tmp_path, rows, number)
    assert packed_ranking(store, NAME, 2) is None
    make_model(NAME, before=ROWS[600][2] * 1_000_000, layout=store)
    assert packed_ranking(store, NAME, 2) is None, "one for an earlier time knows less"
    second = make_model(NAME, 2, layout=store)
    assert packed_ranking(store, NAME, 1) is None
    first = make_model(NAME, 1, layout=store)
    for version, model, num_events in ((1, first, 900), (2, second, len(ROWS))):
        pack = packed_ranking(store, NAME, version)
        assert pack is not None
        assert (pack.state.num_events, pack.time_unit, pack.has_integer_ids) == (num_events, "s", False)
        assert pack.first_time == ROWS[0][2] * 1_000_000
        assert pack.fitted.record() == read_model(model).record()
        expected = current_ranking(store, NAME, version, read_model(model))
        one, other = (ranking.rank("u3") for ranking in (pack.ranking([]), expected))
        assert (one.targets, one.probability_K.tolist()) == (other.targets, other.probability_K.tolist())


def test_a_ranking_of_the_store_is_that_of_the_batch_evaluation_as_of_now_and_as_of_a_time(store, tmp_path):
    for number, rows in enumerate(parts_of(800)):
        ingest(store, tmp_path, rows, number)
    for at in (None, ROWS[600][2] * 1_000_000):
        opened = open_ranking(NAME, at=at, layout=store)
        numbered = events_before(store, NAME, 2)
        time = opened.ranking.now if at is None else at
        queries = EventQueries(
            source_Q=np.array([opened.ranking.ids.source_numbers["u3"]]),
            time_Q=np.array([time]),
            num_visible_Q=np.searchsorted(numbered.log.time_E, [time]),
        )
        fitted = read_model(opened.model)
        log = events_before(store, NAME, 2, before=at).log
        [score_D] = np.concatenate(list(fitted(log, queries)))
        ranked = opened.ranking.rank("u3", at=at)
        expected = [score_D[opened.ranking.ids.target_numbers[name]] for name in ranked.targets]
        assert np.abs(np.array(expected) - ranked.probability_K).max() < 1e-9
        assert ranked.probability_K.tolist() == sorted(score_D, reverse=True)[:10]


def printed(*arguments, code=0):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


@pytest.fixture
def ingested(store, tmp_path, monkeypatch):
    monkeypatch.setenv("DYFORMER_STORAGE", store.root)
    ingest(store, tmp_path, ROWS, 0)


@pytest.mark.usefixtures("ingested")
def test_the_command_makes_the_forecaster_once_and_prints_reasons():
    first, second = (printed("rank", NAME, "u3", "--k", "4") for _ in range(2))
    assert "fitting the event forecaster" in first.stderr
    assert "a minute more after an installation, which has to compile" in first.stderr
    assert "fitting" not in second.stderr
    assert first.stdout == second.stdout
    assert "linked before" in first.stdout
    assert "u3: " in first.stdout
    assert "events before this time" in first.stdout
    record = json.loads(printed("rank", NAME, "u3", "--k", "4", "--json").stdout)
    assert [row["rank"] for row in record["ranking"]] == [1, 2, 3, 4]
    assert (record["known"], record["note"], record["source"]) == (True, None, "u3")
    assert {"target", "probability", "linked_before", "reasons"} <= record["ranking"][0].keys()


@pytest.mark.usefixtures("ingested")
def test_the_command_ranks_as_of_a_time_and_sources_without_a_past():
    at = f"{np.datetime64(ROWS[800][2], 's')}"
    record = json.loads(printed("rank", NAME, "u3", "--at", at, "--json").stdout)
    assert record["at"] == f"{at}.000000Z"
    assert record["num_events"] == sum(row[0] == "u3" and row[2] < ROWS[800][2] for row in ROWS)
    unknown = printed("rank", NAME, "never seen")
    assert "no event before this time" in unknown.stdout
    assert "no event before this time" in printed("rank", NAME, "-5").stdout
    assert "no such option" in printed("rank", NAME, "--refti", code=2).stderr
    newest = np.datetime64(max(row[2] for row in ROWS), "s")
    assert f"after the newest event, of {newest}.000000Z" in " ".join(unknown.stdout.split())
    assert f"as of {at}.000000Z" in " ".join(printed("rank", NAME, "u3", "--at", at).stdout.split())
    assert ROWS[800][2] > START


@pytest.mark.usefixtures("ingested")
def test_the_command_gives_the_probability_of_each_pair_within_a_horizon():
    first, second = (printed("rank", NAME, "u3", "--horizon", "1h") for _ in range(2))
    assert "partners within 1h of u3" in first.stdout
    assert first.stdout == second.stdout
    records = [
        json.loads(printed("rank", NAME, "u3", "--horizon", horizon, "--json").stdout) for horizon in ("1h", "2h")
    ]
    next_one = json.loads(printed("rank", NAME, "u3", "--json").stdout)
    assert [record["horizon"] for record in (*records, next_one)] == ["1h", "2h", None]
    sums = [sum(row["probability"] for row in record["ranking"]) for record in records]
    assert 0 < sums[0] < sums[1]
    opened = open_ranking(NAME)
    of_pairs = open_horizon(opened, 3_600_000_000)
    ranking = opened.ranking.rank("u3", horizon=of_pairs)
    assert [row["probability"] for row in records[0]["ranking"]] == ranking.probability_K.tolist()


def test_a_state_that_is_stored_is_not_said_to_be_brought_up_to_date(store, tmp_path):
    first, second = parts_of(800)
    ingest(store, tmp_path, first, 0)
    lines: list[str] = []
    open_ranking(NAME, layout=store, show=lines.append)
    open_ranking(NAME, layout=store, show=lines.append)
    ingest(store, tmp_path, second, 1)
    open_ranking(NAME, layout=store, show=lines.append)
    assert [line.split(" ")[0] for line in lines] == ["fitting", "bringing", "bringing"]


def test_a_garbage_future_leaves_the_horizon_the_same_bytes(tmp_path):
    border, garbage = ROWS[900][2], [("nobody", f"p{number % 7}", time) for number, (*_, time) in enumerate(ROWS)]
    found = []
    for name, rows in (("one", ROWS), ("other", [*[row for row in ROWS if row[2] < border], *garbage[900:]])):
        layout = Layout(str(tmp_path / name))
        ingest(layout, tmp_path, rows, 0)
        before = int(border) * 1_000_000
        found.append(read_bytes(make_horizon(NAME, 3_600_000_000, before=before, layout=layout), EVENT_MODEL))
    assert found[0] == found[1]


@pytest.mark.usefixtures("ingested")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((NAME, "u3", "--horizon", "1000d"), "choose a shorter horizon"),
        ((NAME, "u3", "--horizon", "3"), "does not fit a log with clock times"),
        (("nothing", "u3"), "run `dyformer ingest nothing` first"),
        ((NAME, "u3", "--at", "yesterday"), "expected a date such as"),
        ((NAME, "u3", "--at", str(ROWS[3][2])), "Z: found 2 events: expected at least 20"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_fitted(store, arguments, words):
    result = CliRunner().invoke(app, ["rank", *arguments])
    assert result.exit_code != 0
    assert words in str(result.exception)
    assert newest_model(store, NAME) is None
