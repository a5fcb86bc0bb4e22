"""A dataset's name and settings -> its artifacts: flows and a command that call the same plain functions."""

import atexit

from flows.service.environment import end_process, settle_environment

# Called here, because a worker imports flows but not the command.
settle_environment()
# Registered first, so called last: after Prefect's own handlers, both in the command and in a worker.
atexit.register(end_process)
