"""The public names of dpexp, as Python and a reader of what they return see them."""

from pathlib import Path

import dpexp

PUBLIC = [
    "ConfigError",
    "MODELS",
    "NotComparableError",
    "Record",
    "RunConfig",
    "STRATEGIES",
    "VerificationError",
    "plan",
    "prove",
    "run",
    "watch",
]


def test_dir_lists_the_public_names_and_only_them() -> None:
    assert dir(dpexp) == sorted(dpexp.__all__) == PUBLIC
    assert all(hasattr(dpexp, name) for name in PUBLIC)


def test_a_record_prints_as_its_summary_and_stands_in_a_line_where_python_shows_it(dpexp_home: Path) -> None:
    record = dpexp.run("single", devices="cpu", steps=2, warmup=0, phase_steps=1, track=False, quiet=True)
    printed = str(record)
    assert printed.startswith(f"Run single-linear-cpu ({record.run_id})\n")
    assert "Where a step goes" in printed
    assert len(printed) < 5000
    shown = f"(run_id='{record.run_id}', name='single-linear-cpu', status='finished')"
    assert repr(record) == f"RunRecord{shown}"
    assert str(dpexp.Record.from_dict(record.to_dict())) == f"Record{shown}"
