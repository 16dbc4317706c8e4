"""Plant the bugs of ``tests/mutations.toml`` in dpexp, one by one, and see whether the tests catch them.

    python tests/helpers/mutations.py                  # all; exits with 1 if a bug survives
    python tests/helpers/mutations.py "step time" ddp  # those whose names have one of these texts

Each runs on a copy of the tree, so that the tree itself never has a bug. A bug is caught if each of its tests
fails; without any bug all of them must pass.
"""

import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AT_ONCE = 2
FAILED, PASSED = 1, 0
"""pytest's exit codes; any other means that it could not run the tests."""


@dataclass(frozen=True)
class Mutation:
    """``new`` instead of ``old`` in a file, and the tests that must then fail."""

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def apply(self, root: Path) -> None:
        """Plant it below ``root``. Raises ValueError unless the old text is there exactly once."""
        path = root / self.file
        text = path.read_text()
        if (count := text.count(self.old)) != 1 or self.old == self.new:
            raise ValueError(f"{self.name}: the old text is {count} times in {self.file}, not once")
        path.write_text(text.replace(self.old, self.new))


def mutations() -> list[Mutation]:
    """All of ``tests/mutations.toml``."""
    rows = tomllib.loads((ROOT / "tests" / "mutations.toml").read_text())["mutation"]
    return [Mutation(**row) for row in rows]


def exit_code(root: Path, tests: list[str]) -> int:
    """What pytest ends with on these tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=root, capture_output=True, check=False).returncode


def copied_tree(folder: Path) -> Path:
    """A copy of the files that git knows or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def judged(mutation: Mutation) -> str:
    """``caught``, or what is wrong with the mutation or its tests."""
    with tempfile.TemporaryDirectory(prefix="dpexp-mutation-") as folder:
        root = copied_tree(Path(folder))
        mutation.apply(root)
        codes = [exit_code(root, [test]) for test in mutation.tests]
    by_test = dict(zip(mutation.tests, codes, strict=True))
    survived = [test for test, code in by_test.items() if code == PASSED]
    broken = [test for test, code in by_test.items() if code not in (FAILED, PASSED)]
    if survived:
        return f"SURVIVED {', '.join(survived)}"
    return f"could not run {', '.join(broken)}" if broken else "caught"


def main(texts: list[str]) -> int:
    """Plant the mutations whose names have one of the texts; prints verdicts, returns the exit code."""
    chosen = [each for each in mutations() if not texts or any(text in each.name for text in texts)]
    if exit_code(ROOT, sorted({test for each in chosen for test in each.tests})) != PASSED:
        print("the tests fail without any of these bugs")
        return 1
    verdicts = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutation, verdict in zip(chosen, pool.map(judged, chosen), strict=True):
            print(f"{mutation.name}: {verdict}", flush=True)
            verdicts.append(verdict)
    print(f"{verdicts.count('caught')} of {len(verdicts)} caught")
    return int(any(verdict != "caught" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
