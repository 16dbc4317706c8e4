"""Agreement: ranks that look for a difference together describe the same, whatever happens on one of them."""

from helpers.in_ranks import in_ranks

from dpexp.distributed.group import ProcessGroup
from dpexp.verification.diagnosis.agreement import Agreement, Found


def agreed(group: ProcessGroup) -> list[str]:
    """Rank 1 raises before its second gathering; afterwards all are together again."""
    ranks = Agreement(group)

    def part() -> Found:
        ranks.all_gather(lambda: 0)
        return Found(str(ranks.all_gather(lambda: 1 // (1 - group.rank))))

    parts = {"the first module": part, "the next": lambda: Found("found")}
    return [ranks.found(what, find).text for what, find in parts.items()]


def test_an_error_while_ranks_locate_a_difference_is_described_by_all() -> None:
    (first, second), other = in_ranks(2, __file__, "agreed")["agreed"]
    assert [first, second] == other
    assert first.startswith("the first module: not located, rank 1 raised ZeroDivisionError: ")
    assert second == "found"
