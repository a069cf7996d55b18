"""Questions with their words in another order, a change that a model which matches words alone does not notice."""

import hashlib


def shuffle_words(text: str, seed: int = 0) -> str:
    """Shuffle the words of a text, as white space separates them.

    The order is a function of seed and text alone: no other text, no position in a file and no version of a random
    generator changes it. Punctuation stays at its word. The drawn order may be the original one.

    Args:
      text: for instance a question.
      seed: another seed draws another order.

    Returns:
      The same words, separated by single spaces; a text of one word or none as it is.
    """
    words = text.split()
    if len(words) < 2:
        return text
    # Sorting by independent keys: every order is equally likely. Half a surrogate pair, as JSON may hold, is hashed too.
    start = hashlib.blake2b(f"{seed}\0{text}\0".encode(errors="surrogatepass"))

    def key(position: int) -> bytes:
        of_word = start.copy()
        of_word.update(str(position).encode())
        return of_word.digest()

    return " ".join(words[position] for position in sorted(range(len(words)), key=key))
