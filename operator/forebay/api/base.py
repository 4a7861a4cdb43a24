"""What every model of the API shares: camelCase outside, frozen inside, bounded texts and numbers."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A part of an object; a field that this version does not know is ignored, since the CRD may be newer."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        frozen=True,
        extra="ignore",
        use_attribute_docstrings=True,
    )


# The largest number that a field may hold where nothing else bounds it: a year in seconds, far below int32.
MAX_SECONDS = 31_536_000
MAX_MILLISECONDS = 3_600_000

Name = Annotated[str, Field(min_length=1, max_length=253)]  # the name of another object
Label = Annotated[str, Field(max_length=63)]
Text = Annotated[str, Field(max_length=1024)]
Resource = Annotated[str, Field(min_length=3, max_length=253)]
Replicas = Annotated[int, Field(ge=0, le=10_000, strict=True)]
Seconds = Annotated[int, Field(ge=0, le=MAX_SECONDS, strict=True)]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MILLISECONDS, strict=True)]
Permille = Annotated[int, Field(ge=0, le=1000, strict=True)]

# Rules of several models: an extended resource as device plugins advertise it.
RESOURCE_PATTERN = "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$"


class LocalRef(ApiModel):
    """The name of another object."""

    name: Name
    """Name of the object."""


class ObjectMeta(ApiModel):
    """What Forebay reads of an object's metadata."""

    name: Name
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    annotations: dict[str, str] = Field(default_factory=dict)
