"""The changes that each profile of typos makes to the words of a text; `jaxretr.data.typos` describes them.

A profile changes the list of words in place and names its operations in the order of the words. `gaps` is the white
space before, between and behind the words, one more than there are words; None where it is one space between each two.
"""

from collections.abc import Callable, Iterator

from jaxretr.data.typos.draws import Draws
from jaxretr.data.typos.words import NO_LETTER, Word, Words

Change = Callable[[list[str], list[str] | None, Draws, Words], tuple[str, ...]]

# The dictionary profile changes one of this number of words.
_WORDS_A_TYPO = 5


def dictionary(words: list[str], gaps: list[str] | None, draws: Draws, table: Words) -> tuple[str, ...]:
    """Misspell a fifth of the words, at least one: from the dictionary, by a neighbouring key, or by a swap."""
    wanted = max(1, len(words) // _WORDS_A_TYPO)
    done: list[tuple[int, str]] = []
    for index in _in_random_order(len(words), draws):
        word = table[words[index]]
        if len(word.letters) == 1:  # It is drawn as often as any other, and stays as it is.
            operation, typo = "", word.text
        elif not word.can_be_misspelt:
            continue
        elif word.misspelt:
            operation, typo = "dictionary", draws.one_of(word.misspelt)
        elif word.keyed and (not word.pairs or draws.below(2)):
            operation, typo = _keyboard(word, draws)
        else:
            operation, typo = _swap(word, draws)
        if typo != word.text:  # A swap of equal letters is drawn as often as any other, and changes nothing.
            words[index] = typo
            done.append((index, operation))
        wanted -= 1
        if not wanted:
            break
    return (done[0][1],) if len(done) == 1 else tuple(operation for _, operation in sorted(done))


def _in_random_order(n: int, draws: Draws) -> Iterator[int]:
    """Yield 0 ... n - 1, with fresh draws for each."""
    left = list(range(n))
    while left:
        draws.renew()
        at = draws.below(len(left))
        index, left[at] = left[at], left[-1]
        left.pop()
        yield index


def single_word(words: list[str], gaps: list[str] | None, draws: Draws, table: Words) -> tuple[str, ...]:
    """Make one change of one character to one word; the words are in lower case."""
    rank_of = table.ranks
    ranks = [rank_of[word] for word in words]
    best = min(ranks, default=NO_LETTER)
    if best == NO_LETTER:
        return ()
    candidates = [index for index, rank in enumerate(ranks) if rank == best]
    # It ends: a letter can be inserted into any word that has one.
    while True:
        draws.renew()
        index = draws.one_of(candidates)
        word = table[words[index]]
        operation, typo = draws.one_of(_OPERATIONS)(word, draws)
        if typo != word.text:
            words[index] = typo
            return (operation,)


def _delete(word: Word, draws: Draws) -> tuple[str, str]:
    if not word.removable:
        return "", word.text
    letter = draws.one_of(word.removable)
    return "delete", word.changed(letter, letter + 1, "")


def _swap(word: Word, draws: Draws) -> tuple[str, str]:
    return ("swap", word.swapped(draws.one_of(word.pairs))) if word.pairs else ("", word.text)


def _insert(word: Word, draws: Draws) -> tuple[str, str]:
    place = draws.one_of(word.gaps)
    return "insert", word.changed(place, place, draws.one_of(word.alphabet))


def _substitute(word: Word, draws: Draws) -> tuple[str, str]:
    number, letter = draws.one_of(word.letters), draws.one_of(word.alphabet)
    # The name says how the change looks: the released data, whose shares are compared, do not tell how they were made.
    near = letter in word.sources.keys.get(word.characters[number], "")
    return "keyboard" if near else "substitute", word.replaced(number, letter)


def _keyboard(word: Word, draws: Draws) -> tuple[str, str]:
    if not word.keyed:
        return "", word.text
    number, near = draws.one_of(word.keyed)
    return "keyboard", word.replaced(number, draws.one_of(near))


_OPERATIONS = (_delete, _swap, _insert, _substitute, _keyboard)
_SPACINGS = ("join", "split", "swap")


def spacing(words: list[str], gaps: list[str] | None, draws: Draws, table: Words) -> tuple[str, ...]:
    """Join two words, split one, or exchange two letters side by side that do not look alike."""
    for number in _in_random_order(len(_SPACINGS), draws):
        operation = _SPACINGS[number]
        # The first possible place in random order: each of them has the same chance, and few words are looked at.
        for at in _in_random_order(len(words), draws):
            word = table[words[at]]
            if operation == "join":
                # Letters must meet, not punctuation.
                if word.letters[-1:] != (len(word.characters) - 1,):
                    continue
                if at + 1 == len(words) or table[words[at + 1]].letters[:1] != (0,):
                    continue
                words[at : at + 2] = [words[at] + words[at + 1]]
                if gaps is not None:
                    del gaps[at + 1]
            elif operation == "split" and word.can_be_split:
                middle = draws.one_of(word.pairs) + 1
                words[at] = word.changed(middle, middle, " ")
            elif operation == "swap" and word.transposable:
                words[at] = word.swapped(draws.one_of(word.transposable))
            else:
                continue
            return (operation,)
    return ()
