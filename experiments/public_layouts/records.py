"""The committed Record of each cell: what its run wrote, but for what only measures or tells where it was.

Left out are shapes, device map, timeline and memory, the packages that the cell is not about, the host, and
tracebacks. What did not become a run, because dpexp refused it or its ranks died, has a Record with that error.
"""

from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from dpexp.config.run_config import RunConfig, config_digest, known_options
from dpexp.record.record import Record
from experiments.public_layouts.cells import HERE, ROOT, VERSIONS, Cell

RECORDS = HERE / "records"
KEPT = ("python", "torch", "os", "cpu", "cpu_count")
LEFT_OUT = {
    "device_map": [],
    "shapes": [],
    "timeline": [],
    "memory": {},
    "memory_use": [],
    "work": {},
    "origin": "",
}


def path_of(cell: Cell) -> Path:
    """The file of a cell's Record."""
    return RECORDS / cell.package / f"{cell.layout}.{cell.model}.json"


def record_of(cell: Cell) -> Record | None:
    """The committed Record of a cell, if it has one."""
    path = path_of(cell)
    return Record.load(path) if path.is_file() else None


def write(cell: Cell, record: Record) -> None:
    """Commit the Record of a cell's run."""
    environment = {key: record.environment.get(key) for key in KEPT}
    environment["packages"] = installed(cell)
    error = record.error and {key: value for key, value in record.error.items() if key != "traceback"}
    kept = record.to_dict() | LEFT_OUT | {"environment": environment, "error": error}
    path = path_of(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = Record.from_dict(kept).to_json()
    path.write_text(text.replace(f"{ROOT}/", ""), encoding="utf-8")


def without_run(cell: Cell, kind: str, message: str) -> Record:
    """The Record of a cell that no run was made of."""
    config = cell.config.to_dict()
    error = {"type": kind, "message": message}
    return Record(
        name=cell.name,
        strategy="custom",
        status="failed",
        error=error,
        config=config,
        config_digest=config_digest(config),
        ended=datetime.now(UTC).isoformat(),
    )


def is_current(cell: Cell, record: Record | None) -> bool:
    """Whether a Record is of this config, with the installed versions."""
    return (
        record is not None and not changes(cell, record) and record.environment["packages"] == installed(cell)
    )


def changes(cell: Cell, record: Record) -> list[str]:
    """The keys of a cell's config whose values its Record does not have."""
    wanted, recorded = cell.config.to_dict(), known_options(record.config)
    recorded = RunConfig(cell.config.strategy).to_dict() | recorded
    return sorted(key for key, value in wanted.items() if value != recorded[key])


def installed(cell: Cell) -> dict[str, str]:
    """The versions of the packages that a cell is about."""
    return {name: metadata.version(name) for name in VERSIONS[cell.package]}


def pinned() -> dict[str, str]:
    """The versions in requirements.txt and the lock that it takes in."""
    texts = [path.read_text() for path in (ROOT / "requirements.lock", HERE / "requirements.txt")]
    return dict(line.split("==") for text in texts for line in text.splitlines() if "==" in line)
