"""Writes this folder again (other bytes with another torch); see README.md for what it needs.

python make.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import BertAdapterModel, BertConfig, BertModel
from transformers.adapters import ConfigUnion, LoRAConfig, ParallelConfig

ADAPTERS = {
    "union": ConfigUnion(LoRAConfig(r=4, alpha=4), ParallelConfig(reduction_factor=4.0, scaling=4.0)),
    "lora": LoRAConfig(r=2, alpha=6, attn_matrices=["q", "k", "v"], intermediate_lora=True, output_lora=True),
    "parallel": ParallelConfig(reduction_factor=10, scaling=0.5),
}
out = Path(sys.argv[1])
torch.manual_seed(5)


def randomise(model, std):
    for name, parameter in model.named_parameters():
        centre = 1.0 if "LayerNorm.weight" in name else 0.0
        parameter.data.normal_(centre, std)


config = BertConfig(
    vocab_size=50,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=48,
    max_position_embeddings=12,
)
backbone = BertModel(config, add_pooling_layer=False)
randomise(backbone, 0.25)
backbone.save_pretrained(out / "backbone", safe_serialization=True)
lengths = torch.tensor([9, 4, 1])
tokens = torch.randint(1, 50, (3, 9))
mask = (torch.arange(9) < lengths[:, None]).long()
arrays = {"tokens": (tokens * mask).numpy(), "lengths": lengths.numpy()}
for name, adapter in ADAPTERS.items():
    model = BertAdapterModel.from_pretrained(out / "backbone").eval()
    model.add_adapter(name, config=adapter)
    state = {key: tensor for key, tensor in model.named_parameters() if f".{name}." in key}
    for tensor in state.values():
        tensor.data.normal_(0.0, 0.25)
    model.set_active_adapters(name)
    model.save_adapter(out / name, name)
    with torch.no_grad():
        states = model.bert(input_ids=tokens, attention_mask=mask).last_hidden_state
    arrays[name] = ((states * mask[..., None]).sum(1) / lengths[:, None]).numpy()
np.savez(out / "outputs.npz", **arrays)
