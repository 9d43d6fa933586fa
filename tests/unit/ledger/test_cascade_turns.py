"""Whether conversations find what their last turn left."""

from __future__ import annotations

from kvitals.agent.ledger.cascade_turns import MAX_SESSIONS, Turns
from kvitals.agent.ledger.engine import SettledLookup
from kvitals.agent.ledger.parties import Party


def look(session: str, chain: list[int] | None, hits: int) -> SettledLookup:
    party = Party("t", session)
    party.settle()
    blocks = len(chain or [])
    return SettledLookup(
        at=0.0, blocks=blocks, hits=hits, chain=chain, tokens=16, prompt=16 * blocks, output=None, party=party,
        source="inferred", confidence=1.0,
    )  # fmt: skip


def counted(*looks: SettledLookup) -> dict[str, float]:
    turns = Turns()
    for one in looks:
        turns.look(one)
    return {name + "".join(value for _, value in labels): count for name, labels, count in turns.counts()}


def test_a_turn_that_finds_its_history() -> None:
    found = counted(look("s", [1, 2, 3], 0), look("s", [1, 2, 3, 4, 5], 3))
    assert (found["kvitals_cache_turns_totalall"], found["kvitals_cache_turns_totalpart"]) == (1, 0)


def test_a_turn_that_lost_part_of_it() -> None:
    found = counted(look("s", [1, 2, 3], 0), look("s", [1, 2, 3, 4], 1))
    assert found["kvitals_cache_turns_totalpart"] == 1
    assert found["kvitals_cache_turn_lost_tokens_total"] == 2 * 16


def test_another_prompt_of_the_session_is_no_turn() -> None:
    found = counted(look("s", [1, 2, 3], 0), look("s", [1, 9, 8, 7], 1), look("s", [1], 1))
    assert found["kvitals_cache_turns_totalall"] == found["kvitals_cache_turns_totalpart"] == 0


def test_without_a_session_only_prompts_count() -> None:
    found = counted(look("", [1, 2], 0), look("", [1, 2], 2), look("s", None, 0))
    assert (found["kvitals_cache_prompts_totalsome"], found["kvitals_cache_prompts_totalnone"]) == (1, 1)


def test_what_an_empty_cache_lost_is_nobodys_doing() -> None:
    turns = Turns()
    turns.look(look("s", [1, 2, 3], 0))
    turns.forget()
    turns.look(look("s", [1, 2, 3, 4], 0))
    assert (turns.kept, turns.lost) == (0, 0)


def test_sessions_are_bounded() -> None:
    turns = Turns()
    for number in range(MAX_SESSIONS + 10):
        turns.look(look(f"s{number}", [number], 0))
    turns.look(look("s0", [0, 1], 0))  # forgotten
    turns.look(look(f"s{MAX_SESSIONS}", [MAX_SESSIONS, 1], 1))
    assert (turns.kept, turns.lost) == (1, 0)
