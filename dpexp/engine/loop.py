"""Loop: a prepared run from its verification to its last pass. Facts go to the journal as they are found."""

from dpexp.distributed.signals import SignalHandler
from dpexp.engine.observations import Observations
from dpexp.engine.passes import Measurement
from dpexp.engine.prepared import Prepared
from dpexp.engine.progress import ProgressBar
from dpexp.engine.verify import Verification
from dpexp.record.journal import Journal
from dpexp.timing import Timer
from dpexp.verification.gathered_outputs import scalars_of_replicas


def execute(
    prepared: Prepared, journal: Journal, progress: ProgressBar, signals: SignalHandler | None = None
) -> None:
    """Verify, observe and measure the run.

    Raises VerificationError, RunError, and what the model raises.
    """
    with scalars_of_replicas():
        verification = Verification(prepared, journal, progress)
        verification.before()
        timer = Timer(prepared.selection.used)
        placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
        observations = Observations(prepared, placed)
        journal.set(devices=observations.device_facts(), device_map=observations.device_map())
        progress.begin("observe")
        journal.set(shapes=observations.shapes())
        journal.flush()
        trainer = prepared.trainer(placed)
        signals = signals or SignalHandler()
        measurement = Measurement(prepared, trainer, journal, progress, observations, signals, verification)
        measurement.warm_up()
        measurement.time_steps()
        measurement.record_digests()
        measurement.compare_last()
        measurement.time_phases()
        measurement.profile()
        measurement.count_collectives()
        measurement.profile_operators()
