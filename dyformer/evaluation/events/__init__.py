"""A log of events and rankers -> ranks as of each event, by the rules of the Temporal Graph Benchmark."""
