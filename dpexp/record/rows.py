"""The rows of a Record's tables, and the Record as a row: its keys, their types, and which may be absent.

``float`` is any number, ``int`` a whole one. Further keys may hold anything. ``schema.wrong_types`` checks a
Record against ``RecordRow``.
"""

from typing import NotRequired, TypedDict

from dpexp.record.facts import Config, Data, Devices, Environment, Error, Verification, Work


class Parameter(TypedDict):
    """A row of the device map."""

    module: str
    parameter: str
    kind: str
    dtype: str
    device: str
    shape: list[int]
    bytes: int
    replicas: list[str]
    mapped: NotRequired[bool]
    frozen: NotRequired[bool]
    rank: NotRequired[int]
    local_shape: NotRequired[list[int]]
    placement: NotRequired[str]
    unit: NotRequired[str]


class Call(TypedDict):
    """A row of the shapes."""

    batch: int
    scope: str
    module: str
    replica: int | None
    device: str
    inputs: list[list[int]]
    outputs: list[list[int]]
    bytes: NotRequired[dict[str, int]]
    moved: NotRequired[dict[str, int]]
    moved_back: NotRequired[dict[str, int]]
    looked_up: NotRequired[int]
    asked: NotRequired[list[int]]


class Steps(TypedDict):
    time_ms: list[float | None]
    loss: list[float | None]
    samples: list[int | None]
    wall_ms: NotRequired[list[float | None]]


class Span(TypedDict):
    """A row of the timeline."""

    step: int
    phase: str
    replica: int | None
    device: str
    start_us: float
    end_us: float


class MemoryUse(TypedDict):
    """Bytes of a device by category."""

    device: str
    rank: NotRequired[int]
    parameters: NotRequired[int]
    buffers: NotRequired[int]
    gradients: NotRequired[int]
    optimizer: NotRequired[int]
    activations: NotRequired[int]
    peak: NotRequired[int]
    reserved: NotRequired[int]


class Collective(TypedDict):
    """What a rank sent in a step of a batch of an epoch; ``to`` is the rank that a piece is for."""

    rank: int
    batch: NotRequired[int]
    what: str
    phase: NotRequired[str]
    backward: bool
    to: NotRequired[int]
    bytes: int


class Summary(TypedDict):
    collectives: NotRequired[list[Collective]]


class RecordRow(TypedDict):
    """The keys of a Record that readers rely on."""

    schema: int
    run_id: str
    name: str
    experiment: str
    strategy: str
    execution: str
    status: str
    started: str
    ended: str | None
    error: NotRequired[Error | None]
    parent: str
    config: Config
    config_digest: str
    environment: Environment
    data: Data
    devices: Devices
    device_map: list[Parameter]
    shapes: list[Call]
    steps: Steps
    phases: dict[str, list[float | None]]
    timeline: list[Span]
    memory: dict[str, float]
    memory_use: list[MemoryUse]
    work: Work
    verification: Verification
    digest: dict[str, str | None]
    metrics: dict[str, list[float | None]]
    summary: Summary
    damage: list[str]
