"""Machine: devices and environment, against the config and each other."""

from collections.abc import Iterator

from dpexp.record.record import Record


def _devices(record: Record) -> Iterator[str]:
    """The devices that its config requests, and those that its execution may use."""
    found, virtual = record.devices, record.config.get("virtual")
    if virtual and record.config.get("strategy"):
        given = [f"cpu:{index}" for index in range(len(found["requested"]))]
        is_given = found["requested"] == given and len(given) in (0, virtual)  # 0 where a run failed before
        if not is_given and found["requested"] != [f"{virtual} virtual"]:
            yield f"devices.requested is {found['requested']}, but its config says --virtual {virtual}"
    is_emulated = any(device.startswith("cpu:") for device in found["used"])
    if is_emulated and record.execution != "virtual":
        yield f"execution is {record.execution}, but its devices.used are {found['used']}"
    if found["output"] and found["output"] not in {"cpu", *found["used"]}:
        yield f"devices.output is {found['output']}, not one of its devices.used"
    for number, rank in enumerate(found.get("ranks", ())):
        if rank["rank"] != number:
            yield f"devices.ranks has rank {rank['rank']} at place {number}"
        if rank["device"] not in found["used"]:
            yield f"devices.ranks has {rank['device']}, not one of its devices.used"


def _threads(record: Record) -> Iterator[str]:
    wanted, found = record.config.get("threads"), record.environment.get("threads")
    if wanted and found and found != wanted:
        yield f"environment.threads is {found}, but its config says --threads {wanted}"


def _versions(record: Record) -> Iterator[str]:
    packages = record.environment.get("packages") or {}
    for name in ("torch", "mlflow"):
        recorded, listed = record.environment.get(name), packages.get(name)
        if recorded and listed and recorded.partition("+")[0] != listed.partition("+")[0]:
            yield f"environment.{name} is {recorded}, but its environment.packages have {listed}"


RULES = (_devices, _threads, _versions)
