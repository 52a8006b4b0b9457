"""Chance that can be played again."""

from penstock.runtime import SeededEntropy, SystemEntropy


def draws(entropy: SeededEntropy) -> list[object]:
    return [entropy.below(1_000_000), entropy.fraction(), entropy.bytes(16), entropy.below(7)]


def test_same_seed_same_numbers() -> None:
    assert draws(SeededEntropy(42)) == draws(SeededEntropy(42))


def test_other_seed_other_numbers() -> None:
    assert draws(SeededEntropy(42)) != draws(SeededEntropy(43))


def test_numbers_are_in_their_ranges_and_reach_both_ends() -> None:
    entropy = SeededEntropy(1)
    assert {entropy.below(4) for _ in range(200)} == {0, 1, 2, 3}
    assert all(0 <= entropy.fraction() < 1 for _ in range(200))
    assert [len(entropy.bytes(count)) for count in (0, 1, 33)] == [0, 1, 33]


def test_a_run_with_system_entropy_can_be_repeated_by_its_seed() -> None:
    entropy = SystemEntropy()
    assert draws(entropy) == draws(SeededEntropy(entropy.seed))


def test_two_system_entropies_differ() -> None:
    assert draws(SystemEntropy()) != draws(SystemEntropy())
