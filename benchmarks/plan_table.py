"""What every system needs on slices of TPUs: the table of tpu/README.md, from programs compiled ahead of time.

    python benchmarks/plan_table.py > table.md                      # minutes a system and a slice; no TPU is needed
    python benchmarks/plan_table.py --systems art,ddr_dam --topologies v5e:4x4 --json plans.json

Memory is of one chip, in GiB: what a group of arrays takes, and the most that the step takes with all that the run holds
beside it. Seconds are what the matrix products of a step take at the chip's peak, a lower bound; chip-hours are those of
the whole run at a share of the peak (--utilisation), which is an assumption, not a measurement.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxretr.runtime.parallel.tpu_environment import compile_for_tpus

if __name__ == "__main__":
    compile_for_tpus()

from jaxretr import config as configuration
from jaxretr.training.plan.requirements import GIB, Plan, plan
from jaxretr.training.plan.topologies import topology

if TYPE_CHECKING:
    from known_programs import KnownPrograms  # pyright: ignore[reportMissingImports]

    from jaxretr.config import Config

CONFIGS = Path(__file__).parents[1] / "configs"


class System(NamedTuple):
    """A published recipe as it is planned.

    Attributes:
      what: for people.
      config: file in configs/.
      settings: of it that stand in for models that other runs make first; shapes alone count here.
      passages: where neither the corpus nor its name tells how many.
    """

    what: str
    config: str
    settings: tuple[str, ...] = ()
    passages: int | None = None


BASE = "bert-base-uncased"
SYSTEMS = {
    "art": System("ART, T0-3B, 21M passages", "art_nq_t0_3b.py"),
    "dpr": System("DPR, in-batch negatives, 1M passages", "dpr_nq.py", passages=1_000_000),
    "dpr_retrieved": System("DPR, retrieved negatives, MS MARCO", "dpr_msmarco.py"),
    "spar_lexical": System("SPAR, lexical encoder, 21M passages", "spar_wiki_lexical.py"),
    "spar_joint": System(
        "SPAR, base next to a frozen lexical encoder, 1M passages",
        "dpr_nq.py",
        ("--joint.lexical", BASE),
        passages=1_000_000,
    ),
    "ddr_dam": System("DDR, domain module (MLM), MS MARCO", "ddr_msmarco_dam.py"),
    "ddr_rem": System("DDR, relevance module, MS MARCO", "ddr_msmarco_rem.py", ("--encoder.path", BASE)),
    "typos": System("typo-robust DPR, MS MARCO", "typos_msmarco.py"),
}
_FULL, _LORA = "qwen3_embedding_full.py", "qwen3_embedding_lora.py"
_4B = ("--encoder.path", "Qwen/Qwen3-Embedding-4B", "--contrastive.chunk", "8")
_SPLIT, _COPIES = "--mesh.shard-parameters", "--mesh.no-shard-parameters"
ENCODERS = {
    "qwen_06b_lora": System("0.6B, LoRA, copies", _LORA),
    "qwen_06b_lora_split": System("0.6B, LoRA, split", _LORA, (_SPLIT,)),
    "qwen_06b_full": System("0.6B, whole, copies", _FULL, (_COPIES,)),
    "qwen_06b_full_split": System("0.6B, whole, split", _FULL),
    "qwen_4b_lora": System("4B, LoRA, copies", _LORA, _4B),
    "qwen_4b_lora_split": System("4B, LoRA, split", _LORA, (*_4B, _SPLIT)),
    "qwen_4b_full": System("4B, whole, copies", _FULL, (*_4B, _COPIES)),
    "qwen_4b_full_split": System("4B, whole, split", _FULL, _4B),
}
"""The table of docs/results/encoder_plans.md: parameters as copies on every chip, or split over all of them."""

OTHERS = {
    "art_webq": System("ART, WebQuestions, batches of 16", "art_webq_t0_3b.py"),
    "art_triviaqa": System("ART, TriviaQA", "art_triviaqa_t0_3b.py"),
    "art_squad": System("ART, SQuAD-Open", "art_squad_t0_3b.py"),
    "art_msmarco": System("ART, MS MARCO, batches of 512, 8 passages each", "art_msmarco_t0_3b.py"),
    "art_large": System("ART, BERT-large towers", "art_nq_large.py"),
    "art_11b": System("ART, 11B teacher, batches of 32, 16 passages each", "art_nq_t5_11b.py"),
    "art_11b_split": System("the same, teacher split over 4", "art_nq_t5_11b.py", ("--mesh.model", "4")),
    "art_128": System("ART, 128 passages a question", "art_nq_t0_3b.py", ("--art.top-k", "128")),
    "spar_paq": System("SPAR, PAQ's questions", "spar_paq_lexical.py"),
    "typos_forms": System("typo-robust DPR, 40 forms as positives", "typos_msmarco_multi_positive.py"),
}
"""The last table of docs/results/plans.md: the recipes' other settings in their papers."""

TOPOLOGIES = ("v5e:4x4", "v5e:8x8", "v5p:2x2x2")


def config_of(name: str, settings: Sequence[str] = ()) -> "Config":
    """The config of a system.

    Args:
      name: among SYSTEMS, ENCODERS or OTHERS.
      settings: further ones, as they are typed; they override the system's own.
    """
    system = (SYSTEMS | ENCODERS | OTHERS)[name]
    return configuration.override(configuration.load(CONFIGS / system.config, system.settings), settings)


def plan_system(
    name: str,
    config: "Config",
    slice_name: str,
    programs: Sequence[str],
    known: "KnownPrograms",
    chips: int | None = None,
) -> Plan:
    """Plans one system on one slice.

    Args:
      name: among SYSTEMS, ENCODERS or OTHERS.
      config: its own.
      slice_name: as for `jaxretr train --topology`.
      programs: names of those to compile; all if there are none.
      known: programs that need not be compiled again.
      chips: use only the first so many of the slice; None: all.
    """
    devices = topology(slice_name)
    if chips is not None:
        used = devices.devices[: chips * devices.per_chip]
        devices = devices._replace(devices=used, chips=chips, name=f"{chips} of {slice_name}")
    return plan(config, devices, (SYSTEMS | ENCODERS | OTHERS)[name].passages, programs=programs, facts_of=known.facts)


def row(name: str, config: "Config", planned: Plan, utilisation: float) -> str:
    """One line of the table."""
    step = next(program for program in planned.programs if program.name == "step")
    held = {**step.groups, **step.beside}

    def gib(*groups: str) -> str:
        return f"{sum(held.get(group, 0) for group in groups) / GIB:.2f}"

    moved = sum(collective.bytes for collective in step.collectives) / 2**20
    seconds = step.seconds or 0.0
    hours = seconds / utilisation * config.train.steps * planned.chips / 3600
    cells = [
        (SYSTEMS | ENCODERS | OTHERS)[name].what,
        planned.topology,
        f"{config.train.batch_size}",
        gib("parameters", "frozen parameters"),
        gib("optimizer state"),
        gib("corpus tokens"),
        gib("index embeddings"),
        gib("scorer"),
        "-" if step.temporaries is None else f"{step.temporaries / GIB:.2f}",
        f"{step.peak / GIB:.2f} of {(planned.capacity or 0) / GIB:.2f}" + ("" if step.fits else " (does not fit)"),
        "-" if step.loops is None else f"{moved:.0f}",
        f"{step.flops / 1e12:,.0f}",
        f"{seconds:.3f}",
        f"{hours:,.0f}",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| system | slice | batch | parameters | optimizer | tokens | index | scorer | temporaries | peak GiB a chip "
    "| collectives MiB a step | TFLOP a step | s a step at peak | chip-hours at {:.0%} |"
)


def main() -> None:
    from known_programs import KnownPrograms  # pyright: ignore[reportMissingImports] # This file also runs by runpy.

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="or of ENCODERS or OTHERS (default: %(default)s)")
    parser.add_argument("--topologies", default=",".join(TOPOLOGIES), help="(default: %(default)s)")
    parser.add_argument(
        "--chips", type=int, metavar="N", help="compile for the first N chips of a slice (default: all)"
    )
    parser.add_argument("--programs", default="step", help='names, "" for all (default: %(default)s)')
    parser.add_argument("--utilisation", type=float, default=0.4, help="share of the peak (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="programs compiled at once (default: %(default)s)")
    parser.add_argument("--known", metavar="FILE", help="programs compiled before; those compiled now are added")
    parser.add_argument("--json", metavar="FILE", help="write all that was measured there as well")
    args, settings = parser.parse_known_args()  # What is left are settings of the configs, --section.key VALUE.
    chosen = [(name, place) for place in args.topologies.split(",") for name in args.systems.split(",")]
    known = KnownPrograms(Path(args.known) if args.known else None)
    plans: dict[str, Any] = {}
    print(HEAD.format(args.utilisation))
    print("|---|---|" + "---:|" * 12, flush=True)

    # One after the other, before there are threads: a config is a program.
    configs = {name: config_of(name, settings) for name in args.systems.split(",")}

    def run(pair: tuple[str, str]) -> Plan:
        name, place = pair
        return plan_system(name, configs[name], place, list(filter(None, args.programs.split(","))), known, args.chips)

    with ThreadPoolExecutor(args.threads) as pool:
        for (name, place), planned in zip(chosen, pool.map(run, chosen), strict=True):
            if any(program.name == "step" for program in planned.programs):
                print(row(name, configs[name], planned, args.utilisation), flush=True)
            plans[f"{name} {place}"] = dataclasses.asdict(planned)
    if args.json:
        Path(args.json).write_text(json.dumps(plans))
    sys.stdout.flush()
    if args.known:
        print(f"compiled anew: {len(known.compiled)} programs", *known.compiled, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    main()
