"""ServiceCheckpoint: what Forebay has learned of a service, so that a restart does not forget it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from forebay.api.base import ApiModel, ObjectMeta


class ServiceCheckpointSpec(ApiModel):
    """The learned memory of the InferenceService of the same name."""

    memory: Annotated[str, Field(max_length=12_288)] = ""
    """Histograms of bursts and lead times, scales of the step time: opaque, versioned, written by Forebay only, at most
    once in 10 minutes. Delete the object to make Forebay learn anew; it then removes no replica for one minute."""


class ServiceCheckpoint(ApiModel):
    """A ServiceCheckpoint keeps what Forebay has learned of one InferenceService.

    It is written by Forebay, not by people, and goes with its service.
    """

    metadata: ObjectMeta
    spec: ServiceCheckpointSpec = ServiceCheckpointSpec()
    """The learned memory of the InferenceService of the same name."""
