"""Emulated GPUs for processes under test: the plugin's own host code and kernels (tests/emu)."""
import functools
import json
import os
import pathlib
import tempfile

import pytest

from sy_client import BUILD
from sy_cluster import run_tool

PLUGIN = BUILD / "tests" / "emu" / "plugin"
needs_emulated_gpus = pytest.mark.skipif(not PLUGIN.exists(), reason="built without a C++ compiler")


def emulated():
    """The environment of a process whose GPUs are emulated. Every thread of a GPU is a fiber, and a
    stack of the sanitizer's for each makes it twenty times as slow."""
    options = [os.environ.get("ASAN_OPTIONS"), "detect_stack_use_after_return=0"]
    return {"SWITCHYARD_BACKEND_DIR": str(PLUGIN),
            "ASAN_OPTIONS": ":".join(filter(None, options))}


class Gpus:
    """The emulated GPUs of one process, and what goes wrong with them."""

    def __init__(self, directory, n=2, memory_mb=96, fault=None):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="gpus-", dir=directory))
        self.control = directory / "control"
        self.control.touch()
        self.env = {**emulated(), "SY_EMU_DEVICES": str(n), "SY_EMU_MEMORY_MB": str(memory_mb),
                    "SY_EMU_CONTROL": str(self.control)}
        if fault is not None:
            self.env["SY_FAULT"] = fault

    def tell(self, *lines):
        new = self.control.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in lines))
        os.replace(new, self.control)


@functools.cache
def arithmetic():
    """What the emulated GPUs announce."""
    return json.loads(run_tool("devices", "--json", env=emulated()))["cuda"]["devices"][0]["arithmetic"]
