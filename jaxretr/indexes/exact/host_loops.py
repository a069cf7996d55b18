"""The compiled loops of exact search on a host's processor.

Everything compiled is in this file: Numba decides by a file's time stamp alone what to compile again.

Two scores are computed here. `_tile` multiplies a few rows with a panel of questions in float32, in the processor's
registers, and compares the scores where they are, so that no score of a row that cannot be found is ever written. Numba
does not keep an array in registers; this loop is therefore given to LLVM as vectors, which it maps to what the processor
has. On an AVX2 processor it is faster than OpenBLAS without the comparison.

What may belong to the top k is scored again by `inner_product`, whose result depends on nothing but the question and the
row: products of float32 numbers are exact in float64, their sum in a fixed order is then rounded to the 24 bits of a
float32, whatever its exponent. So equal rows have equal scores in every batch, block, shard and slab, which float32
matrix products do not give: their last bits depend on a row's place.
"""

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from jaxretr.runtime.parallel.numba_loops import compiled

# Float32 numbers of a vector register.
LANES = 16 if binding.get_host_cpu_features().get("avx512f") else 8

# Rows and vectors of questions of a tile: as many sums as there are registers for.
_TILE_ROWS, _VECTORS = 6, 2

# Questions of a panel.
WIDTH = _VECTORS * LANES

# Rows whose longest is looked for at a time, which stay in the second cache, and in the first one for a few questions.
_NEIGHBOURS, _FEW_NEIGHBOURS = 96, 24

# With a longer row or one whose square is not between these, float32 may overflow or lose what counts.
_LONGEST, _SQUARES = 2.0**110, (2.0**-60, 2.0**100)

# A number outside of these is not a normal float32 and is rounded after a shift.
_LEAST, _MOST, _SHIFT = 2.0**-126, 2.0**127, 2.0**180

# Scores of which the loop asks whether there is a candidate before it looks at each.
_WIDTH = 32


def panels_of(queries: np.ndarray) -> np.ndarray:
    """Questions float32 [B, D] -> [panels, D, WIDTH], zeros where there are none."""
    padded = np.pad(queries, ((0, -len(queries) % WIDTH), (0, 0)))
    return np.ascontiguousarray(padded.reshape(len(padded) // WIDTH, WIDTH, queries.shape[1]).transpose(0, 2, 1))


def _tile_of(rows: int, vectors: int):
    """Make a compiled function for tiles of so many rows and a panel of `vectors * LANES` questions.

    Returns:
      f(row, last, panel, dim, bounds, slopes, longest, scores) -> bool, of addresses (row, panel, bounds, slopes, scores)
      and numbers: writes the scores float32 [rows, questions] of the rows from address `row` on with a panel
      [dim, questions], and returns whether any of them is above bounds - longest * slopes, float32 [questions]. Rows after
      the `last`, counted from `row`, are copies of it.
    """

    @intrinsic
    def tile(typingctx, row, last, panel, dim, bounds, slopes, longest, scores):
        address, count = types.uintp, types.intp
        signature = types.boolean(address, count, address, count, address, address, types.float32, address)

        def code(context, builder, signature, arguments):
            return _tile_code(builder, rows, vectors, *arguments)

        return signature, code

    return tile


def _tile_code(builder, rows, vectors, row, last, panel, dim, bounds, slopes, longest, scores):
    number, vector, size = ir.FloatType(), ir.VectorType(ir.FloatType(), LANES), row.type
    width = 4 * LANES  # bytes of a vector
    zero = ir.Constant(vector, [0.0] * LANES)
    multiply_add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fmuladd.v{LANES}f32"
    )

    def constant(value):
        return ir.Constant(size, value)

    def pointer(start, offset, kind):
        return builder.inttoptr(builder.add(start, offset), kind.as_pointer())

    def load(start, offset):
        value = builder.load(pointer(start, offset, vector))
        value.align = 4
        return value

    def everywhere(value):
        nothing = ir.Constant(vector, ir.Undefined)
        first = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    # `starts`: the address of each row of the tile; beyond the last row, of the last one again.
    stride = builder.mul(dim, constant(4))
    starts = []
    for r in range(rows):
        index = builder.select(builder.icmp_signed("<", constant(r), last), constant(r), last)
        starts.append(builder.add(row, builder.mul(index, stride)))

    # One dimension at a time: each row's number, in all lanes, times a vector of questions, added to their sum.
    before = builder.block
    loop, done = builder.append_basic_block("dimensions"), builder.append_basic_block("compare")
    builder.branch(loop)
    builder.position_at_end(loop)
    place = builder.phi(size)
    place.add_incoming(constant(0), before)
    sums = [[builder.phi(vector) for _ in range(vectors)] for _ in range(rows)]
    offset = builder.mul(place, constant(vectors * width))
    questions = [load(panel, builder.add(offset, constant(v * width))) for v in range(vectors)]
    in_row = builder.mul(place, constant(4))
    results = []
    for r in range(rows):
        value = everywhere(builder.load(pointer(starts[r], in_row, number)))
        results.append([builder.call(multiply_add, [value, questions[v], sums[r][v]]) for v in range(vectors)])
    following = builder.add(place, constant(1))
    place.add_incoming(following, loop)
    for r in range(rows):
        for v in range(vectors):
            sums[r][v].add_incoming(zero, before)
            sums[r][v].add_incoming(results[r][v], loop)
    builder.cbranch(builder.icmp_signed("<", following, dim), loop, done)

    # Write the sums, and compare each with its question's limit while it is in a register.
    builder.position_at_end(done)
    any_above = ir.Constant(ir.VectorType(ir.IntType(1), LANES), [0] * LANES)
    for v in range(vectors):
        margin = builder.fmul(everywhere(longest), load(slopes, constant(v * width)))
        limit = builder.fsub(load(bounds, constant(v * width)), margin)
        for r in range(rows):
            builder.store(results[r][v], pointer(scores, constant((r * vectors + v) * width), vector)).align = 4
            any_above = builder.or_(any_above, builder.fcmp_ordered(">", results[r][v], limit))
    bits = builder.bitcast(any_above, ir.IntType(LANES))
    return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))


@intrinsic
def _sum_of_eights(typingctx, query, row, count):
    """Sum the products of `count` numbers, a multiple of 8, from the addresses of a float64 and a float32 on."""

    def code(context, builder, signature, arguments):
        query, row, count = arguments
        wide, single = ir.VectorType(ir.DoubleType(), 8), ir.VectorType(ir.FloatType(), 8)
        zero, size = ir.Constant(wide, [0.0] * 8), count.type
        before = builder.block
        test, loop, done = (builder.append_basic_block(name) for name in ("test", "eights", "sum"))
        builder.branch(test)
        builder.position_at_end(test)
        place, total = builder.phi(size), builder.phi(wide)
        builder.cbranch(builder.icmp_signed("<", place, count), loop, done)
        builder.position_at_end(loop)

        def load(start, width, vector):
            address = builder.add(start, builder.mul(place, ir.Constant(size, width)))
            value = builder.load(builder.inttoptr(address, vector.as_pointer()))
            value.align = 4
            return value

        products = builder.fmul(load(query, 8, wide), builder.fpext(load(row, 4, single), wide))
        added = builder.fadd(total, products)
        for value, start, following in (
            (place, ir.Constant(size, 0), builder.add(place, ir.Constant(size, 8))),
            (total, zero, added),
        ):
            value.add_incoming(start, before)
            value.add_incoming(following, loop)
        builder.branch(test)
        builder.position_at_end(done)
        lanes = [builder.extract_element(total, ir.Constant(ir.IntType(32), i)) for i in range(8)]
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [builder.fadd(*pair) for pair in zip(lanes[:half], lanes[half:], strict=True)]
        return lanes[0]

    return types.float64(types.uintp, types.uintp, types.intp), code


@compiled()
def inner_product(query, row):
    """The inner product of a question float64 [D] with a row float32 [D], summed in an order that D alone decides."""
    eights = len(query) - len(query) % 8
    total = _sum_of_eights(np.uintp(query.ctypes.data), np.uintp(row.ctypes.data), eights)  # pyright: ignore[reportCallIssue]
    for i in range(eights, len(query)):
        total += query[i] * np.float64(row[i])
    return total


@compiled()
def rounded(score):
    """Round a float64 to the 24 bits of a float32, half to even, whatever its exponent."""
    size = abs(score)
    if size < _LEAST:
        return np.float64(np.float32(score * _SHIFT)) / _SHIFT
    if size >= _MOST:
        return np.float64(np.float32(score / _SHIFT)) * _SHIFT
    return np.float64(np.float32(score))


@compiled()
def pair_scores(query, rows, scores):
    """Write the scores float64 [n] of a question float64 [D] with rows float32 [n, D]."""
    for i in range(len(rows)):
        scores[i] = rounded(inner_product(query, rows[i]))


@compiled()
def _rounded_down(score):
    """A float32 that is close to `score` and not above it."""
    return np.float32(score - abs(score) * 2.0**-22)


@compiled(fastmath=True)
def _largest_square(rows, start, stop):
    largest = np.float32(0)
    for i in range(start, stop):
        square = np.float32(0)
        for d in range(rows.shape[1]):
            square += rows[i, d] * rows[i, d]
        largest = max(largest, square)
    return np.float64(largest)


@compiled()
def longest_of(rows, start, stop):
    """The length of the longest of the rows [start, stop), or slightly more; never less."""
    square = _largest_square(rows, start, stop)
    if not _SQUARES[0] < square < _SQUARES[1]:
        largest = np.float32(0)
        for i in range(start, stop):
            for d in range(rows.shape[1]):
                largest = max(largest, abs(rows[i, d]))
        square = np.float64(largest) * np.float64(largest) * rows.shape[1]
    return np.sqrt(square) * (1 + 2.0**-10)


@compiled()
def _kth_largest(scores, k):
    """The k-th largest score, by Hoare's selection; NumPy's would take Numba ten seconds to compile."""
    scores = scores.copy()
    low, high = 0, len(scores) - 1
    while low < high:
        pivot, i, j = scores[(low + high) // 2], low, high
        while i <= j:
            while scores[i] > pivot:
                i += 1
            while scores[j] < pivot:
                j -= 1
            if i <= j:
                scores[i], scores[j] = scores[j], scores[i]
                i, j = i + 1, j - 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return scores[k - 1]


@compiled()
def _cut(scores, rows, count, k):
    """Keep the k best of a list, the first of equal ones, in their order; return the k-th best."""
    bound = _kth_largest(scores[:count], k)
    equal = k
    for i in range(count):
        equal -= scores[i] > bound
    place = 0
    for i in range(count):
        if scores[i] > bound or (scores[i] == bound and equal > 0):
            equal -= scores[i] == bound
            scores[place], rows[place] = scores[i], rows[i]
            place += 1
    return bound


@compiled()
def _consider(score, row, k, scores, rows, counts, b, bounds):
    """Add a row to the list of question b if it may belong to its k best; return whether the bound rose."""
    count = counts[b]
    if not score > bounds[b]:
        return False
    scores[b, count], rows[b, count] = score, row
    counts[b] = count + 1
    if count + 1 < scores.shape[1]:
        return False
    bounds[b] = _cut(scores[b], rows[b], count + 1, k)
    counts[b] = k
    return True


_tile = _tile_of(_TILE_ROWS, _VECTORS)


@compiled()
def scan_rows(values, first, allowed, queries, panels, slopes, least, k, scores, rows, counts, bounds):
    """Add the rows that may belong to the top k to the lists of candidates.

    Args:
      values: rows float32 [n, D], which come after those that were scanned before.
      first: the number of values[0].
      allowed: bool [n], or empty: all.
      queries: scaled questions float64 [B, D].
      panels: the same questions as float32, see `panels_of`.
      slopes: the error bound of a float32 score per unit of the row's length, float32 [B].
      least: the part of the error bound that does not depend on the row, float32 [B].
      k: results per question.
      scores, rows, counts: the candidates of each question in the order of rows, float64 [B, length], int32 [B, length],
        and how many, int64 [B]; changed.
      bounds: float64 [B], a lower bound of the k-th best score; changed.
    """
    dim = values.shape[1]
    # `limits` and `slope` [panels, WIDTH]: a row is a candidate if its score is above limit - length * slope.
    limits = np.full((len(panels), WIDTH), np.float32(np.inf), np.float32)
    slope = np.zeros((len(panels), WIDTH), np.float32)
    for b in range(len(queries)):
        limits[b // WIDTH, b % WIDTH], slope[b // WIDTH, b % WIDTH] = _rounded_down(bounds[b]) - least[b], slopes[b]
    # `products` [_TILE_ROWS, WIDTH]: the scores of one tile. `_tile` takes addresses in bytes, not arrays.
    products = np.empty((_TILE_ROWS, WIDTH), np.float32)
    in_rows, in_panels, in_limits = values.ctypes.data, panels.ctypes.data, limits.ctypes.data
    in_slope, in_products = slope.ctypes.data, products.ctypes.data
    for start in range(0, len(values), _NEIGHBOURS):
        stop = min(start + _NEIGHBOURS, len(values))
        longest = longest_of(values, start, stop)
        if longest > _LONGEST:
            # Float32 says nothing about such rows; the bounds may have risen afterwards.
            _scan_exactly(values, start, stop, first, allowed, queries, k, scores, rows, counts, bounds)
            for b in range(len(queries)):
                limits[b // WIDTH, b % WIDTH] = _rounded_down(bounds[b]) - least[b]
            continue
        long = np.float32(longest)
        for p in range(len(panels)):
            panel = np.uintp(in_panels + 4 * p * dim * WIDTH)
            limit, slope_of_panel = np.uintp(in_limits + 4 * p * WIDTH), np.uintp(in_slope + 4 * p * WIDTH)
            for at in range(start, stop, _TILE_ROWS):
                row, last = np.uintp(in_rows + 4 * at * dim), stop - at - 1
                if not _tile(row, last, panel, dim, limit, slope_of_panel, long, np.uintp(in_products)):  # pyright: ignore[reportCallIssue]
                    continue
                # A score of the tile is above its limit: compute the exact score of each such row.
                for i in range(min(_TILE_ROWS, stop - at)):
                    if len(allowed) and not allowed[at + i]:
                        continue
                    for lane in range(WIDTH):
                        if products[i, lane] > limits[p, lane] - long * slope[p, lane]:
                            b = p * WIDTH + lane
                            score = rounded(inner_product(queries[b], values[at + i]))
                            if _consider(score, first + at + i, k, scores, rows, counts, b, bounds):
                                limits[p, lane] = _rounded_down(bounds[b]) - least[b]


@compiled()
def scan_few(values, first, allowed, queries, single, slopes, least, k, scores, rows, counts, bounds):
    """Do what `scan_rows` does for a few questions, float32 `single` [B, D], as fast as rows can be read."""
    products = np.empty((len(queries), _FEW_NEIGHBOURS), np.float32)
    for start in range(0, len(values), _FEW_NEIGHBOURS):
        stop = min(start + _FEW_NEIGHBOURS, len(values))
        _products_of_few(single, values[start:stop], products)
        longest = longest_of(values, start, stop)
        if longest > _LONGEST:
            _scan_exactly(values, start, stop, first, allowed, queries, k, scores, rows, counts, bounds)
            continue
        long = np.float32(longest)
        for b in range(len(queries)):
            limit = _rounded_down(bounds[b]) - least[b] - long * slopes[b]
            for i in range(stop - start):
                if products[b, i] > limit and (not len(allowed) or allowed[start + i]):
                    score = rounded(inner_product(queries[b], values[start + i]))
                    _consider(score, first + start + i, k, scores, rows, counts, b, bounds)


@compiled()
def _scan_exactly(values, start, stop, first, allowed, queries, k, scores, rows, counts, bounds):
    """Do what `scan_rows` does for rows [start, stop) of which float32 scores say nothing."""
    for i in range(start, stop):
        if not len(allowed) or allowed[i]:
            for b in range(len(queries)):
                score = rounded(inner_product(queries[b], values[i]))
                _consider(score, first + i, k, scores, rows, counts, b, bounds)


@compiled(fastmath=True)
def _products_of_few(queries, rows, scores):
    """Write the float32 inner products [B, n] of queries [B, D] with rows [n, D], each of which is read once.

    Four questions and two rows at a time are what a processor's registers hold.
    """
    batch, dim = queries.shape
    fours = batch - batch % 4 if len(rows) > 1 else 0
    zero = np.float32(0)
    for pair in range(0, len(rows), 2):
        i = min(pair, max(len(rows) - 2, 0))  # the last two rows, if one is left over
        for b in range(0, fours, 4):
            # The products of row i with four questions, s0 to s3, and those of row i + 1, t0 to t3.
            s0 = s1 = s2 = s3 = t0 = t1 = t2 = t3 = zero
            for d in range(dim):
                x, y = rows[i, d], rows[i + 1, d]
                s0 += x * queries[b, d]
                s1 += x * queries[b + 1, d]
                s2 += x * queries[b + 2, d]
                s3 += x * queries[b + 3, d]
                t0 += y * queries[b, d]
                t1 += y * queries[b + 1, d]
                t2 += y * queries[b + 2, d]
                t3 += y * queries[b + 3, d]
            scores[b, i], scores[b + 1, i], scores[b + 2, i], scores[b + 3, i] = s0, s1, s2, s3
            scores[b, i + 1], scores[b + 1, i + 1], scores[b + 2, i + 1], scores[b + 3, i + 1] = t0, t1, t2, t3
        # The questions that are left, one by one.
        for b in range(fours, batch):
            for j in range(i, min(i + 2, len(rows))):
                s0 = zero
                for d in range(dim):
                    s0 += rows[j, d] * queries[b, d]
                scores[b, j] = s0


@compiled()
def scan_scores(products, eps, values, first, allowed, queries, k, scores, rows, counts, bounds):
    """Do what `scan_rows` does for rows whose products [B, n] are known to within eps, float32 [B].

    Returns the number of products that were scored again.
    """
    num_rescored = 0
    for b in range(len(products)):
        of_question, limit = products[b], _rounded_down(bounds[b]) - eps[b]
        for at in range(0, len(values), _WIDTH):
            if at + _WIDTH <= len(values):
                has_candidate = np.int32(0)
                for i in range(_WIDTH):
                    has_candidate |= np.int32(of_question[at + i] > limit)
                if not has_candidate:
                    continue
            for i in range(at, min(at + _WIDTH, len(values))):
                if not of_question[i] > limit or (len(allowed) and not allowed[i]):
                    continue
                num_rescored += 1
                score = rounded(inner_product(queries[b], values[i]))
                if _consider(score, first + i, k, scores, rows, counts, b, bounds):
                    limit = _rounded_down(bounds[b]) - eps[b]
    return num_rescored


@compiled()
def cut_lists(scores, rows, counts, k):
    """Leave the first k of every list [B, length], in the order of rows; missing ones are -inf and the last row there is."""
    for b in range(len(scores)):
        if counts[b] > k:
            _cut(scores[b], rows[b], counts[b], k)
            counts[b] = k
        scores[b, counts[b] : k] = -np.inf
        rows[b, counts[b] : k] = np.iinfo(np.int32).max


@compiled()
def widen(bits, wide):
    """Write the float32 numbers of bfloat16 bits [n, D]."""
    for i in range(len(bits)):
        for d in range(bits.shape[1]):
            wide[i, d] = _as_float(np.uint32(bits[i, d]) << np.uint32(16))  # pyright: ignore[reportCallIssue]


@compiled()
def widen_scaled(numbers, scales, wide):
    """Write int8 numbers [n, D], each row times its scale, as float32."""
    for i in range(len(numbers)):
        for d in range(numbers.shape[1]):
            wide[i, d] = np.float32(numbers[i, d]) * scales[i]


@intrinsic
def _as_float(typingctx, bits):
    def code(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], context.get_value_type(types.float32))

    return types.float32(types.uint32), code


@compiled(fastmath=True)
def round_rows(bits, rounded):
    """Round float32 rows [n, D], given as bits, to bfloat16 bits, half to even.

    Returns the squares of the largest distance of a row to its rounded one, and of the largest length of a rounded row.
    """
    error = longest = np.float32(0)
    for i in range(len(bits)):
        shift = length = np.float32(0)
        for d in range(bits.shape[1]):
            exact = bits[i, d]
            odd = (exact >> np.uint32(16)) & np.uint32(1)
            high_bits = np.uint32((exact + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF0000))
            rounded[i, d] = np.uint16(high_bits >> np.uint32(16))
            value = _as_float(high_bits)  # pyright: ignore[reportCallIssue]
            away = _as_float(exact) - value  # pyright: ignore[reportCallIssue]
            shift += away * away
            length += value * value
        error, longest = max(error, shift), max(longest, length)
    return error, longest
