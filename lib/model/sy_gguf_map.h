/* sy_gguf_map.h - what the files of a GGUF model are in Hugging Face's terms: the configuration as
 * the text of a config.json, and for every tensor its name there and how its rows were rearranged.
 * Pure but for reading mapped bytes. Any thread.
 *
 * Found in llama.cpp's converter (convert_hf_to_gguf.py; since 2026 the package conversion/, a file
 * a family), and what a reader has to undo:
 * - LlamaModel.permute, used by modify_tensors of LlamaModel and of all that derive from it and do
 *   not set undo_permute to False: the rows of q_proj and k_proj, weights and biases, are reordered
 *   in each head so that the pairs that rotate together are neighbours. Here: `llama` (Mixtral) and
 *   `granitemoe`. Llama4Model sets undo_permute = False. DeepSeek, ERNIE and Llama 4 pair
 *   neighbours in Hugging Face's files already, so theirs are as they were; the others rotate
 *   halves in both. Undone by sy_gguf_read_rows.
 * - DeepseekV2Model.modify_tensors: kv_b_proj is split into attn_k_b, transposed in each head
 *   ([heads, kv_lora_rank, nope] here, nope rows of kv_lora_rank there), and attn_v_b. Files from
 *   before 2025-04 have attn_kv_b whole. set_gguf_parameters writes head_count_kv = 1 and lengths
 *   of the compressed form, key_length_mla and value_length_mla are those of a head; it writes 0.1
 * * mscale_all_dim as yarn_log_multiplier, and mscale, which published models have equal to it, not
 *   at all. V2 and V3 (and Kimi K2) are told apart by expert_gating_func alone.
 * - moe_experts, formerly modify_tensors of each family: experts are stacked in numeric order.
 * - GraniteMoeModel.modify_tensors: input_linear is split into gate (first rows of each slab) and
 *   up; of shared_mlp too. GptOssModel: gate_up_proj is split into even rows (gate) and odd rows
 *   (up), biases too; dequantised weights are transposed, MXFP4 blocks repacked (their own nibble
 *   order, sy_gguf_block.h); `.weight` is appended to sinks. Llama4Model: the transposed
 *   gate_up_proj is split into halves, down_proj transposed.
 * - Norm weights: of none of these families is anything added to them (Gemma's +1, and MiniMax-M3's
 *   MiniMaxM3Model.modify_tensors, are other families). Biases of choice (exp_probs_b) are as they
 *   were; the writer drops dimensions of 1 ([1, E] and [1, H] become vectors).
 * - HunYuanMoEModel.set_gguf_parameters: the "dynamic" rotation with alpha 1000 is folded into
 *   rope.freq_base; here it stays a plain rotation of that base, which is the same at any length.
 * - LlamaModel.generate_extra_tensors: llama3 scaling becomes the tensor rope_freqs; its settings
 *   are found again from it. Phi3MiniModel.generate_extra_tensors: longrope's factors become
 *   tensors; short_mscale and long_mscale are lost, the published value stands in for them.
 * - Not in the files at all, constants of the published models: Phi's router_jitter_noise, gpt-oss'
 *   alternating layers, swiglu_limit and truncate, Llama 4's chunks, scales and QK norm, the groups
 *   of DeepSeek files from before 2025-09.
 * - Glm4MoeModel: the MTP layer is one more block; nextn_predict_layers counts it. */
#ifndef SY_GGUF_MAP_H
#define SY_GGUF_MAP_H

#include "sy_gguf_set.h"
#include "sy_strbuf.h"

/* Appends the text of an equivalent config.json. SY_EINVAL: general.architecture is none of the
 * known families (the message lists them), a dense model, a key is missing or of another type,
 * layers that differ where they may not. SY_EDATALOSS: a file was cut while open. */
SY_MUST_USE sy_status sy_gguf_config(sy_strbuf *out, const sy_gguf_set *set, sy_error *err);

/* Which part of Hugging Face's tensor a tensor is. */
typedef enum sy_gguf_part {
    SY_GGUF_WHOLE,
    SY_GGUF_GATE, /* of one that holds gate and up rows, of an expert each */
    SY_GGUF_UP,
    SY_GGUF_KV_B_K, /* of kv_b_proj: of each head, the first (nope) rows */
    SY_GGUF_KV_B_V  /* the remaining rows of each head */
} sy_gguf_part;

typedef struct sy_gguf_place {
    /* "model.layers.3.mlp.experts.{e}.gate_proj.weight": {e} stands for each expert. Empty for a
     * tensor that a forward pass does not need: rope factors, which the configuration has, and MTP
     * layers. */
    char name[SY_TENSOR_NAME_MAX + 1];
    int32_t layer; /* -1: none */
    sy_gguf_part part;
    int is_of_experts;  /* the outermost dimension counts experts, whether or not {e} is in the name
                         */
    int is_interleaved; /* GATE and UP: Hugging Face's rows alternate; else gate comes first */
    int is_transposed;  /* each expert's matrix is [columns, rows] there */
    uint32_t head_rows; /* > 0: the rows of each head, so many, stand interleaved here */
    uint64_t n_matrices;        /* experts, heads of KV_B_*, or 1 */
    uint64_t n_rows, n_columns; /* of one matrix, as sy_gguf_read_rows gives it; a vector: 1 row */
} sy_gguf_place;

/* What tensor, of that set, is. SY_EINVAL: the family has no such tensor, or its shape cannot be.
 */
SY_MUST_USE sy_status sy_gguf_place_of(sy_gguf_place *out, const sy_gguf_set *set,
                                       const sy_gguf_tensor *tensor, sy_error *err);

/* out: [n, n_columns]: rows [begin, begin + n) of one matrix of the tensor that place was made of,
 * decoded, in Hugging Face's order: head_rows and the transposition of KV_B_K are undone; a bias
 * whose heads are interleaved is put in order as well. The rows are always those of a linear layer,
 * [out, in], also where is_transposed. SY_EUNIMPLEMENTED: a type that is not decoded. SY_EDATALOSS:
 * the file was cut while open. SY_ENOMEM. */
SY_MUST_USE sy_status sy_gguf_read_rows(float *out, const sy_gguf_tensor *tensor,
                                        const sy_gguf_place *place, uint64_t matrix, uint64_t begin,
                                        uint64_t n, sy_error *err);

#endif
