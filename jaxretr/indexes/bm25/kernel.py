"""The loops of BM25 and of learned sparse vectors over words, postings and passages, compiled by Numba.

Everything compiled is in this file: Numba decides by a file's time stamp alone what to compile again.

A passage's score is the float32 sum of what the question's words add to it, from the rarest word to the most common
one, repeated words repeated; a word adds its score in the passage times its weight in the question, which BM25 has none
of and learned sparse vectors have. `search` leaves out passages that cannot be among the best, and never changes that sum.
"""

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from jaxretr.runtime.parallel.numba_loops import compiled

# Passages that are scored to the end, besides k, to guess the k-th best score early: the more, the closer the guess.
_MORE_LEADERS = 50

# Passages, for each of those, among which they are looked for.
_LOOKED_AT = 20


class Lists(NamedTuple):
    """The postings of V words, numbered from the rarest to the most common one, in a shard of N passages.

    Attributes:
      starts: the place where each word's postings begin, int64 [V + 1].
      rows: the passages that hold each word, int32 [P], ascending within a word.
      scores: the scores that each word adds to these passages, float32 [P], all above 0.
      best: the largest score of each word, float32 [V].
      first_common: the words from here on are common: a passage's posting is found at once, and bounds are closer.
      blocks: for every common word and 32 passages, uint64 [V - first_common, ceil(N / 32)]: a bit for each of them
        that holds the word (the lower half), and the number of earlier passages that do.
      best_of_block: the largest of a common word's scores in 64 passages, float32 [V - first_common, ceil(N / 64)].
    """

    starts: NDArray[np.int64]
    rows: NDArray[np.int32]
    scores: NDArray[np.float32]
    best: NDArray[np.float32]
    first_common: int
    blocks: NDArray[np.uint64]
    best_of_block: NDArray[np.float32]


class Scratch(NamedTuple):
    """Working arrays of a search of N passages; every thread has its own.

    Attributes:
      sums: the score so far of every passage, float32 [N]; before and after each question zeros, and -inf for passages
        that may not be found.
      rows: the passages that hold one of the words so far, int32 [N + 1].
      candidates: the passages that may be among the k best, int32 [N + 1].
      matches: scratch of `_add`, int32 [2, N + 1].
      totals: the scores so far of `candidates`, float32 [N + 1].
      rest_of_block: see `_bound_rest`, float32 [V - first_common + 1, ceil(N / 64)].
    """

    sums: NDArray[np.float32]
    rows: NDArray[np.int32]
    candidates: NDArray[np.int32]
    matches: NDArray[np.int32]
    totals: NDArray[np.float32]
    rest_of_block: NDArray[np.float32]


# ---- building --------------------------------------------------------------------------------------------------------


@compiled()
def count_holders(words, lengths, first_row, last_row_of, holders):
    """Add to `holders` the passages of a slab that hold each word, and to each its total.

    Args:
      words: the words of all passages of the slab, one behind the other, uint32.
      lengths: words of each passage, int32.
      first_row: the slab's first row.
      last_row_of: the last row that held each word, int32 [V]; -1 at the beginning.
      holders: int64 [V].
    """
    at = 0
    for i in range(len(lengths)):
        row = first_row + i
        for _ in range(lengths[i]):
            word = words[at]
            at += 1
            if last_row_of[word] != row:
                last_row_of[word] = row
                holders[word] += 1


@compiled()
def add_postings(words, lengths, first_row, order, last_row_of, ends, rows, counts):
    """Append the postings of a slab, with the count of each word; see `count_holders`."""
    at = 0
    for i in range(len(lengths)):
        row = first_row + i
        for _ in range(lengths[i]):
            word = order[words[at]]
            at += 1
            end = ends[word]
            if last_row_of[word] != row:
                last_row_of[word] = row
                rows[end] = row
                counts[end] = 1
                ends[word] = end + 1
            else:
                counts[end - 1] += 1


@compiled()
def counts_to_scores(starts, rows, counts, idf, absent, norms, k1, method):
    """Replace, in place, the counts of the words by what they add to the scores.

    Computes in float64, rounds at the end, and keeps bm25s's order of operations: the numbers are bm25s's to the bit.

    Args:
      starts, rows: see `Lists`.
      counts: float32 [P].
      idf: the inverse document frequency of every word, float32 [V].
      absent: the score that a word adds to passages without it, float32 [V].
      norms: 1 - b + b length / average of every passage, float64 [N].
      k1: the parameter.
      method: 0 for Lucene and Robertson, 1 for ATIRE, 2 for BM25L, 3 for BM25+.
    """
    delta = 0.5
    for word in range(len(starts) - 1):
        for at in range(starts[word], starts[word + 1]):
            count, norm = counts[at], norms[rows[at]]
            if method == 0:
                part = count / (k1 * norm + count)
            elif method == 2:
                ratio = count / norm
                part = ((k1 + 1) * (ratio + delta)) / (k1 + ratio + delta)
            else:
                part = np.float64(count * np.float32(k1 + 1)) / (count + k1 * norm)
                if method == 3:
                    part += delta
            # Far below the smallest float32, or the rounding of `absent`, might leave nothing or less.
            counts[at] = np.float32(np.float64(idf[word]) * part - np.float64(absent[word]))


@compiled()
def fill_blocks(starts, rows, scores, first_common, blocks, best_of_block):
    """Fill what `Lists` has of common words; both are zeros before."""
    for column in range(len(blocks)):
        word = first_common + column
        for at in range(starts[word], starts[word + 1]):
            row = rows[at]
            blocks[column, row >> 5] |= np.uint64(1) << np.uint64(row & 31)
            best_of_block[column, row >> 6] = max(best_of_block[column, row >> 6], scores[at])
        before = 0
        for block in range(blocks.shape[1]):
            bits = _bit_count(blocks[column, block])  # pyright: ignore[reportCallIssue]
            blocks[column, block] |= np.uint64(before) << np.uint64(32)
            before += bits


@intrinsic
def _bit_count(typingctx, value):
    def code(context, builder, signature, arguments):
        return builder.trunc(builder.ctpop(arguments[0]), context.get_value_type(types.int32))

    return types.int32(types.uint64), code


# ---- searching -------------------------------------------------------------------------------------------------------


@compiled()
def _rare_posting(rows, row):
    """Return which of a rare word's postings is the passage's, or -1."""
    start, length = 0, len(rows)
    while length > 1:  # without branches: a wrong guess would cost more than a step
        half = length >> 1
        start += half if rows[start + half] <= row else 0
        length -= half
    return start if length and rows[start] == row else -1


@compiled()
def _add(lists, word, times, weight, candidates, totals, scratch):
    """Add a word's scores times its weight, `times` times, to the totals of candidates.

    Args:
      word, times, weight: the word, how often the question has it, and its weight each time.
      candidates: rows, int32.
      totals: their scores so far, float32.
      scratch: scratch, int32 [2, at least as many].
    """
    start, end = lists.starts[word], lists.starts[word + 1]
    which, where = scratch[0], scratch[1]
    count = 0
    # Two loops, without branches: the first waits for the memory of many candidates at once.
    if word >= lists.first_common:
        blocks = lists.blocks[word - lists.first_common]
        for i in range(len(candidates)):
            row = candidates[i]
            block, bit = blocks[row >> 5], np.uint64(1) << np.uint64(row & 31)
            which[count] = i
            below = _bit_count(block & (bit - np.uint64(1)))  # pyright: ignore[reportCallIssue]
            where[count] = np.int64(block >> np.uint64(32)) + below
            count += (block & bit) != 0
    else:
        rows = lists.rows[start:end]
        for i in range(len(candidates)):
            at = _rare_posting(rows, candidates[i])
            which[count] = i
            where[count] = at
            count += at >= 0
    scores = lists.scores[start:end]
    for _ in range(times):
        for i in range(count):
            totals[which[i]] += weight * scores[where[i]]


@compiled()
def _largest_first(values, k):
    """Move the k largest to the front, the k-th to the end of those (Hoare's selection; any order besides)."""
    left, right, place = 0, len(values) - 1, k - 1
    while left < right:
        pivot = values[(left + right) >> 1]
        i, j = left, right
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if place <= j:
            right = j
        elif place >= i:
            left = i
        else:
            return


@compiled()
def _kth_best(totals, k, least, room):
    """Return a lower bound of the k-th largest of `totals`: exactly that, where it is above `least`.

    Args:
      totals: float32 [any number].
      k: at least 1.
      least: a bound that is known already.
      room: scratch, float32, longer than k.
    """
    count = 0
    for total in totals:
        if total > least:
            room[count] = total
            count += 1
            if count == len(room):
                # Only what is above the k-th best so far can lift it: few of those to come.
                _largest_first(room, k)
                least = room[k - 1]
                count = k
    if count < k:
        return least
    _largest_first(room[:count], k)
    return room[k - 1]


@compiled()
def _completed_kth_best(lists, distinct, times, weights, rows, totals, k, least, room, scratch):
    """Return a lower bound of the k-th best score, from the passages that are the best so far, scored to the end.

    Args:
      distinct, times, weights: the words that are not in the totals yet.
      rows, totals: passages and their scores so far, any number.
      k: at least 1.
      least: a bound that is known already.
      room: scratch, float32, longer than k + _MORE_LEADERS.
      scratch: scratch, int32 [2, any number more than that].
    """
    if len(rows) < k:
        return least
    number = min(k + _MORE_LEADERS, len(rows))
    so_far = _kth_best(totals, number, np.float32(0), room)
    leaders, scores = np.empty(number, np.int32), np.empty(number, np.float32)
    count = 0
    for i in range(len(rows)):
        if totals[i] >= so_far and count < number:
            leaders[count] = rows[i]
            scores[count] = totals[i]
            count += 1
    for i in range(len(distinct)):
        _add(lists, distinct[i], times[i], weights[i], leaders, scores, scratch)
    return _kth_best(scores, k, least, room)


@compiled()
def _key(score, row):
    """One integer that is larger for a higher score, and with equal scores for a lower row."""
    return (np.uint64(np.float32(score).view(np.uint32)) << np.uint64(32)) | np.uint64(0xFFFFFFFF - row)


@compiled()
def _add_to_all(rows, scores, times, weight, sums, seen_rows, seen):
    """Add a word's postings times its weight, `times` times, to the sums; return the number of rows seen so far, with
    this word's. A sum of -inf stays one, and its row is never seen."""
    for at in range(len(rows)):
        row, score = rows[at], weight * scores[at]
        before = sums[row]
        after = before + score
        seen_rows[seen] = row
        # A product of tiny numbers may be 0, which leaves the row unseen.
        seen += (before == 0) & (after > 0)
        sums[row] = after
    for _ in range(1, times):
        for at in range(len(rows)):
            sums[rows[at]] += weight * scores[at]
    return seen


@compiled()
def _collect(scratch, seen, least):
    """Make candidates of the seen rows whose sums reach `least`, zero all their sums, and return their number."""
    sums, rows, candidates, totals = scratch.sums, scratch.rows, scratch.candidates, scratch.totals
    count = 0
    for i in range(seen):
        row = rows[i]
        candidates[count] = row
        totals[count] = sums[row]
        count += sums[row] >= least
        sums[row] = 0
    return count


@compiled()
def _keep(candidates, totals, least, rest, rest_of_block):
    """Keep the candidates that can reach `least` with the words that are left; return how many."""
    count = 0
    for i in range(len(candidates)):
        row, total = candidates[i], totals[i]
        candidates[count] = row
        totals[count] = total
        count += total + (rest + rest_of_block[row >> 6]) >= least
    return count


@compiled()
def _bound_rest(lists, distinct, times, weights, number, rest, rest_of_block):
    """Bound what the words from each on can add to a passage; return the number of words before the common ones.

    Args:
      distinct, times, weights: the different words, int32, ascending, how often each occurs in the question, and its
        weight, float32.
      number: the number of different words.
      rest: the bounds for any passage, float32 [number + 1]; changed.
      rest_of_block: the bounds of the common words for each block, float32 [common words + 1, blocks]. Hardly a
        passage has the best score of several words, so they are much closer.
    """
    common = number
    rest[number] = 0
    rest_of_block[0] = 0
    while common and distinct[common - 1] >= lists.first_common:
        common -= 1
        best_of_block = lists.best_of_block[distinct[common] - lists.first_common]
        before, bounds = rest_of_block[number - common - 1], rest_of_block[number - common]
        factor = np.float32(times[common]) * weights[common]
        for block in range(len(bounds)):
            bounds[block] = before[block] + factor * best_of_block[block]
        rest[common] = _largest(bounds.view(np.int32))
    for i in range(common - 1, -1, -1):
        rest[i] = rest[i + 1] + np.float32(times[i]) * (weights[i] * lists.best[distinct[i]])
    return common


@compiled()
def _largest(bits):
    """Return the largest of float32 numbers that are not negative, given as integers: those take many at a time."""
    largest = np.int32(0)
    for number in bits:
        largest = max(largest, number)
    bits_of_largest = np.int32(largest)  # Numba takes a view of a name only where it has one definition
    return bits_of_largest.view(np.float32)


@compiled()
def search(lists, scratch, base, words, weights, ends, first, last, least, k, keys):
    """Find the k best passages of the questions from `first` to `last`, of those that hold one of their words.

    Args:
      base: the number that is added to every passage's score in the end, float32 [B].
      words: the words of all questions, int32, ascending within a question.
      weights: the factor of each word's scores, float32, above 0; equal for a word that a question repeats.
      ends: the place where each question's words begin, int64 [B + 1].
      first, last: the range of questions to search.
      least: a score for every question below which no passage is wanted, float32 [B].
      k: hits per question.
      keys: the result, uint64 [B, k], descending: see `_key`; 0 behind the last hit.
    """
    room = np.empty(2 * (k + _MORE_LEADERS), np.float32)
    most = 1
    for question in range(first, last):
        most = max(most, ends[question + 1] - ends[question])
    distinct, times, each = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.float32)
    rest = np.empty(most + 1, np.float32)
    for question in range(first, last):
        length = ends[question + 1] - ends[question]
        own = slice(ends[question], ends[question + 1])
        number = _count_words(words[own], weights[own], distinct, times, each)
        if base[question] != 0:
            # The base may swallow small sums, so that ties must be looked for everywhere.
            count = _score_all(lists, scratch, distinct[:number], times[:number], each[:number], base[question])
        else:
            common = _bound_rest(lists, distinct, times, each, number, rest, scratch.rest_of_block)
            # Float32 sums of so many numbers, of the scores and of the rest, are off by less than this factor.
            slack = 1 + (length + 2) * 2.4e-7
            count = _score_best(
                lists,
                scratch,
                distinct[:number],
                times[:number],
                each[:number],
                rest,
                common,
                least[question],
                slack,
                k,
                room,
            )
        _write_best(scratch.candidates[:count], scratch.totals[:count], keys[question])


@compiled()
def _count_words(words, weights, distinct, times, each):
    """Write the different words of a question, how often each occurs and its weight; return their number."""
    number = 0
    for i in range(len(words)):
        word = words[i]
        if number and distinct[number - 1] == word:
            times[number - 1] += 1
        else:
            distinct[number] = word
            times[number] = 1
            each[number] = weights[i]
            number += 1
    return number


@compiled()
def _score_all(lists, scratch, distinct, times, weights, base):
    """Make every passage that holds one of the words a candidate, and score it; return the number of candidates."""
    sums, candidates, totals = scratch.sums, scratch.candidates, scratch.totals
    seen = 0
    for i in range(len(distinct)):
        start, end = lists.starts[distinct[i]], lists.starts[distinct[i] + 1]
        postings = lists.rows[start:end], lists.scores[start:end]
        seen = _add_to_all(postings[0], postings[1], times[i], weights[i], sums, scratch.rows, seen)
    count = 0
    for row in range(len(sums)):
        candidates[count] = row
        totals[count] = sums[row] + base
        if sums[row] > 0:
            count += 1
            sums[row] = 0
    return count


@compiled()
def _score_best(lists, scratch, distinct, times, weights, rest, common, least, slack, k, room):
    """Score the passages that can be among the k best of a question, as candidates of `scratch`; return their number.

    The rare words are added to every passage that holds them, until the words that are left cannot lift a passage
    without any of those to the k best. From there on they are only looked up, in the passages that have a chance.

    Args:
      distinct, times, weights: the different words, int32, ascending, how often each occurs, and its weight.
      rest, common: see `_bound_rest`.
      least: a score below which no passage is wanted.
      slack: the factor by which float32 sums may be off.
      k: hits.
      room: scratch, float32, longer than k + _MORE_LEADERS.
    """
    sums, rows, candidates, totals = scratch.sums, scratch.rows, scratch.candidates, scratch.totals
    number, threshold = len(distinct), least
    seen, i = 0, 0
    # First part: add whole posting lists to `sums` while a passage without the first i words could still be a hit.
    while i < number and threshold / slack <= rest[i]:
        start, end = lists.starts[distinct[i]], lists.starts[distinct[i] + 1]
        postings = lists.rows[start:end], lists.scores[start:end]
        seen = _add_to_all(postings[0], postings[1], times[i], weights[i], sums, rows, seen)
        i += 1
        if i == number or threshold / slack > rest[i]:
            continue
        # Is a closer threshold worth its while? Where the next word is rare, or much can still come, it is not.
        looked_at = _LOOKED_AT * (k + _MORE_LEADERS)
        if lists.starts[distinct[i] + 1] - lists.starts[distinct[i]] < looked_at:
            continue
        if rest[i] < 2 * threshold or (threshold == least and rest[i] < rest[0] - rest[i]):
            # The passages with the rarest words, which came first, are likely to be the best ones.
            size = min(seen, looked_at)
            for j in range(size):
                totals[j] = sums[rows[j]]
            left = distinct[i:], times[i:], weights[i:]
            threshold = _completed_kth_best(
                lists, left[0], left[1], left[2], rows[:size], totals[:size], k, threshold, room, scratch.matches
            )

    # `candidates` and `totals` [held]: the passages that the remaining words can lift to the threshold.
    count = _collect(scratch, seen, threshold / slack - rest[i])
    if i < number:
        left = distinct[i:], times[i:], weights[i:]
        held = candidates[:count], totals[:count]
        threshold = _completed_kth_best(
            lists, left[0], left[1], left[2], held[0], held[1], k, threshold, room, scratch.matches
        )
    # Second part: look each remaining word up in the candidates, of which each step leaves fewer.
    while i < number:
        rare_rest = rest[i] - rest[common] if i < common else np.float32(0)
        of_block = scratch.rest_of_block[number - max(i, common)]
        count = _keep(candidates[:count], totals[:count], threshold / slack, rare_rest, of_block)
        _add(lists, distinct[i], times[i], weights[i], candidates[:count], totals[:count], scratch.matches)
        threshold = _kth_best(totals[:count], k, threshold, room)
        i += 1
    return count


@compiled()
def _write_best(rows, totals, keys):
    """Write the keys of the best passages, descending; 0 behind the last."""
    packed = np.empty(len(rows), np.uint64)
    for i in range(len(rows)):
        packed[i] = _key(totals[i], rows[i])
    hits = min(len(keys), len(rows))
    _largest_first(packed, hits)
    best = packed[:hits]
    best.sort()
    keys[:hits] = best[::-1]
    keys[hits:] = 0


@compiled()
def score(lists, base, words, rows, scores):
    """Write the BM25 scores of some passages for one question, whose words all have the weight 1.

    Args:
      base: a number that is added to every score in the end.
      words: the question's words, int32, ascending.
      rows: rows, int64.
      scores: the result, float32, as many.
    """
    for i in range(len(rows)):
        total = np.float32(0)
        for word in words:
            start, end = lists.starts[word], lists.starts[word + 1]
            at = _rare_posting(lists.rows[start:end], rows[i])
            if at >= 0:
                total += lists.scores[start + at]
        scores[i] = total + base
