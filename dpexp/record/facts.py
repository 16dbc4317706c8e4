"""The facts of a Record: its dicts with their keys, their types, and which may be absent.

``float`` is any number, ``int`` a whole one. Further keys may hold anything.
"""

from typing import NotRequired, TypedDict


class Config(TypedDict, total=False):
    strategy: str | None
    model: str | None
    data: str | None
    loss: str | None
    dtype: str | None
    backend: str | None
    batch_size: int | None
    steps: int | None
    epochs: int | None
    warmup: int | None
    threads: int | None
    virtual: int | None
    track: bool | None
    eval: bool | None
    check: bool | None
    sparse: bool | None
    pipeline: bool | None
    host: list[str]
    block: list[str]


class Accelerator(TypedDict):
    name: str
    memory: NotRequired[float | None]


class Git(TypedDict, total=False):
    commit: str | None
    branch: str | None
    dirty: bool | None


class Environment(TypedDict, total=False):
    host: str | None
    cpu: str | None
    os: str | None
    python: str | None
    torch: str | None
    cuda: str | None
    mlflow: str | None
    user: str | None
    directory: str | None
    threads: int | None
    argv: list[str]
    packages: dict[str, str | None]
    accelerators: list[Accelerator]
    git: Git


class Data(TypedDict, total=False):
    name: str | None
    samples: int | None
    batches: int | None
    description: str | None
    sha256: str | None


class Rank(TypedDict):
    rank: int
    host: str
    device: str


class Devices(TypedDict):
    requested: list[str]
    used: list[str]
    output: str
    ranks: NotRequired[list[Rank]]


class Spread(TypedDict):
    median: float
    iqr: float
    min: float
    max: float
    n: float


class Peak(TypedDict):
    device: str
    dtype: str
    threads: int
    size: int
    devices: int
    flops_per_s: Spread


class Link(TypedDict):
    """The bandwidth of a copy of so many bytes, in bytes/s."""

    bytes: int
    bytes_per_s: Spread


class Memory(Link):
    row_bytes: int


class Energy(TypedDict):
    joules: dict[str, float]
    steps: int


class Operator(TypedDict):
    """An operator in one step: how often it is called, and the time of its own, without those it calls."""

    name: str
    calls: float
    self_ms: float


class ProfilerTrace(TypedDict):
    bytes: int
    sha256: str


class Operators(TypedDict, total=False):
    """The costliest operators by the time on this kind of device, ``total_ms`` that of all, in one step."""

    steps: int
    device: str
    total_ms: float
    rows: list[Operator]
    trace: ProfilerTrace
    note: str


class Work(TypedDict, total=False):
    """What the observed step computed, and what limits it on this machine."""

    rows: int
    flops: dict[str, int]
    not_counted: list[str]
    tokens: float
    peak: Peak
    memory: Memory
    link: Link
    energy: Energy
    operators: Operators
    note: str


class Worst(TypedDict):
    kind: str
    step: int
    tensor: str
    error: float
    limit: NotRequired[float]


class Rounding(TypedDict):
    passed: bool
    output_error: NotRequired[float | None]
    gradient_error: NotRequired[float | None]
    single_output_error: NotRequired[float | None]
    single_gradient_error: NotRequired[float | None]
    dtype: NotRequired[str | None]
    autocast: NotRequired[str | None]
    compile: NotRequired[bool | None]


class OwnSteps(TypedDict):
    """Steps of the run itself beside a single device; ``passed`` is None if none could be compared."""

    dtype: str
    steps: int
    passed: bool | None
    tolerance: float
    output_error: float | None
    loss_error: float | None
    gradient_error: float | None
    buffer_error: float | None
    parameter_error: float | None
    update_error: float | None
    optimizer_error: float | None
    worst: Worst | None
    note: str
    cause: str


class Unreached(TypedDict):
    """Modules that no verified step called, and parameters that never had a gradient."""

    modules: list[str]
    parameters: list[str]


class Verification(TypedDict):
    checked: bool
    output_error: NotRequired[float | None]
    gradient_error: NotRequired[float | None]
    loss_error: NotRequired[float | None]
    buffer_error: NotRequired[float | None]
    training_steps: NotRequired[int]
    parameter_error: NotRequired[float | None]
    update_error: NotRequired[float | None]
    optimizer_error: NotRequired[float | None]
    tolerance: NotRequired[float | None]
    dtype: NotRequired[str | None]
    note: NotRequired[str | None]
    cause: NotRequired[str | None]
    passed: NotRequired[bool | None]
    steps: NotRequired[int | None]
    worst: NotRequired[Worst | None]
    rounding: NotRequired[Rounding | None]
    unreached: NotRequired[Unreached | None]
    first_steps: NotRequired[OwnSteps | None]
    last_step: NotRequired[OwnSteps | None]


class Checked(TypedDict):
    """What a verification also has where something was compared."""

    tolerance: float
    passed: bool
    dtype: str


class Error(TypedDict, total=False):
    type: str
    message: str
    traceback: str | None
