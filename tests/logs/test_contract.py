"""A new file continues the rows that a dataset has, or every difference is named."""

import pytest

from dyformer.logs.contract import (
    Form,
    TimeRange,
    form_differences,
    form_from,
    form_record,
    id_difference,
    time_difference,
    unit_difference,
)

DAY = 86_400_000_000
YEAR = 365 * DAY
IN_2020 = TimeRange(first=50 * YEAR, last=50 * YEAR + 60 * DAY)
NAMED = Form(
    format="delimited",
    separator=",",
    names=("source", "target", "time"),
    columns={"source": "source", "target": "target", "time": "time"},
    num_fields=3,
)
BARE = Form(format="delimited", separator=",", names=(), columns={"source": 0, "target": 1, "time": 2}, num_fields=3)


def changed(form: Form, **fields: object) -> Form:
    return form_from(form_record(form) | fields)


@pytest.mark.parametrize(
    ("new", "stored"),
    [
        (NAMED, NAMED),
        (BARE, BARE),
        (BARE, NAMED),
        (NAMED, BARE),
        (changed(NAMED, names=["time", "source", "target"]), NAMED),
        (changed(NAMED, names=["source", "target", "time", "note"], num_fields=4), NAMED),
        (
            changed(
                NAMED,
                names=["Source", "TARGET", "time "],
                columns={"source": "Source", "target": "TARGET", "time": "time "},
            ),
            NAMED,
        ),
        (changed(NAMED, names=["a", "b", "c"], columns={"source": "a", "target": "b", "time": "c"}), BARE),
    ],
)
def test_files_of_one_form_have_no_difference(new: Form, stored: Form):
    assert form_differences(new, [stored]) == []


@pytest.mark.parametrize(
    ("new", "stored", "named"),
    [
        (changed(NAMED, format="jsonl", separator=None), NAMED, "its format is JSON lines, so far delimited text"),
        (changed(NAMED, separator="\t"), NAMED, "its separator is the tab, so far the comma"),
        (
            changed(
                NAMED, names=["src", "target", "time"], columns={"source": "src", "target": "target", "time": "time"}
            ),
            NAMED,
            "its source is the column 'src', so far the column 'source'",
        ),
        (changed(BARE, columns={"source": 0, "target": 2, "time": 1}), BARE, "its time is column 2, so far column 3"),
        (
            changed(
                NAMED,
                names=["source", "Source", "time"],
                columns={"source": "Source", "target": "source", "time": "time"},
            ),
            NAMED,
            "its source is the column 'Source', so far the column 'source'",
        ),
        (changed(BARE, columns={"source": 0, "target": 2, "time": 1}), NAMED, "so far the column 'time'"),
        (changed(BARE, num_fields=4), BARE, "its rows have 4 columns, so far 3"),
        (
            changed(NAMED, names=["target", "source", "time"]),
            BARE,
            "its source is the column 'source', so far column 1",
        ),
        (
            changed(
                NAMED, names=["target", "source", "time"], columns={"source": "target", "target": "source", "time": 2}
            ),
            BARE,
            "names the column at position 0 'target', so far the source",
        ),
    ],
)
def test_every_difference_of_a_form_is_named(new: Form, stored: Form, named: str):
    assert any(named in sentence for sentence in form_differences(new, [stored])), form_differences(new, [stored])
    assert form_differences(new, [stored, new]) == []  # a forced form is one of the dataset's
    assert form_differences(new, []) == []


def test_a_log_with_weights_or_labels_goes_on_with_them():
    columns = {**NAMED.columns, "weight": "weight", "label": "label"}
    full = changed(NAMED, names=[*NAMED.names, "weight", "label"], columns=columns)
    named = form_differences(NAMED, [full])
    assert [sentence.partition(";")[0] for sentence in named] == [
        "it has no weight, so far the column 'weight'",
        "it has no label, so far the column 'label'",
    ]
    assert form_differences(NAMED, [full], stated={"weight"}) == named[1:]
    assert form_differences(full, [NAMED]) == []


def test_a_property_that_the_user_states_is_no_difference():
    new = changed(NAMED, separator=";", names=["src", "target", "time"], columns={**NAMED.columns, "source": "src"})
    assert len(form_differences(new, [NAMED])) == 2
    assert form_differences(new, [NAMED], stated={"source", "separator"}) == []


def test_another_column_of_a_file_that_has_the_earlier_one_too_is_a_difference_even_if_it_is_stated():
    names, columns = ["source", "target", "time", "currency"], {**NAMED.columns, "target": "currency"}
    (sentence,) = form_differences(changed(NAMED, names=names, columns=columns), [NAMED], stated={"target"})
    assert sentence == "its target is the column 'currency', so far the column 'target', which it has too"


@pytest.mark.parametrize(
    ("median", "stored", "unit", "named"),
    [
        (1_600_000_000_000, IN_2020, "ms", '`time_unit="s"`'),  # seconds, read as milliseconds
        (1_600_000_000_000_000 // 1000, IN_2020, "us", '`time_unit="ms"`'),
        (1_600_000_000, IN_2020, "us", '`time_unit="s"`'),
        (20_200_914 * 1_000_000, IN_2020, "s", '`time_unit="iso"`'),
        (44_000 * 1_000_000, IN_2020, "s", "a day of a spreadsheet"),
        (3_600 * 1_000_000, IN_2020, "s", "1970-01-01"),  # relative seconds
        (17, IN_2020, "us", "1970-01-01"),  # steps
        (50 * YEAR, TimeRange(first=0, last=30 * DAY), "s", "so far 1970-01-01"),
        (1_600_000_000, TimeRange(first=0, last=100), "step", "times since the epoch are no steps"),
        (44_000, TimeRange(first=1, last=300), "step", "step 44,000, so far step 1"),
        (0, TimeRange(first=4 * YEAR, last=50 * YEAR), "s", "1970"),  # near a long log, but a placeholder
        (20 * YEAR, IN_2020, "iso", "so far 2019-12-20"),
        (1_000 * YEAR, IN_2020, "iso", "2969"),
        (400_000 * YEAR, IN_2020, "ms", "the year 401970"),
    ],
)
def test_times_of_another_unit_or_era_are_named(median: int, stored: TimeRange, unit: str, named: str):
    sentence = time_difference(median, stored, unit)  # pyright: ignore[reportArgumentType]
    assert sentence is not None
    assert named in sentence


@pytest.mark.parametrize(
    ("median", "stored", "unit"),
    [
        (50 * YEAR + 90 * DAY, IN_2020, "s"),
        (45 * YEAR, IN_2020, "ms"),  # an older part of the log
        (59 * YEAR, IN_2020, "s"),
        (101, TimeRange(first=1, last=100), "step"),
        (900, TimeRange(first=1, last=1), "step"),
        (30 * DAY, TimeRange(first=0, last=20 * DAY), "s"),  # relative seconds go on
        (4 * YEAR, TimeRange(first=0, last=2 * YEAR), "us"),  # dates of a Parquet file before 1973
        (-20 * YEAR, TimeRange(first=-15 * YEAR, last=-10 * YEAR), "iso"),
    ],
)
def test_times_that_continue_the_log_are_accepted(median: int, stored: TimeRange, unit: str):
    assert time_difference(median, stored, unit) is None  # pyright: ignore[reportArgumentType]


def test_of_two_first_files_one_without_the_epoch_is_named():
    sentence = unit_difference(1_600_000_000_000, 1_600_000_000_000_000, "ms")
    assert sentence is not None
    assert '`time_unit="s"`' in sentence
    assert unit_difference(1_600_000_000_000_000, 1_500_000_000_000_000, "ms") is None
    assert unit_difference(1, 10**9, "step") is None


@pytest.mark.parametrize(
    ("num_stored", "num_new", "num_known", "is_foreign"),
    [
        (1_000, 500, 0, True),
        (1_000, 500, 4, True),
        (1_000, 500, 5, False),
        (100, 1_000_000, 1, False),  # all of a small log may be in a large file
        (19, 500, 0, False),
        (500, 19, 0, False),
    ],
)
def test_a_file_without_a_known_id_is_named(num_stored: int, num_new: int, num_known: int, is_foreign: bool):
    assert (id_difference(num_stored, num_new, num_known) is not None) == is_foreign
