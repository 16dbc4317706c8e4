"""Loop: a prepared run from its verification to its last pass. Facts go to the journal as they are found."""

from dpexp.distributed.signals import SignalHandler
from dpexp.engine.observations import Observations
from dpexp.engine.own_steps import OwnVerification
from dpexp.engine.passes import Measurement
from dpexp.engine.prepare import Prepared
from dpexp.engine.progress import ProgressBar
from dpexp.engine.verify import UNVERIFIED, refuse, reported, row, unchecked, verify
from dpexp.record.journal import Journal
from dpexp.timing import Timer
from dpexp.verification.compare import Difference
from dpexp.verification.gathered_outputs import scalars_of_replicas
from dpexp.verification.mode import Mode
from dpexp.verification.result import VerificationError


def execute(
    prepared: Prepared,
    journal: Journal,
    progress: ProgressBar,
    signals: SignalHandler | None = None,
) -> None:
    """Verify, observe and measure the run.

    Raises VerificationError, RunError, and what the model raises.
    """
    with scalars_of_replicas():
        _execute(prepared, journal, progress, signals or SignalHandler())


def _execute(
    prepared: Prepared,
    journal: Journal,
    progress: ProgressBar,
    signals: SignalHandler,
) -> None:
    proven = _verify(prepared, journal, progress)
    _check_untouched(prepared, journal)
    own_steps = OwnVerification(prepared, journal, progress, proven) if prepared.config.check else None
    timer = Timer(prepared.selection.used)
    placed = prepared.strategy.place(prepared.model, prepared.selection.used, timer)
    observations = Observations(prepared, placed)
    journal.set(devices=observations.device_facts(), device_map=observations.device_map())
    progress.begin("observe")
    journal.set(shapes=observations.shapes())
    journal.flush()
    trainer = prepared.trainer(placed)
    measurement = Measurement(prepared, trainer, journal, progress, observations, signals, own_steps)
    measurement.warm_up()
    measurement.time_steps()
    measurement.record_digests()
    measurement.compare_last()
    _check_untouched(prepared, journal)
    measurement.time_phases()
    measurement.profile()
    measurement.count_collectives()
    measurement.profile_operators()


def _verify(prepared: Prepared, journal: Journal, progress: ProgressBar) -> Mode | None:
    """Returns the mode in which training mode was compared, if it was."""
    if not prepared.config.check:
        journal.set(verification=unchecked("not verified: --no-check"))
        return None
    progress.begin("verify")

    def report(difference: Difference, text: str) -> None:
        journal.set(verification=reported(difference, text))
        journal.flush()
        progress.report_difference(text)

    result = verify(prepared, report)
    journal.set(verification=row(result))
    if result.cause:
        note = "; ".join([*result.notes, UNVERIFIED])
        raise VerificationError.of(prepared.config.strategy, result.tolerance, result.cause, note)
    return result.mode_in_training


def _check_untouched(prepared: Prepared, journal: Journal) -> None:
    """Raises VerificationError where a user's layout has changed what a single device computes."""
    changed = prepared.untouched.changed() if prepared.untouched is not None else ""
    cause = next(filter(None, prepared.group.all_gather(changed)), "")
    if cause:
        refuse(prepared, journal, 0.0, f"the layout has changed what every model computes: {cause}")
