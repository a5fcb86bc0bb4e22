import re

import pytest

from dyformer.logs.datasets import DATASETS, GENERATED, dataset_named
from dyformer.logs.time_windows import Window, WindowError, fixed_duration, parse_duration

DAY = 86_400_000_000


def test_every_known_dataset_is_found_by_its_name():
    assert {name: dataset_named(name).name for name in DATASETS} == {name: name for name in DATASETS}
    assert {"rds", "uci", "yelp", "ml-10m", "snap-wikipedia", "snap-reddit", *GENERATED} == set(DATASETS)


def test_an_unknown_dataset_is_refused_with_the_known_names_and_the_remedy():
    with pytest.raises(ValueError, match=r"'paayments'; known: generated, .*, rds, uci, .*--log FILE"):
        dataset_named("paayments")
    with pytest.raises(
        ValueError, match=r"'genrated', did you mean 'generated'\?; known: generated, .*, rds, .*--log FILE"
    ):
        dataset_named("genrated")
    with pytest.raises(ValueError, match=r"'paayments', did you mean 'payments'\?; known: .*, payments\."):
        dataset_named("paayments", ["payments"])


def test_first_evaluated_steps_are_the_papers():
    assert {name: DATASETS[name].first_evaluated_step for name in ("uci", "yelp", "ml-10m", "rds")} == {
        "uci": 3,
        "yelp": 4,
        "ml-10m": 4,
        "rds": 86,
    }


def test_checksums_are_those_of_the_documented_files(shared_log):
    documents = (shared_log("reference").parent / "DATA.md").read_text()
    for dataset in DATASETS.values():
        if dataset.sha256 is not None:
            section = documents.split(f"## {dataset.name}: ")[1].split("\n## ")[0]
            assert f"raw sha256 `{dataset.sha256}`" in section
            assert dataset.origin is None or dataset.origin in documents


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=lambda dataset: dataset.name)
def test_a_window_reads_back_from_its_text(dataset):
    assert Window.parse(str(dataset.window)) == dataset.window


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("7d", Window(rule="equal_time", length="7d")),
        ("250000s", Window(rule="equal_time", length="250000s")),
        ("1", Window(rule="equal_time", length="1")),
        ("12 equal", Window(rule="equal_count", count=12)),
        ("12 equal count", Window(rule="equal_count", count=12)),
        ("100 equal time", Window(rule="equal_time", count=100)),
        ("calendar 1mo", Window(rule="calendar", length="1mo")),
        ("calendar 1w in Europe/Berlin", Window(rule="calendar", length="1w", time_zone="Europe/Berlin")),
        ("90d in America/Chicago", Window(rule="equal_time", length="90d", time_zone="America/Chicago")),
        ("10d trim 5d 60d", Window(rule="equal_time", length="10d", trim_start="5d", trim_end="60d")),
        ("10d trim 0 60d", Window(rule="equal_time", length="10d", trim_end="60d")),
        ("2 trim 1 3", Window(rule="equal_time", length="2", trim_start="1", trim_end="3")),
    ],
)
def test_window_texts_mean_what_they_say(text, window):
    assert Window.parse(text) == window
    assert Window.parse(str(window)) == window


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("weekly", r"'weekly' is not a window: write a width \(7d\)"),
        ("", "is not a window"),
        ("-7d", "is not a window"),
        ("0d", "must be at least 1"),
        ("0 equal", "number of windows must be at least 1"),
        ("7x", "'7x' is not a duration"),
        ("1mo", r"""'1mo' needs one of us, ms, s, m, h, d, w; "calendar 1mo" has whole months or years"""),
        ("calendar 3h", "'3h' needs one of d, w, mo, y"),
        ("7d in Mars/Olympus", "'Mars/Olympus' is not a time zone"),
        ("7d in Europe", "'Europe' is not a time zone"),
        ("7d in /etc/passwd", "'/etc/passwd' is not a time zone"),
        ("7d trim 1mo 2d", "the trim '1mo' has no fixed length"),
    ],
)
def test_wrong_window_texts_are_refused(text, message):
    with pytest.raises(WindowError, match=message):
        Window.parse(text)


@pytest.mark.parametrize(
    "parts",
    [
        {"rule": "weekly", "length": "7d"},
        {"rule": "equal_time"},
        {"rule": "equal_time", "length": "7d", "count": 3},
        {"rule": "equal_count", "length": "7d"},
        {"rule": "calendar", "count": 3},
    ],
)
def test_a_window_has_exactly_what_its_rule_needs(parts):
    with pytest.raises(WindowError, match=re.escape(parts["rule"])):
        Window(**parts)


def test_durations_are_in_the_unit_of_the_log():
    assert fixed_duration("10d", "s") == 10 * DAY
    assert fixed_duration("1w", "iso") == 7 * DAY
    assert [fixed_duration(text, "ms") for text in ("5us", "5ms", "5s", "5m", "5h")] == [
        5,
        5_000,
        5_000_000,
        300_000_000,
        18_000_000_000,
    ]
    assert fixed_duration("3", "step") == 3
    assert parse_duration(" 2 mo ") == (2, "mo")


@pytest.mark.parametrize(
    ("text", "unit", "message"),
    [
        ("10d", "step", "does not fit a log with integer steps: write a plain number"),
        ("3", "s", "does not fit a log with clock times: write a number with a unit"),
        ("1y", "s", 'write a number of days, or for a window "calendar 1y"'),
        ("ten days", "s", "is not a duration"),
    ],
)
def test_durations_that_do_not_fit_the_log_are_refused(text, unit, message):
    with pytest.raises(WindowError, match=message):
        fixed_duration(text, unit)


@pytest.mark.parametrize("text", ["999999999999d", f"{10**19}", "99999999mo", "100y", "9" * 5000 + "d"])
def test_a_duration_beyond_all_dates_is_refused(text):
    with pytest.raises(WindowError, match=r"too long: write \d+\w* or less|is not a duration"):
        parse_duration(text)
    assert parse_duration("1000d") == (1000, "d")
