"""A budget that holders share: nobody takes another's own part, and what is given back is free again."""

from kvitals.series.fair_shares import FairShares, fair_level


def test_a_flood_leaves_the_own_parts_of_others() -> None:
    shares = FairShares(1000, holders=4)  # 225 each, and 100 for whoever comes first
    taken = sum(shares.take("flood", 5) for _ in range(1000))
    assert taken * 5 == 325
    assert shares.refused == 1000 - taken
    assert [shares.take(holder, 225) for holder in "abc"] == [True, True, True]
    assert not shares.take("a", 1)
    assert sum(shares.held.values()) == 1000


def test_what_is_given_back_is_free_again() -> None:
    shares = FairShares(1000, holders=4)
    assert shares.take("a", 325)
    assert shares.room("b") == 225
    shares.give("a", 100)
    assert shares.room("b") == 325
    shares.give("a")
    shares.give("a")
    assert shares.held == {}
    assert shares.take("b", 325)


def test_what_must_be_spared_is_left_to_the_same_holder() -> None:
    shares = FairShares(1000, holders=4)
    assert not shares.take("a", 300, spare=50)
    assert shares.take("a", 275, spare=50)
    assert shares.take("a", 50)


def test_new_holders_make_the_parts_smaller_and_the_largest_is_overdrawn() -> None:
    shares = FairShares(1000, holders=1)
    assert shares.take("a", 900)
    assert shares.overdrawn == []
    shares.divide(1000, 10)
    assert shares.overdrawn == ["a"]
    assert shares.take("b", 90)
    assert not shares.take("b", 1)


def test_without_a_limit_everything_is_taken() -> None:
    shares = FairShares()
    assert shares.take("a", 1 << 60)
    assert shares.overdrawn == []
    assert shares.room("b") == float("inf")


def test_the_fair_level_takes_from_the_largest_alone() -> None:
    assert fair_level([10, 20, 30], 60) == float("inf")
    assert fair_level([10, 20, 300, 300], 130) == 50
    assert fair_level([], 10) == float("inf")
