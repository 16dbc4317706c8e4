"""Bad values for every option, as a file, the environment and a command line may have them."""

import random
from collections.abc import Iterator
from typing import Any

from dpexp.config.options import flag_name, option_fields
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import STRATEGY_OPTIONS, LaunchOptions


def nested(depth: int) -> list[Any]:
    """``[[[…]]]``."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


TEXTS = (
    *(
        "",
        " ",
        "x",
        "é",
        "\n",
        "a\nb\nc",
        "\x1b[31m",
        "\ud800",
        "..",
        ".",
        "/",
        "../..",
        "a/b",
        "a:b",
        "a.b:c",
    ),
    *("=", "a=", "=a", "*", "**", "[", "[a-", "{}", "%s", "~", "~nobody-here/x", "file:///", "-", ",", "1,2"),
    *("-1", "0", "1e9", "9" * 30, "9" * 5000, "x" * 300, "x" * 5000, "x" * 200_000, "x\n" * 3000, "💥" * 200),
    *("cuda:-1", "cuda:99999999999999999999", "cpu:0", "meta", "cpu:", "block1=cpu:99999999999999999999"),
    *("linear:in=0", "linear:in=" + "9" * 5000, "linear:in=" + "[" * 3000, "linear:in=10**10", "linear:,,,"),
    *("linear:in=4611686018427387904,out=4611686018427387904", "mlp:depth=-1", "linear" + ",a=b" * 2000),
    *("random:samples=4611686018427387904", "random:samples=True", "clicks:rows=4611686018427387904"),
    *("clicks:skew=inf", "clicks:skew=nan", "sequences:samples=4611686018427387904", "sequences:length=1e9"),
    *("text:/", "text:/dev/zero", "text:/proc/self/mem", "text:.", "text:" + "a/" * 3000, "text:,length=0"),
    *("huber:delta=inf", "json:loads", "os:abort.x"),
    *("sys:exit", "builtins:list", "builtins:object", "math:inf", "localhost:99999999", "a..b:1", ":" * 100),
)
NUMBERS = (0, -1, 2**31, 2**62, 2**63, 2**64, 10**400, -(10**30), 0.5, -0.0, 1e-320)
FLOATS = (1e300, float("nan"), float("inf"), float("-inf"))
OTHERS = (
    True,
    None,
    [],
    {},
    [[]],
    [""],
    [1],
    ["x"] * 3,
    {"a": 1},
    nested(5000),
    ["\0"],
    "\0",
    b"x",
    object(),
)
VALUES: tuple[Any, ...] = (*TEXTS, *NUMBERS, *FLOATS, *OTHERS)

COSTLY = {"steps", "epochs", "warmup", "phase_steps"}
"""A large number of these is right, and long."""
SLOW = {"track", "compile"}
"""Flags that take seconds."""


def configs() -> Iterator[dict[str, Any]]:
    """A config for each option, those of a strategy included, and each value."""
    for strategy, cls in {"single": RunConfig, **STRATEGY_OPTIONS}.items():
        for field in option_fields(cls):
            for value in VALUES:
                yield {"strategy": strategy, field.name: value}


def command_line(rng: random.Random) -> list[str]:
    """One to three bad values in the command line of a strategy; a dry run where it would start ranks."""
    strategy = rng.choice(list(STRATEGY_OPTIONS))
    options = STRATEGY_OPTIONS[strategy]
    fields = [f for cls in (RunConfig, options) for f in option_fields(cls) if f.name not in SLOW]
    words = [strategy]
    for field in rng.sample(fields, rng.randint(1, 3)):
        if field.metadata["flag"]:
            words.append(rng.choice(field.metadata["flag"].split("/")))
            continue
        texts = [*TEXTS, *(str(number) for number in (*NUMBERS[:6], *FLOATS))]
        if field.name in COSTLY:
            texts = [text for text in texts if not text.isdecimal() or len(text) < 3]
        words.append(f"{flag_name(field.name)}={rng.choice(texts)}")
    is_launched = issubclass(options, LaunchOptions)
    return [*words, "--dry-run"] if is_launched or rng.random() < 0.3 else words
