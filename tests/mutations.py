"""Wrong formulas, each of which the quick tests must catch: `make mutations`, or `python tests/mutations.py NAME ...`.

Each mutation is applied to a copy of the package, and the quick tests that it names run against that copy: one of them has
to fail. First they all have to pass without any.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutation:
    """One change of the package's text.

    Attributes:
      name: what is wrong then.
      path: the file, below jaxretr/.
      old: what stands there, once.
      new: what stands there instead.
      tests: those that must notice it.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, package: Path) -> None:
        """Changes a copy of the package.

        Raises:
          ValueError: the text is not there, or several times: this file has to follow the code.
        """
        file = package / self.path
        text = file.read_text()
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.path} contains {self.old!r} {text.count(self.old)} times; correct it here"
            )
        file.write_text(text.replace(self.old, self.new))


BERT = ("test_bert_parity.py::test_hidden_states_equal_transformers[bert]",)
DEFINITION = "test_contrastive_batch.py::test_loss_and_gradients_are_those_of_the_definition"

MUTATIONS = (
    # ---- exact search on accelerators --------------------------------------------------------------------------------
    Mutation(
        "two terms of a float32 question",
        "search/topk/accelerators.py",
        "for _ in range(3):",
        "for _ in range(2):",
        ("test_topk.py::test_three_bfloat16_terms_are_the_float32_question_and_its_scores_have_float32_precision",),
    ),
    Mutation(
        "the groups of a selection in the order of their maxima",
        "search/topk/accelerators.py",
        "return jnp.sort(place, axis=-1)",
        "return place",
        ("test_topk.py::test_accelerators_give_ties_across_groups_blocks_and_levels_to_the_lowest_row",),
    ),
    Mutation(
        "a pyramid whose parts are one place off",
        "search/topk/accelerators.py",
        "parts = groups[:, :, None] * fan + jnp",
        "parts = groups[:, :, None] * fan + 1 + jnp",
        ("test_topk.py::test_a_pyramid_of_several_levels_and_blocks_is_brute_force",),
    ),
    Mutation(
        "one term of each question in the kernel of GPUs",
        "search/topk/gpu_kernel.py",
        "for term in reversed(range(count)):",
        "for term in range(1):",
        ("test_topk.py::test_the_kernel_of_gpus_computes_the_maxima_of_groups",),
    ),
    Mutation(
        "padding in the maxima of the kernel of GPUs",
        "search/topk/gpu_kernel.py",
        "valid = row < num_valid[0]",
        "valid = there",
        ("test_topk.py::test_the_kernel_of_gpus_computes_the_maxima_of_groups",),
    ),
    Mutation(
        "padding keys in the attention kernel of GPUs",
        "models/fused_attention.py",
        "jnp.where((there.places < length)[None, :], scores, -jnp.inf)",
        "jnp.where((there.places < k.shape[0])[None, :], scores, -jnp.inf)",
        ("test_fused_attention.py::test_attention_and_its_gradient_are_those_of_float64",),
    ),
    Mutation(
        "another mask in the gradient of the attention kernel of GPUs",
        "models/fused_attention.py",
        "_kept(_words(keys, row, head, there), here, form, keys_first=True)",
        "_kept(_words(keys, row, head, here), there, form)",
        ("test_fused_attention.py::test_attention_and_its_gradient_are_those_of_float64",),
    ),
    Mutation(
        "the sum of an earlier block not rescaled in the attention kernel of GPUs",
        "models/fused_attention.py",
        "total = total * shrink + weights.sum(1)",
        "total = total + weights.sum(1)",
        ("test_fused_attention.py::test_attention_and_its_gradient_are_those_of_float64",),
    ),
    Mutation(
        "rows of the last block found twice",
        "search/topk/shard.py",
        "lowest = jnp.maximum(start, number * size)",
        "lowest = start",
        ("test_topk.py::test_a_pyramid_of_several_levels_and_blocks_is_brute_force",),
    ),
    # ---- ART ---------------------------------------------------------------------------------------------------------
    Mutation(
        "scores of the step's own pairs although the table knows them",
        "objectives/teaching.py",
        "& ~known.reshape(-1)",
        "",
        ("test_teaching.py::test_scores_are_those_of_each_pair[1-by passage]",),
    ),
    Mutation(
        "a pair that stands in a batch twice scored only the first time",
        "objectives/teaching.py",
        "fresh[first].reshape(rows.shape)",
        "fresh.reshape(rows.shape)",
        ("test_teaching.py::test_scores_are_those_of_each_pair[1-by passage]",),
    ),
    Mutation(
        "questions scored against the first passage of their block",
        "objectives/teaching.py",
        "jnp.clip(slots[pair] - taken, 0, size - 1)",
        "0 * pair",
        ("test_teaching.py::test_scores_are_those_of_each_pair[1-by passage]",),
    ),
    Mutation(
        "a block as narrow as its shortest row",
        "objectives/teaching.py",
        "for width, below in zip(reversed(widths.rows), reversed(shorter), strict=True):",
        "for width, below in zip(reversed(widths.rows), reversed(widths.rows), strict=True):",
        ("test_teaching.py::test_scores_are_those_of_each_pair[1-by passage]",),
    ),
    Mutation(
        "units dealt out in the order of their rows alone",
        "objectives/dealing.py",
        "jnp.lexsort((unit, -pairs, -width, ~asked))",
        "jnp.lexsort((unit, ~asked))",
        ("test_teaching.py::test_units_are_dealt_out_evenly_and_each_once",),
    ),
    Mutation(
        "the second place of a question in a batch kept as well",
        "objectives/score_table.py",
        "jnp.where(mine & ~earlier, ",
        "jnp.where(mine, ",
        ("test_score_table.py",),
    ),
    Mutation(
        "what was retrieved again stays where it was in the table",
        "objectives/score_table.py",
        'if replacement == "unused":',
        "if False:",
        ("test_score_table.py",),
    ),
    Mutation(
        "the keys and values of the first layer in all layers of T5's decoder",
        "models/t5.py",
        "k, v = (kept[number] for kept in states)",
        "k, v = (kept[0] for kept in states)",
        ("test_t5_parity.py::test_kept_keys_and_values_are_those_of_every_layer",),
    ),
    Mutation(
        "the KL divergence reversed",
        "objectives/distillation.py",
        "jnp.exp(log_target) * (log_target - log_model)",
        "jnp.exp(log_model) * (log_model - log_target)",
        ("test_art_loss.py",),
    ),
    Mutation(
        "a kernel's gradient rounded to bfloat16",
        "models/products.py",
        '_sums(f"{one},{c}->{other}", a, cotangent, types.b, trained=True)',
        '_sums(f"{one},{c}->{other}", a, cotangent, types.a, trained=True).astype(types.b)',
        ("test_products.py::test_sums_are_of_rounded_operands_and_rounded_once",),
    ),
    Mutation(
        "cotangents of bfloat16 products left in float32",
        "models/products.py",
        "cotangent = cotangent.astype(types.multiplied)",
        "cotangent, a, b = (x.astype(jnp.float32) for x in (cotangent, a, b))",
        (
            "test_precision.py::test_float32_is_neither_rounded_to_tf32_nor_to_bfloat16[teacher-tpu]",
            "test_precision.py::test_float32_is_neither_rounded_to_tf32_nor_to_bfloat16[encoder-cuda]",
        ),
    ),
    Mutation(
        "dropout of all layers alike",
        "models/dropout.py",
        "one = _mixed(one + (number + 1)",
        "one = _mixed(one + (0 * number + 1)",
        ("test_dropout.py::test_masks_are_as_good_as_random",),
    ),
    Mutation(
        "dropout's counter used as it is",
        "models/dropout.py",
        "x = (x ^ (x >> 16)) * np.uint32(_FIRST)\n    x = x ^ other",
        "x = x ^ other",
        ("test_dropout.py::test_the_bits_are_those_of_the_reference",),
    ),
    Mutation(
        "the gradient of stored rows cut off",
        "objectives/quantised.py",
        "return rows + lax.stop_gradient(self.values(rows) - rows)",
        "return self.values(rows)",
        ("test_quantised.py::test_the_gradient_goes_straight_through",),
    ),
    Mutation(
        "int8 rows rounded towards zero",
        "objectives/quantised.py",
        "jnp.round(rows / jnp.where",
        "jnp.trunc(rows / jnp.where",
        ("test_quantised.py::test_int8_rows_are_those_of_a_file",),
    ),
    Mutation(
        "score-aware codes that weigh errors along and across a passage alike",
        "objectives/quantised.py",
        "cost = (eta - 1)[:, None] * less",
        "cost = 0 * less",
        ("test_quantised.py::test_score_aware_codes_are_scanns",),
    ),
    Mutation(
        "empty centres of product codes stay where they are",
        "objectives/quantised.py",
        "jnp.where(empty[:, None], spare, sums",
        "jnp.where(empty[:, None], means, sums",
        ("test_quantised.py::test_the_fit_is_lloyds_algorithm",),
    ),
    Mutation(
        "the whole corpus scored unrounded beside rounded passages",
        "objectives/corpus_softmax.py",
        "if stored is not None:\n            e = stored.values(e)",
        "if False:\n            e = stored.values(e)",
        (f"{DEFINITION}[product codes, over the corpus, with margins-8]",),
    ),
    Mutation(
        "no pull of passages to their stored rows",
        "objectives/batch_loss.py",
        "loss += program.index_aware.commitment * error",
        "loss += 0.0 * error",
        (f"{DEFINITION}[product codes, over the corpus, with margins-8]",),
    ),
    Mutation(
        "product codes that are never fitted again",
        "recipes/index_codes.py",
        "number % self._every or",
        "number or",
        ("test_index_aware_training.py::test_codes_are_fitted_again_when_they_are_due_and_once",),
    ),
    Mutation(
        "a passage that is given and retrieved compared twice",
        "objectives/art_passages.py",
        "jnp.where(repeated, _NONE, rows)",
        "rows",
        ("test_art_passages.py::test_a_row_that_stands_in_an_earlier_place_is_taken_out",),
    ),
    Mutation(
        "passages drawn that the question has already",
        "objectives/art_passages.py",
        "drawn = number + (taken",
        "drawn = number + 0 * (taken",
        ("test_art_passages.py::test_empty_places_get_any_other_passage_with_equal_chance",),
    ),
    Mutation(
        "each device draws passages for its own places in the batch",
        "objectives/art.py",
        "jnp.arange(b))\n    return filled",
        "jnp.arange(b) * lax.axis_size(DATA))\n    return filled",
        ("test_art_passages.py::test_one_device_and_eight_compare_the_same_passages",),
    ),
    Mutation(
        "the first positive of a training file drawn like the others",
        "recipes/example_draws.py",
        "if self._first:",
        "if False:",
        ("test_example_draws.py::test_the_first_positive_is_taken_where_that_is_set_with_its_score",),
    ),
    Mutation(
        "windows one token too wide",
        "models/rotary.py",
        "jnp.abs(distance) > config.window",
        "jnp.abs(distance) > config.window + 1",
        ("test_rotary_parity.py::test_states_and_every_gradient_equal_transformers[modernbert]",),
    ),
    Mutation(
        "positions turned the other way",
        "models/positions.py",
        "[one * cos - other * sin, other * cos + one * sin]",
        "[one * cos + other * sin, other * cos + one * sin]",
        ("test_rotary_parity.py::test_states_and_every_gradient_equal_transformers[qwen3]",),
    ),
    Mutation(
        "Gemma's norms without their offset",
        "models/layers.py",
        "1.0 + self.scale[...] if self.offset else",
        "self.scale[...] if self.offset else",
        ("test_rotary_parity.py::test_states_and_every_gradient_equal_transformers[gemma3_text]",),
    ),
    Mutation(
        "MPNet's biases of relative positions left out",
        "models/bert.py",
        "if self.config.relative_attention_num_buckets:\n                positions",
        "if False:\n                positions",
        ("test_bert_parity.py",),
    ),
    Mutation(
        "questions of a run tokenised without the prompt",
        "recipes/whole_corpus.py",
        "prompt=config.query_prompt",
        'prompt=""',
        ("test_prompts.py",),
    ),
    Mutation(
        "the last token taken from a row's end, padding or not",
        "models/embed.py",
        "(place == lengths[:, None] - 1)",
        "(place == states.shape[1] - 1 + 0 * lengths[:, None])",
        ("test_encode_parity.py::test_every_pooling_is_that_of_other_libraries",),
    ),
    Mutation(
        "the teacher's sum over the tokens, not their mean",
        "models/scorers/t5_scorer.py",
        ".sum(axis=-1) / jnp.maximum(lengths, 1)",
        ".sum(axis=-1)",
        ("test_scorer.py::test_scores_inside_the_training_step_equal_pytorch[v1.1]",),
    ),
    Mutation(
        'no "Question: " before the question',
        "data/tokens.py",
        'f"Question: {question}"',
        'f"{question}"',
        ("test_token_store.py::test_scorer_segments_are_tokenised_apart",),
    ),
    Mutation(
        "no </s> behind the question",
        "data/tokens.py",
        "return _ended(_first_ids(tokenizer, prompts, max_length), [eos], max_length)",
        "return Rows(_first_ids(tokenizer, prompts, max_length), 0)",
        ("test_token_store.py::test_scorer_segments_are_tokenised_apart",),
    ),
    Mutation(
        "scores not divided by the root of the embedding's size",
        "recipes/art.py",
        "float(encoder.embedding_size) ** 0.5",
        "1.0",
        ("test_art_loss.py",),
    ),
    Mutation(
        "an index that is never refreshed",
        "recipes/index_upkeep.py",
        "(number > 0 and number % every == 0)",
        "(number < 0 and number % every == 0)",
        ("test_supervised_guarantees.py::test_the_loss_falls_and_the_index_follows",),
    ),
    Mutation(
        "a slice of each device's own row numbers",
        "objectives/index_refresh.py",
        "jnp.mod(step - first, every)",
        "jnp.mod(step, every)",
        ("test_index_refresh.py::test_the_slices_of_all_devices_are_the_rows_of_the_step",),
    ),
    Mutation(
        "what was found as if it were fresh",
        "objectives/contrastive.py",
        "staleness_of(index, found_rows, state.step) / devices",
        "0 * staleness_of(index, found_rows, state.step) / devices",
        ("test_rolling_refresh.py::test_each_step_encodes_its_slice_and_ages_are_logged",),
    ),
    Mutation(
        "the greatest age of the device with the freshest rows",
        "objectives/live_index.py",
        "lax.pmax(_ages(index, step, corpus_rows).max(), DATA)",
        "lax.pmin(_ages(index, step, corpus_rows).max(), DATA)",
        ("test_index_refresh.py::test_ages_are_those_of_the_corpus_and_of_what_was_found",),
    ),
    Mutation(
        "a share of the step without its slice",
        "recipes/index_upkeep.py",
        "corpus_flops * (1 - share) / (share",
        "corpus_flops / (share",
        ("test_rolling_refresh.py::test_a_share_gives_the_steps_of_a_round",),
    ),
    Mutation(
        "another R than the one that the state keeps",
        "recipes/index_upkeep.py",
        "self._every = int(to_host(every))",
        "self._every = int(to_host(every)) + 1",
        ("test_rolling_refresh.py::test_r_is_counted_once_and_kept_in_the_checkpoint",),
    ),
    Mutation(
        "an evaluation of a rolling refresh that finds old rows",
        "recipes/index_upkeep.py",
        "return self.evaluates and number > 0 and is_evaluated(number, self.train)",
        "return False",
        ("test_rolling_refresh.py::test_each_step_encodes_its_slice_and_ages_are_logged",),
    ),
    # ---- what lies on the devices ------------------------------------------------------------------------------------
    Mutation(
        "the ids behind a passage's end are the next passage's",
        "state.py",
        "tokens, 0), lengths)",
        "tokens, tokens), lengths)",
        ("test_corpus_tokens.py::test_rows_are_fetched_as_the_store_has_them",),
    ),
    Mutation(
        "where a passage begins counted from the corpus's first id",
        "recipes/corpus_tokens.py",
        "self._offsets[there] - self.bounds[there // self._rows]",
        "self._offsets[there] - self.bounds[0 * there]",
        ("test_corpus_tokens.py::test_rows_are_fetched_as_the_store_has_them",),
    ),
    Mutation(
        "the first device's part of the parameters updated with every device's moments",
        "parallel/split_parameters.py",
        "lax.axis_index(DATA) * size, size, axis)",
        "0 * lax.axis_index(DATA), size, axis)",
        ("test_split_parameters.py::test_split_moments_give_the_updates_of_whole_ones",),
    ),
    Mutation(
        "scattered gradients summed where their mean is wanted",
        "parallel/split_parameters.py",
        "return factor * scattered(",
        "return scattered(",
        ("test_split_parameters.py::test_split_moments_give_the_updates_of_whole_ones",),
    ),
    Mutation(
        "sums in two steps that give a device another one's part",
        "parallel/split_parameters.py",
        "for groups in (rows.T, rows):",
        "for groups in (rows, rows.T):",
        ("test_split_parameters.py::test_a_sum_in_two_steps_gives_each_device_the_part_of_a_sum_at_once",),
    ),
    # ---- DPR ---------------------------------------------------------------------------------------------------------
    Mutation(
        "segment ids 0 and 1",
        "models/bert.py",
        "self.type_embedding(jnp.zeros((), jnp.int32) if types is None else types)",
        "self.type_embedding((jnp.arange(length) >= length // 2).astype(jnp.int32) if types is None else types)",
        BERT,
    ),
    Mutation(
        "the LayerNorm before the attention, not behind it",
        "models/bert.py",
        "x = self.attention_norm(x + drop_hidden(self.attention(x, bias, drop_attention, adapter)))",
        "x = x + drop_hidden(self.attention(self.attention_norm(x), bias, drop_attention, adapter))",
        BERT,
    ),
    Mutation(
        "a pooler's tanh on the [CLS] state",
        "models/embed.py",
        "return states[:, 0]",
        "return jnp.tanh(states[:, 0])",
        ("test_bert_parity.py::test_dpr_embedding_equals_pooler_output_of_transformers[dpr-question]",),
    ),
    Mutation(
        "false negatives in the softmax",
        "objectives/contrastive_losses.py",
        "negative &= ~among(flat, known)",
        "negative &= True",
        ("test_contrastive_loss.py::test_masks_are_as_defined",),
    ),
    # ---- SPAR --------------------------------------------------------------------------------------------------------
    Mutation(
        "SPAR's weight on the passages' side",
        "models/combined_encoder.py",
        'if side == "question":\n            weights',
        'if side != "question":\n            weights',
        ("test_combined_encoder.py::test_weights_are_the_questions_alone[concatenate]",),
    ),
    # ---- DDR ---------------------------------------------------------------------------------------------------------
    Mutation(
        "the parallel adapter's factor without its bias",
        "models/adapter_layers.py",
        "return self.shape.scale * self.parallel.up(jax.nn.relu(self.parallel.down(x)))",
        "return self.parallel.up(self.shape.scale * jax.nn.relu(self.parallel.down(x)))",
        ("test_adapters.py::test_states_are_those_of_the_equations",),
    ),
    Mutation(
        "a tenth of the chosen tokens masked too many",
        "objectives/mlm.py",
        "kind < 0.8, mask_id",
        "kind < 0.9, mask_id",
        ("test_mlm.py::test_80_percent_are_masked_and_10_percent_are_random_words[24-full rows]",),
    ),
    # ---- typos -------------------------------------------------------------------------------------------------------
    Mutation(
        "self-teaching in the wrong direction",
        "objectives/typo_terms.py",
        "kl_divergence(misspelt, clean[:, None], counted[:, None])",
        "kl_divergence(clean[:, None], misspelt, counted[:, None])",
        (DEFINITION,),
    ),
    Mutation(
        "misspelt forms of another question as the target",
        "objectives/typo_terms.py",
        "mine = jnp.arange(size) == (first + jnp.arange(b))[:, None]",
        "mine = jnp.arange(size) == jnp.arange(b)[:, None]",
        (DEFINITION,),
    ),
    Mutation(
        "texts of another state than the one that was searched",
        "serve/live/index.py",
        "if len(there) < len(places):",
        "if len(there) < 0:",
        ("test_one_state.py::test_a_write_between_any_two_steps_of_a_search",),
    ),
    Mutation(
        "a shared search's answers to the first that asked",
        "serve/sharing.py",
        "found.set_result(findings.of(start, start + len(vectors)))",
        "found.set_result(findings.of(0, len(vectors)))",
        ("test_sharing.py::test_those_that_wait_share_a_pass_and_get_their_own_hits",),
    ),
    Mutation(
        "a batch that counts the tokens before padding",
        "serve/batching.py",
        "room = max(1, lane.budget // lane.padded(longest))",
        "room = max(1, lane.budget // longest)",
        ("test_batching.py::test_a_batch_counts_the_tokens_that_it_is_padded_to",),
    ),
    Mutation(
        "candidates that the filter does not allow",
        "search/scann/searcher.py",
        "passing[passing] = allowed[found[passing]]",
        "pass",
        (
            "test_scann_filters.py::test_where_the_leaves_hold_too_few_that_are_allowed_all_of_them_are_scored",
            "test_scann_filters.py::test_the_engine_is_asked_where_its_recall_is_certain",
            "test_scann_filters.py::test_the_target_is_reached_with_filters_that_nothing_was_tuned_on",
        ),
    ),
)


def _place(test: str) -> str:
    """The path of a test that is named by its file: "test_x.py::test_y"."""
    file, *rest = test.split("::")
    found = next((ROOT / "tests").rglob(file)).relative_to(ROOT)
    return "::".join([str(found), *rest])


def caught(mutation: Mutation | None, tests: Sequence[str]) -> tuple[bool, str]:
    """Whether a quick test fails in a copy of the package with this mutation, and what pytest printed.

    Raises:
      RuntimeError: the tests could not be run at all.
    """
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder)
        for path in ROOT.iterdir():
            if path.name not in ("jaxretr", ".git", ".pytest_cache", ".jax_cache", ".hypothesis"):
                (copy / path.name).symlink_to(path)
        # Programs that the mutation leaves as they are need not be compiled again.
        (ROOT / ".jax_cache").mkdir(exist_ok=True)
        (copy / ".jax_cache").symlink_to(ROOT / ".jax_cache")
        shutil.copytree(ROOT / "jaxretr", copy / "jaxretr", ignore=shutil.ignore_patterns("__pycache__"))
        if mutation is not None:
            mutation.apply(copy / "jaxretr")
        words = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--no-header"]
        environment = {**os.environ, "PYTHONPATH": str(copy), "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([*words, *map(_place, tests)], cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1) or (done.returncode == 1 and "\nFAILED" not in done.stdout):
        raise RuntimeError(
            f"{mutation.name if mutation else 'no mutation'}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return done.returncode == 1, done.stdout


def main() -> int:
    """Prints a line a mutation; returns 1 if one was not caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="parts of the names of mutations; all by default")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutation first")
    arguments = parser.parse_args()
    chosen = [m for m in MUTATIONS if not arguments.names or any(name in m.name for name in arguments.names)]
    if not arguments.no_baseline:
        tests = sorted({test for mutation in chosen for test in mutation.tests})
        failed, printed = caught(None, tests)
        if failed:
            print(f"the tests fail without a mutation:\n{printed[-3000:]}", file=sys.stderr)
            return 1
    missed = 0
    for mutation in chosen:
        began = time.monotonic()
        found, printed = caught(mutation, mutation.tests)
        missed += not found
        first = next((line for line in printed.splitlines() if line.startswith("FAILED")), "")
        by = first.removeprefix("FAILED ").split(" - ")[0]
        seconds = time.monotonic() - began
        print(f"{'caught' if found else 'MISSED':8}{seconds:5.0f} s  {mutation.name:62}{by}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} mutations were caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
