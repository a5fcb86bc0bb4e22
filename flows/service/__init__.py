"""Servers, workers, deployments and schedules: what runs the flows when nobody starts them."""

TAG = "dyformer"  # of every run; the runs of other projects on the same server are left alone
