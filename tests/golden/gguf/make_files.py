"""Writes whole.gguf and parts-0000N-of-00002.gguf with the `gguf` package of ggml's authors, for
tests/unit/model/test_gguf.c; made with gguf 0.19.0 and numpy 2.4.6:

    venv/bin/python tests/golden/gguf/make_files.py tests/golden/gguf"""

import sys

import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter, quants


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def whole(folder):
    writer = GGUFWriter(f"{folder}/whole.gguf", "qwen3moe")
    writer.add_block_count(1)
    writer.add_token_list(["a", "b", "ab"])
    writer.add_chat_template("{{ messages }}")
    values = ((np.arange(3 * 2 * 64) % 16 - 8) / 16).astype(np.float32).reshape(3, 2, 64)
    writer.add_tensor("blk.0.ffn_up_exps.weight", quants.quantize(values, T.Q4_0), raw_dtype=T.Q4_0)
    writer.add_tensor("token_embd.weight", np.ones((3, 8), dtype=np.float16))
    finish(writer)


def parts(folder):
    writer = GGUFWriter(f"{folder}/parts.gguf", "qwen3moe", split_max_tensors=2)
    writer.add_block_count(1)
    for i, name in enumerate("abc"):
        writer.add_tensor(name, np.arange(i, i + 4, dtype=np.float32))
    finish(writer)


whole(sys.argv[1])
parts(sys.argv[1])
