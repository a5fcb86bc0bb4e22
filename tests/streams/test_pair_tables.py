import numpy as np

from dyformer.streams.kernels import tables


def _table(num_rows: int) -> tables.PairTable:
    return tables.table_of(np.empty(0, dtype=tables.SLOT), np.full(num_rows, -1, dtype=np.int32))


def test_a_table_is_nearly_full_when_a_quarter_or_what_may_come_is_not_free() -> None:
    table = tables.with_room(_table(1), 8)
    for column in range(6):
        assert not tables.is_nearly_full(table, 0)
        tables.touch(table, 0, column, column, np.zeros(4))
    assert [tables.is_nearly_full(table, num_more) for num_more in (0, 2, 3)] == [False, False, True]
    tables.touch(table, 0, 6, 6, np.zeros(4))
    assert tables.is_nearly_full(table, 0)


def test_pairs_that_are_found_at_once_have_the_slots_of_one_after_the_other() -> None:
    generator = np.random.default_rng(0)
    table = tables.with_room(_table(50), 300)
    table = table._replace(bucket_B=np.full(512, -1, dtype=np.int32))  # so few that pairs often share a bucket
    row_P, column_P = generator.integers(50, size=(2, 400))
    for row, column in zip(row_P[:300].tolist(), column_P[:300].tolist(), strict=True):
        tables.touch(table, row, column, 0, np.zeros(tables.NUM_HALF_LIVES))
    slot_P, is_first_P = np.empty(400, dtype=np.int64), np.empty(400, dtype=np.bool_)
    tables.find_many(table, row_P, column_P, slot_P, is_first_P)
    assert slot_P.tolist() == [tables.find(table, *pair) for pair in zip(row_P, column_P, strict=True)]
    assert (slot_P[:300] >= 0).all()
    assert (slot_P < 0).any()
    assert len(set(is_first_P[:300].tolist())) == 2


def test_pairs_that_are_counted_at_once_have_the_records_lists_and_marks_of_one_after_the_other() -> None:
    generator = np.random.default_rng(0)
    together, apart = (tables.with_room(_table(9), 81) for _ in range(2))
    rate_H = np.arange(tables.NUM_HALF_LIVES) / 7
    for time in range(60):
        pairs = generator.choice(81, size=1 + time % 7, replace=False)  # new ones, and ones that are in a list
        for table in (together, apart):
            tables.marks_taken(table)
        tables.touch_many(together, pairs // 9, pairs % 9, time, rate_H)
        for pair in pairs.tolist():
            tables.touch(apart, pair // 9, pair % 9, time, rate_H)
        for one, other in zip(together, apart, strict=True):
            assert one.tobytes() == other.tobytes()


def test_in_a_table_without_slots_no_pair_is_found() -> None:
    table = _table(0)
    slot_P = np.zeros(2, dtype=np.int64)
    tables.find_many(table, np.array([0, 3]), np.array([1, 0]), slot_P, np.empty(2, dtype=np.bool_))
    assert slot_P.tolist() == [-1, -1]
