"""A sweep of options: a cell for each combination that its strategy accepts, and one comparison."""

from pathlib import Path

import pytest
from helpers.command_lines import script

from dpexp.commands.grid import plan_of
from dpexp.config.errors import ConfigError
from dpexp.config.run_config import RunConfig
from dpexp.config.strategy_options import HybridOptions
from dpexp.record.fold import load_record
from dpexp.study.sweep import Sweep

SHORT = ["--steps", "2", "--warmup", "1", "--phase-steps", "0"]


def left_out(*words: str) -> list[str]:
    return plan_of(words, repeats=3)[1]


def configs(*words: str) -> dict[str, RunConfig]:
    return dict(plan_of(words, repeats=3)[0].runs)


def test_each_combination_of_values_is_a_cell() -> None:
    runs = configs("whole", "functional", "--virtual", "2,4", "--batch-size=30,64", "--steps", "7")
    assert {(run.strategy, run.virtual, run.batch_size, run.steps) for run in runs.values()} == {
        (strategy, virtual, rows, 7)
        for strategy in ("whole", "functional")
        for virtual in (2, 4)
        for rows in (30, 64)
    }
    assert "whole-virtual_2-batch_size_64" in runs


def test_a_strategy_gets_only_the_options_that_it_has() -> None:
    runs = configs("whole", "hybrid", "--virtual", "1", "--sparse", "--dense")
    assert [*runs] == ["whole", "hybrid-sparse", "hybrid-dense"]
    sparse = runs["hybrid-sparse"].options
    assert isinstance(sparse, HybridOptions)
    assert sparse.sparse


def test_a_value_with_a_colon_or_an_equals_sign_keeps_its_commas() -> None:
    runs = configs("single", "--devices", "cpu", "--model", "linear:in=5,out=3", "--model", "linear,mlp")
    assert [str(run.model) for run in runs.values()] == ["linear:in=5,out=3", "linear", "mlp"]


def test_names_that_one_run_takes_together_are_joined() -> None:
    runs = configs("block", "--virtual", "2", "--block", "block1,block2+block3")
    assert [run.to_dict()["block"] for run in runs.values()] == [["block1"], ["block2", "block3"]]


def test_single_is_one_cell_on_one_device_of_the_same_kind_beside_the_others() -> None:
    runs = configs("single", "whole", "block", "--virtual", "2,4", "--batch-size", "8,16")
    single = {cell: run for cell, run in runs.items() if run.strategy == "single"}
    assert [*single] == ["single-batch_size_8", "single-batch_size_16"]
    assert {run.virtual for run in single.values()} == {1}
    assert left_out("single", "whole", "--virtual", "2") == []
    with pytest.raises(ConfigError, match="--virtual gives 2 devices and single uses one"):
        configs("single", "--virtual", "2")


def test_a_combination_that_its_strategy_refuses_is_left_out_and_named_once() -> None:
    words = ("single", "whole", "--virtual", "2", "--backend", "auto,torch", "--batch-size", "8,16")
    assert not any("whole-torch" in cell for cell in configs(*words))
    (refused,) = left_out(*words)
    assert refused.startswith("whole --virtual 2 --backend torch --batch-size 8: --backend torch: torch.nn")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["whole", "--virtul", "2"], "unknown option '--virtul'.*did you mean '--virtual'"),
        (["whole", "--sparse"], "whole: unknown option '--sparse'; .*--help"),
        (["whoel", "--virtual", "2"], "unknown strategy 'whoel'.*did you mean 'whole'"),
        (["--virtual", "2"], "name a strategy"),
        (["whole", "--virtual", "2,two"], "Invalid value for '--virtual'"),
        (["single", "--batch-size", "100,600"], "--batch-size 600 is larger than the data"),
        (["single", "--virtual", "2"], "single --virtual 2: .*single uses one"),
        (["single", "--experiment", "a,b"], "give one name"),
    ],
)
def test_what_no_run_accepts_is_an_error_before_anything_runs(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configs(*words)


@pytest.mark.parametrize(
    "words",
    [["whole", "--virtual", "0"], ["experiments/seed_tables", "--repeat", "4", "--dry-run"]],
)
def test_bad_input_is_exit_code_2_and_writes_nothing(words: list[str], dpexp_home: Path) -> None:
    done = script("sweep.py", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert not list(dpexp_home.iterdir())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow and SQLAlchemy, among themselves
@pytest.mark.usefixtures("temporary_folder")
def test_a_sweep_resumes_under_one_parent_and_ends_in_one_comparison(dpexp_home: Path) -> None:
    words = ["single", "whole", "--virtual", "1", "--experiment", "swept", "--repeat", "1", *SHORT]
    assert script("sweep.py", *words, "--no-track").returncode == 0
    done = script("sweep.py", *words, "--resume")
    assert done.returncode == 0, done.stderr
    sweep = Sweep.latest(plan_of([*words[:6], *SHORT], repeats=1)[0])
    assert sweep is not None
    folder, *runs = sweep.run_folders()
    assert sorted(load_record(run).name for run in runs) == ["single.r1", "whole.r1"]
    assert sorted(dpexp_home.joinpath("runs").iterdir()) == sorted([folder, *runs])
    assert done.stdout.count("Comparison 1: 2 configs") == 1
    assert f"Markdown: {folder / 'report' / 'report.md'}" in done.stdout
    assert "### Comparison 1: 2 configs" in (folder / "report" / "report.md").read_text()

    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{dpexp_home}/mlflow.db")
    (stored,) = client.search_experiments(filter_string="name = 'swept'")
    delivered = client.search_runs([stored.experiment_id])
    parents = [run.data.tags.get("mlflow.parentRunId") for run in delivered]
    (parent,) = {run.info.run_id for run in delivered if run.data.tags["dpexp.strategy"] == "sweep"}
    assert sorted(parents, key=str) == sorted([None, parent, parent], key=str)
    names = {file.path for file in client.list_artifacts(parent, "report")}
    assert names == {"report/report.md"}
