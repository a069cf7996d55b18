"""A decoder as an encoder: LoRA of rank 16 in Qwen3-Embedding-0.6B, on MS MARCO passages with a mined negative each.

As E5-Mistral is trained (Wang et al. 2024, https://arxiv.org/abs/2401.00368): the last token's state, cosines, a temperature
of 0.02, and an instruction before questions, here the model's own. The 4B needs more memory than a TPU v5e chip has, unless
the chips share its parameters: --encoder.path Qwen/Qwen3-Embedding-4B --mesh.shard-parameters, see
docs/results/encoder_plans.md.

Put the BEIR folder msmarco (corpus, queries, qrels/train.tsv, qrels/dev.tsv) into the folder that --data-folder names,
and mine once:

    jaxretr mine --corpus DATA/msmarco --train DATA/msmarco --ranks 1:200 --out DATA/msmarco-bm25.jsonl
"""

from jaxretr.config import (
    AdapterShape,
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Encoder,
    Negatives,
    Optimizer,
    Train,
)

QUESTIONS = 502_939
BATCH = 512
STEPS = QUESTIONS // BATCH
PROMPT = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"


def config(data_folder: str = "data") -> ContrastiveConfig:
    return ContrastiveConfig(
        name="qwen3_embedding_lora",
        data=ContrastiveData(
            train=f"{data_folder}/msmarco",
            mined=f"{data_folder}/msmarco-bm25.jsonl",
            dev_questions=f"{data_folder}/msmarco",
            dev_qrels=f"{data_folder}/msmarco/qrels/dev.tsv",
        ),
        encoder=Encoder(
            path="Qwen/Qwen3-Embedding-0.6B",
            adapter=AdapterShape(
                lora_rank=16,
                lora_alpha=32,
                lora_targets=("query", "key", "value", "attention_out", "ffn_gate", "ffn_in", "ffn_out"),
                bottleneck=0,
            ),
            shared=True,
            pooling="lasttoken",
            normalise=True,
            query_prompt=PROMPT,
            passage_prompt="",
            max_question_length=64,
            max_passage_length=128,
            dropout=0.0,
            dtype="bfloat16",
        ),
        negatives=Negatives(static=0, mined=1),
        contrastive=Contrastive(temperature=0.02, chunk=16),
        optimizer=Optimizer(learning_rate=1e-4, weight_decay=0.1, warmup=0.1, final=0.0),
        train=Train(steps=STEPS, batch_size=BATCH, save_every=200, eval_every=STEPS // 2, best_metric="mrr@10"),
    )
