/* sy_gguf_tokenizer.h - the vocabulary in a GGUF file's metadata as the texts of tokenizer.json and
 * tokenizer_config.json, as sy_tokenizer_parse reads them. Pure. Any thread.
 *
 * tokenizer.ggml.model is "gpt2" (byte-level BPE) or "llama" (SentencePiece BPE). A file does not
 * have the pre-tokenizer itself but a name for it, tokenizer.ggml.pre, which the converter finds by
 * hashing what a tokenizer makes of a test text (get_vocab_base_pre); llama.cpp's llama-vocab.cpp
 * has the patterns, adapted to its own engine. Here are the original patterns of the families'
 * tokenizer.json files; what llama.cpp's adaptation does otherwise is not followed, nor does it
 * normalise to NFC, as the original Qwen and OLMo files say and as is done here.
 *
 * A "llama" vocabulary has scores instead of merges. They are made of them by the rule of
 * transformers' SentencePieceExtractor (convert_slow_tokenizer.py, generate_merges): every split of
 * a piece into two pieces, by falling score of the piece, then length of the left part, then of the
 * right, in characters, then rising id.
 *
 * Lost in the conversion, and not made up: lstrip and rstrip of added tokens (Phi's), and whether
 * an added token was `special`: the converter calls what looks like one CONTROL. */
#ifndef SY_GGUF_TOKENIZER_H
#define SY_GGUF_TOKENIZER_H

#include "sy_gguf.h"
#include "sy_strbuf.h"

#define SY_GGUF_VOCAB_MAX   (1u << 24)
#define SY_GGUF_PIECE_BYTES 1024u /* of a SentencePiece piece: all its splits are looked at */

/* Appends both texts; the second has bos_token, eos_token, add_bos_token, add_eos_token and
 * chat_template, as far as the file has them. SY_EINVAL: a key is missing or malformed.
 * SY_EUNIMPLEMENTED: another model, or a pre-tokenizer that is not known: the message names it. */
SY_MUST_USE sy_status sy_gguf_tokenizer(sy_strbuf *tokenizer_json, sy_strbuf *config_json,
                                        const sy_gguf *metadata, sy_error *err);

#endif
