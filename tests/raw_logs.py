"""Logs made from texts, and the events and reasons read from them."""

import io

import polars as pl

from dyformer.logs.events import read_events
from dyformer.logs.plan import Declared
from dyformer.logs.raw_file import RawFile
from dyformer.logs.sniffing import sniff_plan

SECOND = 1_000_000


EPOCH = 1_700_000_000


def raw(*contents, names=None):
    names = names or [f"part-{index}.log" for index in range(len(contents))]
    return [
        RawFile(name=name, open=lambda content=content: io.BytesIO(as_bytes(content)))
        for name, content in zip(names, contents, strict=True)
    ]


def as_bytes(content):
    return content.encode() if isinstance(content, str) else content


def read(*contents, drop_duplicates=False, **declared):
    files = raw(*contents)
    result = read_events(files, sniff_plan(files, Declared(**declared)), drop_duplicates=drop_duplicates)
    assert result.num_read == result.num_accepted + result.num_quarantined + result.num_dropped
    assert result.events.height == result.num_accepted
    assert result.quarantine.height == result.num_quarantined
    return result


def texts(result, *columns):
    return result.events.select(columns).cast({pl.selectors.by_name("source", "target", require_all=False): pl.String})


def ends(result):
    return texts(result, "source", "target", "time").rows()


def reasons(result):
    return dict(result.quarantine.select("line", "reason").rows())


GOOD = "".join(f"u{i % 7},v{i % 5},{EPOCH + i}\n" for i in range(40))


def parquet(frame, **options):
    stream = io.BytesIO()
    frame.write_parquet(stream, **options)
    return stream.getvalue()
