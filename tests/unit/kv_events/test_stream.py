"""Sequences of one publisher, against what it published."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvitals.agent.collectors.kv_events_stream import (
    MAX_WAITING_BYTES,
    MIXED_RESTARTS,
    RETRY_SECONDS,
    SILENT_SECONDS,
    EventStream,
    MessageRun,
)


def payload(sequence: int, life: int = 0) -> bytes:
    return f"{life}:{sequence}".encode()


def live(stream: EventStream, *sequences: int, life: int = 0, t: float = 1.0) -> None:
    for sequence in sequences:
        stream.live(sequence, payload(sequence, life), t)


def answer(stream: EventStream, buffer: list[int], *, life: int = 0, t: float = 1.0) -> None:
    """The publisher answers what is asked for from its buffer."""
    for _ in range(10):
        replay = stream.replay
        if replay is None:
            return
        replay.sent = replay.heard = t
        for sequence in buffer:
            if sequence >= replay.start and stream.replay is replay:
                stream.replayed(sequence, payload(sequence, life), t)
        if stream.replay is replay:
            stream.ended(t)
    raise AssertionError("it asks for ever")


def told(runs: list[MessageRun]) -> list[tuple[list[int], int, bool, bool]]:
    return [([s for s, _ in run.messages], run.lost, run.restarted, run.late) for run in runs]


def test_messages_from_the_first_on_are_one_run() -> None:
    stream = EventStream(replays=False)
    live(stream, 0, 1, 2)
    assert told(stream.take()) == [([0, 1, 2], 0, False, False)]
    live(stream, 3)
    assert told(stream.take()) == [([3], 0, False, False)]
    assert stream.take() == []


def test_who_comes_late_says_so() -> None:
    stream = EventStream(replays=False)
    live(stream, 7, 8)
    assert told(stream.take()) == [([7, 8], 0, False, True)]


def test_what_was_before_is_asked_for_and_then_nothing_was_missed() -> None:
    stream = EventStream(replays=True)
    stream.connected(0.0)
    assert stream.replay is not None and stream.replay.start == 0
    live(stream, 3)
    assert stream.take() == []
    answer(stream, [0, 1, 2, 3])
    runs = stream.take()
    assert told(runs) == [([0, 1, 2, 3], 0, False, False)]
    assert runs[0].replayed == 4  # the last one came by itself too, and is not there twice
    live(stream, 4)
    assert told(stream.take()) == [([4], 0, False, False)]


def test_a_publisher_that_has_published_nothing_yet() -> None:
    stream = EventStream(replays=True)
    stream.connected(0.0)
    answer(stream, [])
    live(stream, 0, 1)
    assert told(stream.take()) == [([0, 1], 0, False, False)]


def test_a_publisher_that_forgot_the_beginning() -> None:
    stream = EventStream(replays=True)
    stream.connected(0.0)
    answer(stream, [5, 6])
    live(stream, 7)
    assert told(stream.take()) == [([5, 6, 7], 0, False, True)]


def test_one_that_keeps_nothing_though_it_has_published() -> None:
    stream = EventStream(replays=True)
    live(stream, 9)
    answer(stream, [])
    assert told(stream.take()) == [([9], 0, False, True)]


def test_a_gap_without_replays_is_counted() -> None:
    stream = EventStream(replays=False)
    live(stream, 0, 1, 5, 6)
    assert told(stream.take()) == [([0, 1], 0, False, False), ([5, 6], 3, False, False)]


def test_a_gap_is_filled() -> None:
    stream = EventStream(replays=True)
    live(stream, 0, 1, 5, 6)
    assert stream.replay is not None and stream.replay.start == 1  # the last one known: is it still the same?
    answer(stream, list(range(7)))
    assert told(stream.take()) == [([0, 1, 2, 3, 4, 5, 6], 0, False, False)]


def test_a_gap_that_goes_further_back_than_the_buffer() -> None:
    stream = EventStream(replays=True)
    live(stream, 0, 1, 9)
    answer(stream, [6, 7, 8, 9])
    assert told(stream.take()) == [([0, 1], 0, False, False), ([6, 7, 8, 9], 4, False, False)]


def test_a_replay_with_a_hole_is_asked_for_again_and_not_for_ever() -> None:
    stream = EventStream(replays=True)
    live(stream, 0, 6)
    first = stream.replay
    answer(stream, [0, 1, 2, 5, 6])
    assert first is not None and stream.replay is None
    assert told(stream.take()) == [([0, 1, 2], 0, False, False), ([5, 6], 2, False, False)]


def test_a_restart_is_told_from_lower_numbers() -> None:
    stream = EventStream(replays=False)
    live(stream, 0, 1, 2)
    live(stream, 0, 1, life=1)
    assert told(stream.take()) == [([0, 1, 2], 0, False, False), ([0, 1], 0, True, False)]


def test_a_restart_while_the_connection_was_gone() -> None:
    """The new publisher has more than the old one had: only the message itself tells that it is another."""
    stream = EventStream(replays=True)
    live(stream, 0, 1, 2)
    stream.cut(1.0)
    stream.connected(2.0)
    answer(stream, [0, 1, 2, 3, 4], life=1)
    runs = stream.take()
    assert told(runs) == [([0, 1, 2], 0, False, False), ([0, 1, 2, 3, 4], 0, True, False)]
    assert runs[1].messages[0][1] == payload(0, 1)


def test_a_restart_of_one_that_has_published_less() -> None:
    stream = EventStream(replays=True)
    live(stream, 0, 1, 2)
    stream.cut(1.0)
    stream.connected(2.0)
    answer(stream, [0], life=1)
    live(stream, 1, life=1)
    assert told(stream.take()) == [([0, 1, 2], 0, False, False), ([0, 1], 0, True, False)]


def test_a_connection_that_broke_and_nothing_else() -> None:
    stream = EventStream(replays=True)
    live(stream, 0, 1, 2)
    stream.cut(1.0)
    stream.connected(2.0)
    answer(stream, [0, 1, 2, 3])
    live(stream, 4)
    assert told(stream.take()) == [([0, 1, 2, 3, 4], 0, False, False)]


def test_a_gap_behind_a_broken_connection_proves_nothing() -> None:
    stream = EventStream(replays=False)
    live(stream, 0, 1)
    stream.cut(1.0)
    live(stream, 8)
    assert told(stream.take()) == [([0, 1], 0, False, False), ([8], 0, True, True)]


def test_a_replay_that_does_not_come_is_given_up_and_asked_for_later() -> None:
    stream = EventStream(replays=True)
    live(stream, 0, 4, t=1.0)
    stream.tick(1.0 + SILENT_SECONDS)
    assert stream.replay is not None
    stream.tick(1.1 + SILENT_SECONDS)
    assert stream.replay is None
    assert told(stream.take()) == [([0], 0, False, False), ([4], 3, False, False)]
    live(stream, 6, t=10.0)
    assert told(stream.take()) == [([6], 1, False, False)]
    live(stream, 9, t=10.0 + 2 * RETRY_SECONDS)
    assert stream.replay is not None


def test_nothing_is_given_up_while_nothing_waits_and_it_could_not_be_asked() -> None:
    stream = EventStream(replays=True)
    stream.connected(0.0)
    stream.tick(1000.0)
    assert stream.replay is not None


def test_what_waits_for_a_replay_is_bounded() -> None:
    stream = EventStream(replays=True)
    live(stream, 0, 2)
    piece = bytes(1 << 20)
    for sequence in range(3, 20):
        stream.live(sequence, piece, 1.0)
    assert MAX_WAITING_BYTES < 17 << 20
    assert stream.replay is None
    assert [run.lost for run in stream.take()] == [0, 1]


def test_two_publishers_on_one_address_are_not_taken() -> None:
    stream = EventStream(replays=False)
    for sequence in range(2 * MIXED_RESTARTS):
        live(stream, sequence, life=1)
        live(stream, sequence, life=2)
    assert stream.is_mixed(1.0)
    assert stream.ignored > 0
    assert not stream.is_mixed(100.0)


@settings(max_examples=300)
@given(st.data())
def test_whatever_is_lost_the_record_says_it(data: st.DataObject) -> None:
    """A publisher that loses some, restarts and keeps a short buffer: what is taken is what it published, in order,
    and each hole, restart and late begin is marked where it is. A replay is answered before it is given up."""
    replays = data.draw(st.booleans())
    keeps = data.draw(st.integers(0, 6))
    stream = EventStream(replays=replays)
    life, sequence, t = 0, 0, 0.0
    buffer: list[int] = []
    runs: list[MessageRun] = []
    for _ in range(data.draw(st.integers(1, 40))):
        t += 1.0
        step = data.draw(st.sampled_from(["heard", "heard", "heard", "lost", "restart", "answer"]))
        if step == "restart":
            life, sequence, buffer = life + 1, 0, []
            stream.cut(1.0)
            stream.connected(t)
        elif step == "answer":
            answer(stream, buffer, life=life, t=t)
        else:
            buffer = [*buffer, sequence][-keeps:] if keeps else []
            if step == "heard":
                stream.live(sequence, payload(sequence, life), t)
            sequence += 1
        if stream.replay is not None and t - stream.replay.since >= SILENT_SECONDS - 1:
            answer(stream, buffer, life=life, t=t)
        stream.tick(t)
        runs += stream.take()
    check(runs, replays=replays)


def check(runs: list[MessageRun], *, replays: bool) -> None:
    """What follows a run follows it in truth, unless it is marked. A run without messages marks the next one.

    Without replays nobody can tell one publisher's 5 from another's where 5 is the next number: that is let pass.
    """
    expected: tuple[int, int] | None = None  # life and sequence
    lost, restarted, late = 0, False, False
    for run in runs:
        lost, restarted, late = lost + run.lost, restarted or run.restarted, late or run.late
        for _, text in run.messages:
            its = tuple(map(int, text.split(b":")))
            if expected is None or restarted:
                assert its[1] == 0 or late, "it does not begin at the beginning"
            elif late and expected[1] == 0:
                assert its[1] > 0
            else:
                assert its[1] - lost == expected[1]
                assert its[0] == expected[0] or not (replays or lost)
            expected = its[0], its[1] + 1
            lost, restarted, late = 0, False, False


def test_a_gap_that_nobody_can_have_lost_is_a_restart() -> None:
    """One message with the number 2^63-1 made the count of lost ones useless for good."""
    stream = EventStream(replays=False)
    stream.live(0, b"a", 0.0)
    stream.live(2**63 - 1, b"b", 1.0)
    runs = stream.take()
    assert [(run.lost, run.restarted) for run in runs] == [(0, False), (0, True)]
    stream.live(5, b"c", 2.0)
    stream.live(7, b"d", 3.0)
    assert sum(run.lost for run in stream.take()) == 1
