"""A dataset's name and settings -> its artifacts: Prefect flows and the command over the same plain functions."""

import atexit

from flows.environment import end_background_threads, settle_environment

# Here, because a worker imports a flow and never the command.
settle_environment()
# First registered, last called: in the command and in a worker's process alike, after Prefect has ended its own work.
atexit.register(end_background_threads)
