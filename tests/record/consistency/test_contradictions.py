"""Contradictions: what one rule or another finds in a Record, and that none finds anything in honest ones."""

from __future__ import annotations

import copy

import pytest
import torch
from command_lines import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from odd_models import Routed, Scan
from record_factory import hybrid, whole

from dpexp.config.run_config import RunConfig, config_digest
from dpexp.engine.prepare import prepare
from dpexp.engine.verify import verify
from dpexp.record.consistency.contradictions import contradictions
from dpexp.record.consistency.proof import SECTIONS
from dpexp.record.consistency.tolerances import MOST, USUAL
from dpexp.record.figures.summary import summarize
from dpexp.record.record import Record, Row
from dpexp.study.experiment.records import read_record
from dpexp.verification.limits.compare import HIDES
from dpexp.verification.own_steps.own_steps import base_tolerance
from dpexp.verification.result import TOLERANCE

COMMITTED = sorted((ROOT / "experiments").glob("*/records/*/*.json"))


def test_no_committed_record_contradicts_itself() -> None:
    assert len(COMMITTED) > 300
    assert {str(path): found for path in COMMITTED if (found := contradictions(read_record(path)))} == {}


def test_the_tolerances_are_those_of_verification() -> None:
    usual = {str(dtype).removeprefix("torch."): least for dtype, least in TOLERANCE.items()}
    assert {**usual, "bfloat16": torch.finfo(torch.bfloat16).eps} == USUAL
    assert MOST == HIDES


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("autocast", ["", "bfloat16", "float16"])
@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_the_tolerances_of_own_steps_are_those_of_verification(
    dtype: str, autocast: str, device: str
) -> None:
    tolerance, _ = base_tolerance(getattr(torch, dtype), autocast)
    record = whole(2, devices={"requested": [device], "used": [device], "output": device})
    record.config["autocast"] = autocast
    own = next(section for section in SECTIONS if section.is_own)
    allowed = own.allowed(record, dtype)
    assert allowed is not None
    assert tolerance <= allowed


def test_an_error_in_any_section_is_held_to_its_limit() -> None:
    for section in SECTIONS:
        record = whole(2)
        own = {
            "dtype": "float32",
            "steps": 4,
            "passed": True,
            "output_error": 0.0,
            "tolerance": 1e-5,
            "note": "",
        }
        record.verification |= {"first_steps": own, "last_step": dict(own)}
        found = section.of(record)
        for key in ("output_error", "gradient_error", "loss_error", "an_error_of_later_versions_error"):
            before, found[key] = found.get(key, 0.0), 1e-3
            said = f"{section.name}.{key} is 0.001, not at most {found['tolerance']}"
            assert said in "; ".join(contradictions(record))
            found[key] = before
        assert contradictions(record) == []


def test_the_worst_error_may_be_that_of_an_evaluation_after_the_steps() -> None:
    """Evaluations have outputs only; steps in training mode have their own numbers."""
    for kind, last in (("outputs", 7), ("gradients", 5)):
        record = whole(2)
        error = record.verification[f"{kind.removesuffix('s')}_error"] = 1e-13
        record.verification |= {
            "steps": 5,
            "worst": {"kind": kind, "tensor": "", "error": error, "step": last},
        }
        assert contradictions(record) == []
        record.verification["worst"]["step"] = last + 1
        assert contradictions(record) == [
            f"verification.worst.step is {last + 1}, but verification.steps is 5"
        ]
        record.verification |= {"steps": 0, "training_steps": last + 1}
        assert contradictions(record) == []
        record.verification["training_steps"] = 0
        assert "verification.steps is 0, but it passed" in contradictions(record)


def test_a_run_that_resumes_keeps_its_name() -> None:
    record = whole(2)
    record.config |= {"run_name": "another", "resume": None}
    record.config_digest = config_digest(record.config)
    assert contradictions(record) == [f"name is {record.name}, but its config says another"]
    record.config["resume"] = record.run_id
    record.config_digest = config_digest(record.config)
    assert contradictions(record) == []


def rates(**changes: float) -> Row:
    return {"median": 2e9, "iqr": 1e8, "min": 1e9, "max": 3e9, "n": 9} | changes


MEMORY = {"bytes": 1200, "row_bytes": 40, "bytes_per_s": rates()}


@pytest.fixture
def probed() -> Record:
    record = hybrid()
    record.work = {"rows": 30, "memory": MEMORY}
    summarize(record)
    assert contradictions(record) == []
    return record


@pytest.mark.parametrize(
    ("forged", "found"),
    [
        ({"memory": {**MEMORY, "bytes_per_s": rates(max=1.5e9)}}, "not the spread of rates"),
        ({"memory": {**MEMORY, "bytes_per_s": rates(min=0.0)}}, "not the spread of rates"),
        ({"memory": {**MEMORY, "row_bytes": 400}}, "row_bytes is 400, and no table"),
        ({"link": {"bytes": 1200, "bytes_per_s": rates()}}, "its devices are virtual"),
    ],
)
def test_forged_bandwidths_contradict_the_record(probed: Record, forged: Row, found: str) -> None:
    probed.work |= forged
    summarize(probed)
    assert found in "; ".join(contradictions(probed))


OPERATORS = {
    "steps": 3,
    "device": "cpu",
    "total_ms": 1.5,
    "rows": [
        {"name": "aten::mm", "calls": 2.0, "self_ms": 0.9},
        {"name": "aten::add", "calls": 1 / 3, "self_ms": 0.5},
    ],
}


@pytest.mark.parametrize(
    ("forged", "found"),
    [
        ({"rows": OPERATORS["rows"][::-1]}, "rows is not sorted by time: [0.5, 0.9]"),
        ({"total_ms": 1.3}, "total_ms is 1.3, but its rows take 1.4"),
        ({"steps": 4}, "rows has 1.3333333333333333 calls of aten::add in 4 steps"),
        ({"device": "cuda"}, "device is cuda, but its devices are cpu"),
    ],
)
def test_forged_operators_contradict_the_record(probed: Record, forged: Row, found: str) -> None:
    probed.work["operators"] = OPERATORS
    assert contradictions(probed) == []
    probed.work["operators"] = OPERATORS | forged
    assert contradictions(probed) == [f"work.operators.{found}"]


def test_a_forged_share_contradicts_the_record(probed: Record) -> None:
    probed.summary["stages"]["lookup_share"] = 0.99
    (found,) = contradictions(probed)
    assert found.startswith("summary.stages.lookup_share is 0.99, but its samples give 0.00")


def raised(record: Record, tolerance: float, note: str = "", dtype: str = "float64") -> str:
    record.verification |= {"tolerance": tolerance, "note": note, "dtype": dtype}
    return "; ".join(contradictions(record))


def measured(rounding: float, limit: str) -> str:
    return f"why; a single device differs from itself by {rounding:.1e}, and the limit is {limit}: smaller"


def test_a_tolerance_is_its_constant_or_one_that_the_note_derives_from_a_measurement() -> None:
    assert raised(whole(2), 1e-12) == ""
    for limit in (1.1e-12, 1e-6):
        unexplained = (
            f"verification.tolerance is {limit}, and no note says that so much rounding was measured"
        )
        assert raised(whole(2), limit) == unexplained
        assert raised(whole(2), limit, "the limit is 1.0e-05, as measured") == unexplained
        assert raised(whole(2), limit, measured(limit / 10, f"{limit:.1e}")) == ""
        assert raised(whole(2), 1.2 * limit, measured(limit / 10, f"{limit:.1e}")) != ""
        assert raised(whole(2), limit, measured(limit / 20, f"{limit:.1e}")) != ""
    assert raised(whole(2), 1e-4, measured(1e-3, "cut to 1.0e-04")) == ""
    too_large = "verification.tolerance is 0.2, not at most 0.1, the largest"
    assert raised(whole(2), 0.2, measured(2e-2, "2.0e-01")) == too_large


@pytest.mark.parametrize(("make", "note"), [(Scan, "the limit is"), (Routed, "compared in torch.float32")])
def test_a_limit_that_a_run_has_measured_contradicts_nothing(make: type[torch.nn.Module], note: str) -> None:
    torch.manual_seed(0)
    prepared, record = prepare(RunConfig("whole", virtual=2)), whole(2)
    prepared.model = make()
    record.verification = verify(prepared).row()
    assert note in record.verification["note"]
    assert contradictions(record) == []


def test_the_type_of_a_comparison_is_the_run_s_or_one_that_a_note_gives_reasons_for() -> None:
    for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 2.0**-7)):
        said = f"verification.dtype is {dtype}, and neither the run nor a note says why"
        assert raised(whole(2), tolerance, dtype=dtype) == said
        assert raised(whole(2), tolerance, f"compared in torch.{dtype}, since …", dtype) == ""
    on_mps = whole(2, devices={"requested": ["mps:0"], "used": ["mps:0"], "output": "mps:0"})
    assert "verification.dtype" not in raised(on_mps, 1e-5, dtype="float32")
    record = whole(2)
    record.verification["first_steps"] = {"dtype": "bfloat16", "steps": 4, "passed": True, "tolerance": 0.03}
    assert "verification.first_steps.dtype is bfloat16" in "; ".join(contradictions(record))


RECORDS = (whole(2), hybrid())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_value_of_another_kind_ends_the_check(data: st.DataObject) -> None:
    record = copy.deepcopy(data.draw(st.sampled_from(RECORDS)))
    parents = [record.config, record.environment, record.verification, record.work, record.summary]
    parent: Row = data.draw(st.sampled_from(parents))
    parent[data.draw(st.sampled_from(sorted(parent) or ["more"]))] = data.draw(JSON)
    try:
        read = Record.from_dict(record.to_dict())
    except ValueError:
        return  # which is refused before
    assert all(isinstance(text, str) for text in contradictions(read))


def test_a_run_that_has_not_ended_has_no_contradiction_yet() -> None:
    record = whole(2, status="running", ended=None)
    record.steps["loss"] = []
    assert contradictions(record) == []
    ended = copy.deepcopy(record)
    ended.status = "finished"
    assert "ended is not known" in "; ".join(contradictions(ended))
