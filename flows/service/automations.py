"""What Prefect does by itself when a run of this project falls silent, or was taken and never begun."""

from collections.abc import Iterable
from datetime import timedelta
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from flows.service import TAG

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import Automation, AutomationCore

HEARTBEAT = "prefect.flow-run.heartbeat"
SILENT_SECONDS = 90  # a live run reports every 30 s
UNBEGUN_SECONDS = 110  # a run begins seconds after a worker has taken it; on a machine under load it took 60
ENDING, RETURNING = "dyformer: end runs without a heartbeat", "dyformer: return runs that never began"
SILENT_MESSAGE = f"no heartbeat for {SILENT_SECONDS} s: its process was killed or its machine is gone"
UNBEGUN_MESSAGE = f"a worker took it and had not begun it after {UNBEGUN_SECONDS} s: it is due again"
TAKEN = ("Pending", "Submitting")
BEGUN = ("Running", "Retrying", "Cancelling")
# The events by which a run stops reporting without being dead.
NOT_RUNNING = ("Completed", "Failed", "Cancelled", "Crashed", "AwaitingRetry", "Paused", "Suspended", "Scheduled")


def ensure_automations(client: "SyncPrefectClient") -> list[str]:
    """Make the automations that are missing, and update the others; one that a user switched off stays off."""
    return [_ensured(client, wanted) for wanted in (_ending(), _returning())]


def _ending() -> "AutomationCore":
    """End runs that stop reporting."""
    from prefect.client.schemas.objects import StateType

    return _automation(
        ENDING,
        "Ends runs whose process was killed, so that their slots are free within two minutes.",
        ({HEARTBEAT}, {HEARTBEAT, *_events(*NOT_RUNNING)}, SILENT_SECONDS),
        {"state": StateType.CRASHED, "message": SILENT_MESSAGE},
    )


def _returning() -> "AutomationCore":
    """Make runs due again that a worker took before it ended, because they hold a slot and nothing begins them."""
    from prefect.client.schemas.objects import StateType

    return _automation(
        RETURNING,
        "Makes runs due again that a worker has taken and not begun.",
        (_events(*TAKEN), _events(*BEGUN, *NOT_RUNNING), UNBEGUN_SECONDS),
        {"name": "AwaitingRetry", "state": StateType.SCHEDULED, "message": UNBEGUN_MESSAGE},
    )


def _events(*states: str) -> set[str]:
    return {f"prefect.flow-run.{name}" for name in states}


def _automation(
    name: str, description: str, events: tuple[set[str], set[str], int], change: dict[str, Any]
) -> "AutomationCore":
    """Change the state of a run after an event, unless one of the expected events follows it within some seconds."""
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    after, expect, seconds = events
    trigger = EventTrigger(
        after=after,
        expect=expect,
        match={"prefect.resource.id": "prefect.flow-run.*"},  # pyright: ignore[reportArgumentType], coerced
        match_related={  # pyright: ignore[reportArgumentType]
            "prefect.resource.role": "tag",
            "prefect.resource.id": f"prefect.tag.{TAG}",
        },
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=seconds),
    )
    action = ChangeFlowRunState.model_validate({"name": None, "force": False, **change})
    return AutomationCore(name=name, description=description, trigger=trigger, actions=[action])


def _ensured(client: "SyncPrefectClient", wanted: "AutomationCore") -> str:
    known = client.read_automations_by_name(wanted.name)
    if not known:
        client.create_automation(wanted)
    # Two deployments at once make it twice: both leave the same one.
    found = sorted(client.read_automations_by_name(wanted.name), key=lambda each: each.id)
    delete_automations(client, found[1:])
    if not known:
        return f"automation {wanted.name!r}: made"
    client.update_automation(found[0].id, wanted.model_copy(update={"enabled": found[0].enabled}))
    return f"automation {wanted.name!r}: as it was"


def delete_automations(client: "SyncPrefectClient", found: "Iterable[Automation]") -> None:
    """Delete automations; one that is gone already, because another program deleted it, is no error."""
    from prefect.exceptions import PrefectHTTPStatusError

    for each in found:
        try:
            client.delete_automation(each.id)
        except PrefectHTTPStatusError as error:
            if error.response.status_code != HTTPStatus.NOT_FOUND:
                raise
