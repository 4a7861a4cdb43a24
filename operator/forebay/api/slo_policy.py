"""SLOPolicy: what a platform team promises, and what it lets the promise cost."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from forebay.api.base import ApiModel, Label, Milliseconds, ObjectMeta
from forebay.api.rules import Rule, ruled

# A second at four times the mean gap is a stall that readers notice: at 50 ms, five tokens in it instead of 20.
WORST_SECOND_FACTOR = 4

LabelKey = Annotated[str, Field(min_length=1, max_length=317)]  # prefix 253, slash, name 63


class TTFT(ApiModel):
    """How long a caller may wait for the first token."""

    target_milliseconds: Annotated[int, Field(ge=1, le=3_600_000, strict=True)]
    """Time from the request's arrival at the gateway to its first token, in milliseconds, for a short prompt. For
    example 500 for a chat."""
    per_thousand_prompt_tokens_milliseconds: Milliseconds = 0
    """Extra milliseconds that each 1,000 prompt tokens earn, since a long prompt takes longer to compute. With a target
    of 500 and 150 here, a prompt of 4,000 tokens has 1,100 ms."""


class ITL(ApiModel):
    """How steadily tokens must follow one another."""

    mean_milliseconds: Annotated[int, Field(ge=1, le=60_000, strict=True)]
    """Largest mean gap between two output tokens of a request, in milliseconds. 50 is 20 tokens a second, faster than
    most people read."""
    worst_second_milliseconds: Annotated[int, Field(ge=1, le=60_000, strict=True)] | None = None
    """Largest mean gap within any one second of a request, in milliseconds: catches a stream that stalls and then
    hurries. Default: four times meanMilliseconds."""

    @property
    def worst(self) -> int:
        """Return the bound on the worst second in milliseconds, default included."""
        return self.worst_second_milliseconds or WORST_SECOND_FACTOR * self.mean_milliseconds


class Burst(ApiModel):
    """The burst to be ready for before Forebay has seen enough traffic to know better."""

    multiplier: Annotated[int, Field(ge=1, le=100, strict=True)] = 2
    """Traffic may become this many times as large. 1 asks for no warm replicas beyond what measured bursts need."""
    within_seconds: Annotated[int, Field(ge=1, le=3600, strict=True)] = 30
    """... within this many seconds. Shorter than a cold start means: only warm replicas can meet it."""


class SelectorOperator(StrEnum):
    """How a label's value relates to the list."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


_WITH_VALUES = (SelectorOperator.IN, SelectorOperator.NOT_IN)


@ruled(
    Rule(
        "(self.operator in ['In', 'NotIn']) == (has(self.values) && self.values.size() > 0)",
        "operators In and NotIn need values; Exists and DoesNotExist take none: add or remove values",
        holds=lambda self: (self.operator in _WITH_VALUES) == bool(self.values),
        field=".values",
    ),
)
class SelectorRequirement(ApiModel):
    """One condition on a label."""

    key: LabelKey
    """The label."""
    operator: SelectorOperator
    """In, NotIn, Exists or DoesNotExist."""
    values: Annotated[tuple[Label, ...], Field(max_length=64)] = ()
    """Values for In and NotIn."""


class NamespaceSelector(ApiModel):
    """Labels of namespaces; all conditions must hold, an empty selector selects every namespace."""

    match_labels: Annotated[dict[str, Label], Field(max_length=16)] = Field(default_factory=dict)
    """Labels that a namespace must have, for example {"kubernetes.io/metadata.name": "chat"} for one namespace by its
    name."""
    match_expressions: Annotated[tuple[SelectorRequirement, ...], Field(max_length=16)] = ()
    """Further conditions on its labels."""

    def selects(self, labels: dict[str, str]) -> bool:
        """Say whether a namespace with these labels is selected."""
        return all(labels.get(k) == v for k, v in self.match_labels.items()) and all(
            _meets(labels, requirement) for requirement in self.match_expressions
        )


def _meets(labels: dict[str, str], requirement: SelectorRequirement) -> bool:
    match requirement.operator:
        case SelectorOperator.IN:
            return labels.get(requirement.key) in requirement.values
        case SelectorOperator.NOT_IN:
            return labels.get(requirement.key) not in requirement.values
        case SelectorOperator.EXISTS:
            return requirement.key in labels
        case SelectorOperator.DOES_NOT_EXIST:
            return requirement.key not in labels


@ruled(
    Rule(
        "!has(self.itl.worstSecondMilliseconds) || self.itl.worstSecondMilliseconds >= self.itl.meanMilliseconds",
        "the worst second (%d ms) cannot be better than the mean (%d ms): write worstSecondMilliseconds at least as "
        "large, or leave it out for four times the mean",
        holds=lambda self: self.itl.worst >= self.itl.mean_milliseconds,
        field=".itl.worstSecondMilliseconds",
        values=("self.itl.worstSecondMilliseconds", "self.itl.meanMilliseconds"),
    ),
)
class SLOPolicySpec(ApiModel):
    """The promise (ttft, itl, attainment), the burst to be ready for, and what it may cost."""

    ttft: TTFT
    """Time to first token."""
    itl: ITL
    """Inter-token latency: the gaps between output tokens."""
    attainment_permille: Annotated[int, Field(ge=500, le=999, strict=True)] = 990
    """Share of requests, in thousandths, that must be good over 30 minutes. A request is good when its TTFT, its mean
    ITL and its worst second of ITL all hold. 990 is 99 %."""
    burst: Burst = Burst()
    """The expected burst: sizes the warm pool while there is little history."""
    headroom_percent: Annotated[int, Field(ge=0, le=300, strict=True)] = 15
    """Serving capacity kept above the forecast demand, in percent."""
    max_idle_gpus: Annotated[int, Field(ge=0, le=10_000, strict=True, alias="maxIdleGPUs")] = 8
    """Most GPUs that one service may keep in warm replicas without traffic. 0 switches the warm pool off: a burst then
    meets cold starts."""
    priority: Annotated[int, Field(ge=0, le=1_000_000, strict=True)] = 100
    """Who gets GPUs and queue room first when they are short; larger first. Only the order matters."""
    allowed_namespaces: NamespaceSelector = NamespaceSelector()
    """Namespaces whose services may use this policy, by their labels. Default: all."""


class SLOPolicy(ApiModel):
    """An SLOPolicy is what a platform team promises for a class of traffic, and what the promise may cost.

    Services name it in spec.sloPolicyRef; nobody tunes thresholds.
    """

    metadata: ObjectMeta
    spec: SLOPolicySpec
    """The promise, the burst to be ready for, and what it may cost."""
