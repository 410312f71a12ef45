//! Names of tensors: ours, which are Hugging Face's, and those of GGUF files.

use crate::config::{Architecture, ModelConfig};

/// Pairs of what a name ends in, before `.weight` or `.bias`.
type Table = &'static [(&'static str, &'static str)];

const GPT2: Table = &[
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("lm_head", "output"),
];
const GPT2_BLOCK: Table = &[
    ("ln_1", "attn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];
const LLAMA: Table =
    &[("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];
const LLAMA_BLOCK: Table = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];
/// Where Gemma's blocks differ from Llama's.
const GEMMA_BLOCK: Table = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
];
const BERT: Table = &[
    ("bert.embeddings.word_embeddings", "token_embd"),
    ("bert.embeddings.position_embeddings", "position_embd"),
    ("bert.embeddings.token_type_embeddings", "token_types"),
    ("bert.embeddings.LayerNorm", "token_embd_norm"),
];
const BERT_BLOCK: Table = &[
    ("attention.self.query", "attn_q"),
    ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"),
    ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"),
    ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"),
    ("output.LayerNorm", "layer_output_norm"),
];

/// The name of a parameter in a GGUF file; none if the format has no place for it.
pub(super) fn tensor_name(config: &ModelConfig, name: &str) -> Option<String> {
    let (blocks, whole, in_block): (_, Table, [Table; 2]) = match config.architecture {
        Architecture::Gpt2 => ("transformer.h.", GPT2, [&[], GPT2_BLOCK]),
        Architecture::Llama => {
            let first: Table = if config.gemma.is_some() { GEMMA_BLOCK } else { &[] };
            ("model.layers.", LLAMA, [first, LLAMA_BLOCK])
        }
        Architecture::Encoder => ("bert.encoder.layer.", BERT, [&[], BERT_BLOCK]),
    };
    let (stem, suffix) = name.rsplit_once('.')?;
    let find = |table: Table, stem: &str| table.iter().find(|pair| pair.0 == stem).map(|pair| pair.1);
    match stem.strip_prefix(blocks).and_then(|rest| rest.split_once('.')) {
        Some((block, stem)) => {
            let stem = in_block.into_iter().find_map(|table| find(table, stem))?;
            Some(format!("blk.{block}.{stem}.{suffix}"))
        }
        None => Some(format!("{}.{suffix}", find(whole, stem)?)),
    }
}
