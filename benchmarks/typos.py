"""Typos: queries a second of each profile on one core, and the shares of what is done to them.

    python benchmarks/typos.py                                            # the embedded questions
    python benchmarks/typos.py --queries wiki_qa/queries.jsonl.gz --draws 5

The profiles take turns. The first draw meets each word for the first time, the later ones remember it; speeds are by
processor time (which other programs disturb less) and by the clock. Shares are of changed words, all draws together: of
the operations that were drawn, and of the forms that the changes have, beside those of the published test queries.
"""

import argparse
import statistics
import time
from collections import Counter

from machine import describe

from jaxretr.assets import QUICKSTART
from jaxretr.data.readers import read_questions
from jaxretr.data.typos import PROFILES, Typo, TypoGenerator
from jaxretr.data.typos.keyboards import KEYBOARDS, neighbours
from jaxretr.data.typos.words import form

PUBLISHED = {
    "dictionary": {"keyboard": 0.362, "swap": 0.339, "dictionary": 0.294, "unchanged": 0.026},
    "single_word": {"keyboard": 0.237, "delete": 0.204, "insert": 0.203, "swap": 0.198, "substitute": 0.159},
}


def forms(clean: str, typo: Typo, profile: str, keys: dict[str, str]) -> list[str]:
    """Names each changed word by its look: of the dictionary profile what is neither swap nor neighbouring key."""
    if profile == "spacing":
        more = len(typo.text.split()) - len(clean.split())
        return [] if typo.text == clean else [{-1: "join", 1: "split", 0: "swap"}[more]]
    pairs = zip(clean.lower().split(), typo.text.lower().split(), strict=True)
    found = [form(a, b, keys) for a, b in pairs if a != b]
    if profile == "dictionary":
        return [name if name in ("swap", "keyboard") else "dictionary" for name in found]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", default=str(QUICKSTART), help="(default: the embedded questions)")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--keyboard", choices=tuple(KEYBOARDS), default="qwerty")
    args = parser.parse_args()
    texts = [question.text for question in read_questions(args.queries)]
    rows = range(len(texts))
    words = statistics.mean(len(text.split()) for text in texts)
    print(f"{len(texts)} queries of {words:.1f} words, {args.draws} draws")
    print(describe())
    generators = {profile: TypoGenerator(profile, keyboard=args.keyboard) for profile in PROFILES}
    seconds: dict[str, list[tuple[float, float]]] = {profile: [] for profile in PROFILES}
    operations: dict[str, Counter[str]] = {profile: Counter() for profile in PROFILES}
    looks: dict[str, Counter[str]] = {profile: Counter() for profile in PROFILES}
    unchanged: Counter[str] = Counter()
    keys = dict(neighbours(args.keyboard))
    for draw in range(args.draws):
        for profile, generator in generators.items():
            clock, processor = time.perf_counter(), time.process_time()
            typos = generator.typos(texts, draw, rows)
            seconds[profile].append((time.process_time() - processor, time.perf_counter() - clock))
            for text, typo in zip(texts, typos, strict=True):
                operations[profile].update(typo.operations)
                looks[profile].update(forms(text, typo, profile, keys))
                unchanged[profile] += not typo.operations
    print(f"\n{'queries/s':<14}{'first draw':>12}{'later: median':>15}{'best':>10}{'by the clock: best':>20}")
    for profile, taken in seconds.items():
        rates = [len(texts) / processor for processor, _ in taken]
        later = rates[1:] or rates
        by_clock = max(len(texts) / clock for _, clock in taken)
        print(f"{profile:<14}{rates[0]:>12.0f}{statistics.median(later):>15.0f}{max(later):>10.0f}{by_clock:>20.0f}")
    print(f"\n{'shares':<14}{'':<12}{'operation':>10}{'form':>10}{'published':>11}")
    for profile in PROFILES:
        published = PUBLISHED.get(profile, {})
        for name in sorted(operations[profile] | looks[profile]):
            both = [f"{table[profile][name] / table[profile].total():>10.4f}" for table in (operations, looks)]
            print(f"{profile:<14}{name:<12}{both[0]}{both[1]}{published.get(name, float('nan')):>11.3f}")
        share = unchanged[profile] / len(texts) / args.draws
        print(f"{profile:<14}{'unchanged':<12}{share:>10.4f}{share:>10.4f}{published.get('unchanged', 0):>11.3f}")


if __name__ == "__main__":
    main()
