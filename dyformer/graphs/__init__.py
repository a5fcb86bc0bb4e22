"""Events -> windows, snapshots, the union graph, PageRank and distances as of a step."""
