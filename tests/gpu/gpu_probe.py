"""What a GPU's instructions gave beside what the emulator's gave (probe_fragments), and which way of
adding explains the tensor core's sums."""
import collections
import itertools
import struct

FRACTION_BITS = 23
UNIT = 400  # sums are exact integers, in units of 2^-UNIT
EXACT = 1000  # extra bits with which nothing is cut off

# A way of adding 16 products and C: `group` products at a time, each cut off (towards zero) below
# `extra` bits past the fraction of the largest, and the sum of a group cut off or rounded to fp32.
# A product's exponent is either that of its two factors added, or that of the product itself.
Model = collections.namedtuple("Model", "group extra rounds normalised")
MODELS = [Model(*m) for m in itertools.product((4, 8, 16), (0, 1, 2, 3), ("down", "nearest"),
                                               (False, True))]
MODELS += [Model(group, EXACT, rounds, True) for group in (1, 4, 8, 16)
           for rounds in ("down", "nearest")]


def read(path):
    """{(name, case): [word, ...]} of a file of probe_fragments."""
    found = {}
    with open(path, encoding="ascii") as lines:
        for line in lines:
            head, _, words = line.partition(":")
            name, _, number = head.rpartition(" ")
            # The test framework has lines of its own.
            if number.isdigit() and words.strip():
                found[name, int(number)] = [int(w, 16) for w in words.split()]
    return found


def is_nan(word):
    return word & 0x7FFFFFFF > 0x7F800000


def as_float(word):
    return struct.unpack("<f", struct.pack("<I", word))[0]


def as_units(word):
    """(exact value in units, exponent) of a finite fp32; the exponent of a zero is None."""
    numerator, denominator = as_float(word).as_integer_ratio()
    value = (numerator << UNIT) // denominator
    return value, (abs(value).bit_length() - 1 if value else None)


def cut(value, quantum_bits):
    """Towards zero, to a multiple of 2^quantum_bits units."""
    if quantum_bits <= 0:
        return value
    magnitude = abs(value) >> quantum_bits << quantum_bits
    return -magnitude if value < 0 else magnitude


def to_fp32(value, rounds):
    if value == 0:
        return 0
    drop = abs(value).bit_length() - 1 - FRACTION_BITS
    if drop <= 0:
        return value
    if rounds == "down":
        return cut(value, drop)
    magnitude = abs(value)
    kept, rest, half = magnitude >> drop, magnitude & ((1 << drop) - 1), 1 << (drop - 1)
    kept += rest > half or (rest == half and kept & 1)
    return -(kept << drop) if value < 0 else kept << drop


def add_up(c, products, model):
    """c and products: (value, exponent) each; a product has both exponents. The sum in units."""
    sum_value = c[0]
    for first in range(0, len(products), model.group):
        terms = [(p[0], p[2] if model.normalised else p[1])
                 for p in products[first:first + model.group] if p[0]]
        if sum_value:
            terms.append((sum_value, abs(sum_value).bit_length() - 1))
        if not terms:
            continue
        quantum_bits = max(t[1] for t in terms) - FRACTION_BITS - model.extra
        sum_value = to_fp32(sum(cut(t[0], quantum_bits) for t in terms), model.rounds)
    return sum_value


def products_of(a, b, row, column):
    """Of the row and the column: (value, exponents of the factors added, exponent of the value)."""
    found = []
    for k in range(16):
        x, y = as_units(a[row * 16 + k]), as_units(b[k * 8 + column])
        value = x[0] * y[0] >> UNIT
        if value:
            found.append((value, x[1] + y[1] - UNIT, abs(value).bit_length() - 1))
        else:
            found.append((0, None, None))
    return found


def sums(probe):
    """(products, c, word that the device gave) of every sum that is not exact."""
    for (name, number), got in probe.items():
        if not name.startswith("sum") or "_" in name:
            continue
        a, b, c = (probe[f"{name}_{side}", number] for side in "abc")
        for lane, i in itertools.product(range(32), range(4)):
            row, column = lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2
            yield products_of(a, b, row, column), as_units(c[row * 8 + column]), got[lane * 4 + i]


def rounding(probe):
    """What is to be told of the sums: how far from the exact ones, and the models that explain all
    of them, or the one that explains most."""
    matches = collections.Counter({m: 0 for m in MODELS})
    n = n_nearest = 0
    worst = 0.0
    for products, c, word in sums(probe):
        got = as_units(word)[0]
        exact = c[0] + sum(p[0] for p in products)
        largest = max([abs(p[0]) for p in products] + [abs(c[0])])
        worst = max(worst, abs(got - exact) / largest * 2.0 ** FRACTION_BITS if largest else 0.0)
        n += 1
        n_nearest += got == to_fp32(exact, "nearest")
        for model in MODELS:
            matches[model] += got == add_up(c, products, model)
    explains_all = [m for m in MODELS if matches[m] == n]
    best = max(MODELS, key=lambda m: matches[m])
    return {"sums": n, "as_the_exact_sum_rounded_to_nearest": n_nearest,
            "worst_error_in_ulps_of_the_largest_term": round(worst, 3),
            "models_that_give_every_bit": [m._asdict() for m in explains_all],
            "best_model": {**best._asdict(), "gives": matches[best]}}


def difference(want, got):
    """Where the two first differ, None where they do not. One NaN is as good as another."""
    if len(want) != len(got):
        return f"{len(got)} words, want {len(want)}"
    for i, (w, g) in enumerate(zip(want, got)):
        if w != g and not (is_nan(w) and is_nan(g)):
            return f"word {i}: {g:08x}, want {w:08x}"
    return None


def compare(emulator, device):
    """Sections of exact results: {name: None, or what differs}."""
    found = {}
    for key, want in emulator.items():
        name, number = key
        if name.startswith("sum"):
            continue
        found.setdefault(name, None)
        if found[name] is None:
            what = difference(want, device.get(key, []))
            found[name] = what and f"case {number}, {what}"
    return found
