"""Flow: a look at the store and the servers, started by a person."""

from typing import Annotated, Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from pydantic import Field

from flows.service.look import look
from flows.tasks.retention import KEEP
from storage.layout import Layout
from storage.removal import FEWEST


@flow(flow_run_name="reconcile")
def reconcile(keep: Annotated[int | None, Field(ge=FEWEST)] = KEEP) -> dict[str, Any]:
    """Look at everything, as a person wants it now: the look of each minute needs no run.

    Args:
        keep: number of versions that stay of each dataset that publishes forecasts; none: all.

    Returns:
        A list of lines for each key of TITLES.
    """
    context = FlowRunContext.get()
    run_id = None if context is None or context.flow_run is None else context.flow_run.id
    with get_client(sync_client=True) as client:
        return look(client, Layout.from_environment(), keep, own=run_id)
