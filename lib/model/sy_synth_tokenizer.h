/* sy_synth_tokenizer.h - the tokenizer files of a synthetic checkpoint. Private to lib/model. */
#ifndef SY_SYNTH_TOKENIZER_H
#define SY_SYNTH_TOKENIZER_H

#include "sy_status.h"

/* source_dir: where tokenizer.json and tokenizer_config.json are copied from; NULL: a tokenizer
 * whose token b is the byte b is written. */
SY_MUST_USE sy_status sy_synth_tokenizer_write(const char *dir, const char *source_dir,
                                               sy_error *err);
/* The id that ends a text: the source's generation_config.json's first, or the last id when it
 * names none; without a source byte 0, which no text holds. SY_EINVAL: vocab is too small for that
 * tokenizer. */
SY_MUST_USE sy_status sy_synth_eos(uint32_t *out, const char *source_dir, uint32_t vocab,
                                   sy_error *err);

#endif
