"""The draw of sentences: the same date gives the same ones, and they are what a person reads."""

from lab.evaluation.sentences import SHARES, drawn, of_messages, of_pages, of_report, sentences


def test_a_date_gives_the_same_sixty_and_another_date_gives_others() -> None:
    first = drawn(20261128)
    assert {kind: len(chosen) for kind, chosen in first.items()} == SHARES
    assert sum(SHARES.values()) == 60
    assert all(len(set(chosen)) == len(chosen) for chosen in first.values())
    assert drawn(20261128) == first
    assert drawn(20261129) != first


def test_each_kind_has_what_a_person_reads_and_no_docstring() -> None:
    messages = set(of_messages())
    assert "All writes are done." in messages
    assert "The sentences of a paragraph." not in messages
    assert not [each for each in messages if each.startswith("Draws sentences")]
    assert "A Pod without a Node holds no GPU." in set(of_pages())
    assert "Nothing cheaper is fast enough." in set(of_report())


def test_headings_names_and_halves_are_no_sentences() -> None:
    assert list(sentences("Guards")) == list(sentences("which no plan ever refuses.")) == []
    text = "[The plan](plan.md) refuses it all. Set `plan.budget_ratio` to 0.05\nor to more. Why not"
    assert list(sentences(text)) == ["The plan refuses it all.", "Set `plan.budget_ratio` to 0.05 or to more."]
