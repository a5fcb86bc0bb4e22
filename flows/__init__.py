"""flows order: Prefect flows and the command line over the same plain steps."""

import atexit

from flows.environment import end_background_threads

# First registered, last called: in the command and in a worker's process alike, after Prefect has ended its own work.
atexit.register(end_background_threads)
