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
    # ---- ART ---------------------------------------------------------------------------------------------------------
    Mutation(
        "the KL divergence reversed",
        "objectives/distillation.py",
        "jnp.exp(log_target) * (log_target - log_model)",
        "jnp.exp(log_model) * (log_model - log_target)",
        ("test_art_loss.py",),
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
        "if self.config.relative_attention_num_buckets:\n                bias",
        "if False:\n                bias",
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
        "recipes/whole_corpus.py",
        "(number > 0 and number % every == 0)",
        "(number < 0 and number % every == 0)",
        ("test_supervised_guarantees.py::test_the_loss_falls_and_the_index_follows",),
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
        "return factor * lax.psum_scatter(",
        "return lax.psum_scatter(",
        ("test_split_parameters.py::test_split_moments_give_the_updates_of_whole_ones",),
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
        "a shared search's answers to the first that asked",
        "serve/sharing.py",
        "found.set_result(hits[start : start + len(vectors)])",
        "found.set_result(hits[: len(vectors)])",
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
