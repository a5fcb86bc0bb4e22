"""Raw bytes of an interaction log, or a data frame -> checked events.

    files = [local_file(path), ...] or [frame_file(frame)]      raw_file, records
    plan = sniff_plan(files, Declared(...))                      sniffing, plan
    result = read_events(files, plan, drop_duplicates=False)     events
    check_bad_rows(result.quarantine, result.num_read, 0.01)     events

`local_file(path) -> RawFile` reads a file of this machine: plain, gzip, bz2, zstd, or the only file of a zip or tar.
`frame_file(frame) -> RawFile` takes a polars or pandas frame with ids of any kind; its columns have names.
`sniff_plan(files, declared) -> ReadPlan` guesses the properties that are not declared; `describe(plan)` prints them.
`read_events(files, plan) -> ReadResult` has `events`, `quarantine` (file, line, reason, raw) and the counts.
`contract` compares the form, the times and the ids of a later file with those of the rows that a dataset has.
Every error of a log is a `LogError`, which is a `ValueError`.
"""
