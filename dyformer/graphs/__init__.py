"""Events -> the graph as of a step: snapshots, the union graph, PageRank and distances."""
