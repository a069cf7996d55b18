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
    """Misspells a fifth of the words, at least one: from the dictionary, by a neighbouring key, or by a swap."""
    wanted = max(1, len(words) // _WORDS_A_TYPO)
    done: list[tuple[int, str]] = []
    for index in _in_random_order(len(words), draws):
        word = table[words[index]]
        if len(word.shape.characters) == 1:  # It is drawn as often as any other, and stays as it is.
            operation, typo = "", word.text
        elif not word.can_be_misspelt:
            continue
        elif word.misspelt:
            operation, typo = "dictionary", word.misspelt[draws.below(len(word.misspelt))]
        elif word.keyed and (not word.shape.pairs or draws.below(2)):
            begin, end, near = word.key(draws.below(len(word.keyed)))
            operation, typo = "keyboard", word.replaced(begin, end, near[draws.below(len(near))])
        else:
            operation, typo = "swap", word.swapped(word.shape.pairs[draws.below(len(word.shape.pairs))])
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
        index = candidates[draws.below(len(candidates))]
        word = table[words[index]]
        operation, typo = _OPERATIONS[draws.below(len(_OPERATIONS))](word, draws)
        if typo != word.text:
            words[index] = typo
            return (operation,)


def _delete(word: Word, draws: Draws) -> tuple[str, str]:
    if not word.shape.removable:
        return "", word.text
    begin, end = word.shape.removable[draws.below(len(word.shape.removable))]
    return "delete", word.text[:begin] + word.text[end:]


def _swap(word: Word, draws: Draws) -> tuple[str, str]:
    if not word.shape.pairs:
        return "", word.text
    return "swap", word.swapped(word.shape.pairs[draws.below(len(word.shape.pairs))])


def _insert(word: Word, draws: Draws) -> tuple[str, str]:
    place = word.shape.gaps[draws.below(len(word.shape.gaps))]
    letter = word.letters[draws.below(len(word.letters))]
    return "insert", word.text[:place] + letter + word.text[place:]


def _substitute(word: Word, draws: Draws) -> tuple[str, str]:
    begin, end = word.shape.characters[draws.below(len(word.shape.characters))]
    letter = word.letters[draws.below(len(word.letters))]
    # The name says how the change looks: the released data, whose shares are compared, do not tell how they were made.
    near = letter in word.keys.get(word.text[begin:end], "")
    return "keyboard" if near else "substitute", word.replaced(begin, end, letter)


def _keyboard(word: Word, draws: Draws) -> tuple[str, str]:
    if not word.keyed:
        return "", word.text
    begin, end, near = word.key(draws.below(len(word.keyed)))
    return "keyboard", word.replaced(begin, end, near[draws.below(len(near))])


_OPERATIONS = (_delete, _swap, _insert, _substitute, _keyboard)


def spacing(words: list[str], gaps: list[str] | None, draws: Draws, table: Words) -> tuple[str, ...]:
    """Join two words, split one, or exchange two letters side by side that do not look alike."""
    for number in _in_random_order(len(_SPACINGS), draws):
        operation, places, change = _SPACINGS[number]
        # The first possible place in random order: each of them has the same chance, and few words are looked at.
        for at in _in_random_order(len(words), draws):
            if places(words, at, table):
                change(words, at, table, draws)
                if operation == "join" and gaps is not None:
                    del gaps[at + 1]
                return (operation,)
    return ()


def _can_join(words: list[str], at: int, table: Words) -> bool:
    return at + 1 < len(words) and table[words[at]].ends_plain and table[words[at + 1]].begins_plain


def _join(words: list[str], at: int, table: Words, draws: Draws) -> None:
    words[at : at + 2] = [words[at] + words[at + 1]]


def _can_split(words: list[str], at: int, table: Words) -> bool:
    return table[words[at]].can_be_split


def _split(words: list[str], at: int, table: Words, draws: Draws) -> None:
    word = table[words[at]]
    _, middle, _ = word.shape.pairs[draws.below(len(word.shape.pairs))]
    words[at] = f"{word.text[:middle]} {word.text[middle:]}"


def _can_transpose(words: list[str], at: int, table: Words) -> bool:
    return bool(table[words[at]].transposable)


def _transpose(words: list[str], at: int, table: Words, draws: Draws) -> None:
    word = table[words[at]]
    words[at] = word.swapped(word.shape.pairs[word.transposable[draws.below(len(word.transposable))]])


_SPACINGS = (("join", _can_join, _join), ("split", _can_split, _split), ("swap", _can_transpose, _transpose))
