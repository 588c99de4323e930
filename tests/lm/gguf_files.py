"""GGUF files of a small Llama."""

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, HEADS, INNER, LAYERS = 64, 2, 96, 2
TOKENS = ["<unk>", "<s>", "</s>", *(chr(i) for i in range(33, 127)), "Ġ", "Ċ", "ĠĠ", "ĊĊ", "Ġa"]
MERGES = ["Ġ Ġ", "Ċ Ċ", "Ġ a"]
TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, intermediate_size=INNER, max_position_embeddings=48, tie_word_embeddings=False,
        rms_norm_eps=1e-5,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def interleaved(weight):
    """A projection of queries or keys in the order of llama.cpp, where the two halves of a head alternate."""
    return weight.reshape(HEADS, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write(path, model=None, architecture="llama", quantisation=None):
    """A GGUF file of a small Llama, in float32 or with quantised products."""
    weights = {name: x.numpy() for name, x in (model or llama()).state_dict().items()}
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_license("mit")
    writer.add_block_count(LAYERS)
    writer.add_context_length(48)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * (len(TOKENS) - 3))
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    tensors = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    tensors |= {
        f"blk.{i}.{ours}": f"model.layers.{i}.{theirs}" for i in range(LAYERS) for ours, theirs in NAMES.items()
    }
    for ours, theirs in tensors.items():
        x = weights[f"{theirs}.weight"]
        x = interleaved(x) if ours.endswith(("attn_q", "attn_k")) else x
        if quantisation is not None and x.ndim == 2:
            x = gguf.quantize(x, quantisation)
            writer.add_tensor(f"{ours}.weight", x, raw_dtype=quantisation)
        else:
            writer.add_tensor(f"{ours}.weight", np.ascontiguousarray(x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
