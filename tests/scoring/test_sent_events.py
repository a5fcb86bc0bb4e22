"""Claims about events in JSON: each is checked, and the first wrong one is named."""

import pytest

from dyformer.scoring.sent_events import BadEvent, SentEvent, read_events


def test_events_are_read_in_their_order():
    first = '{"source": "a", "target": 7, "time": "2024-03-01T10:00:00Z"}'
    assert read_events(f'[{first}, {{"source": 1, "target": "b", "time": 5, "weight": 2}}]', "s") == [
        SentEvent(source="a", target="7", time=1_709_287_200_000_000, weight=1.0),
        SentEvent(source="1", target="b", time=5_000_000, weight=2.0),
    ]
    assert read_events("[]", "s") == []


EVENT = '{"source": "a", "target": "b", "time": 1}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[{", "the events are not JSON .*: expected a list of objects with source, target, time and"),
        ("[" * 100_000, "the events are not JSON"),
        (EVENT, "the events are dict in JSON: expected a list"),
        ("[1]", "event 0: expected an object with source, .*; found int"),
        ('[{"source": "a"}]', "event 0: expected an object with .*; found 'source'"),
        ("[{}]", "found no field"),
        (f'[{EVENT[:-1]}, "weigth": 2}}]', "found 'source', 'target', 'time', 'weigth'"),
        (f'[{EVENT}, {{"source": true, "target": "b", "time": 1}}]', "event 1: the source True: expected a text or an"),
        ('[{"source": "a", "target": 1.5, "time": 1}]', "the target 1.5: expected a text or an integer"),
        ('[{"source": "a", "target": "b", "time": null}]', "the time None: expected a text or a number"),
        ('[{"source": "a", "target": "b", "time": NaN}]', "the time 'nan': expected a finite number"),
        ('[{"source": "a", "target": "b", "time": "soon"}]', "the time 'soon': expected a date"),
        ('[{"source": "a", "target": " b", "time": 1}]', "the target ' b': expected an integer, or a text"),
        (f'[{EVENT[:-1]}, "weight": -1}}]', "the weight -1.0: expected a finite number from 0 on"),
        (f'[{EVENT[:-1]}, "weight": "2"}}]', "the weight '2': expected a number"),
        (f'[{EVENT[:-1]}, "weight": 1{"0" * 400}}}]', "the weight is too large"),
    ],
)
def test_a_wrong_event_is_named(text, message):
    with pytest.raises(BadEvent, match=message):
        read_events(text, "s")
