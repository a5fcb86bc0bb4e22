from datetime import UTC, datetime

from raw_logs import EPOCH, SECOND, read


def test_a_declared_unit_overrides_the_magnitude():
    text = f"a,b,{EPOCH}\n"
    assert read(text, time_unit="ms").events["time"].to_list() == [EPOCH * 1000]
    assert read(text, time_unit="step").events["time"].to_list() == [EPOCH]
    assert read("a,b,3\na,b,4\n").events["time"].to_list() == [3, 4]
    assert read("a,b,3\na,b,4\n", time_unit="s").events["time"].to_list() == [3 * SECOND, 4 * SECOND]


def test_iso_times_with_and_without_zone_mean_the_same_moment():
    moment = datetime(2024, 3, 1, 12, 30, tzinfo=UTC)
    spellings = [
        "2024-03-01T12:30:00Z",
        "2024-03-01T12:30:00",
        "2024-03-01 12:30:00",
        "2024-03-01T12:30",
        "2024-03-01 12:30:00.000000",
        "2024-03-01T14:30:00+02:00",
        "2024-03-01T14:30:00+0200",
        "2024-03-01 14:30:00 +02:00",
        "2024-03-01T07:30:00.000-05",
        "2024-03-01 12:30:00 UTC",
        "20240301T123000Z",
        "20240301T1230",
    ]
    result = read("".join(f"a;b;{text}\n" for text in spellings))
    assert result.events["time"].to_list() == [int(moment.timestamp()) * SECOND] * len(spellings)
    assert read("a,b,2024-03-01\na,b,1969-12-31\n").events["time"].to_list() == [
        int(datetime(2024, 3, 1, tzinfo=UTC).timestamp()) * SECOND,
        -86_400 * SECOND,
    ]


def test_fractions_of_seconds_are_kept_to_the_microsecond():
    fractions = [123_457, 900_000, *range(1, 400)]
    text = "".join(f"a,b,{EPOCH}.{fraction:06d}\n" for fraction in fractions)
    assert read(text).events["time"].to_list() == [EPOCH * SECOND + fraction for fraction in fractions]
    thousandths = range(1, 20_000)  # some times 1e6 fall just below the whole number
    text = "".join(f"a,b,{number / 1000}\n" for number in thousandths)
    assert read(text, time_unit="s").events["time"].to_list() == [number * 1000 for number in thousandths]
