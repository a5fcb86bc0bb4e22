"""Servers, workers, deployments and schedules: what runs the flows when nobody starts them."""
