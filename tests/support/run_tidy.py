#!/usr/bin/env python3
"""clang-tidy over files, but for those in which it has found nothing before: nearly all of its time is
its analyzer's, which would walk the same paths again. As for ccache, a file is what the preprocessor
makes of it, comments included, with the options, the checks and the version.

usage: run_tidy.py BUILD-DIRECTORY N-JOBS FILE...    prints findings; exit code 1 when there are some"""
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache",
                     "switchyard-tidy")


def text_of(entry):
    """What a file is to the compiler, wherever the tree lies; None where that cannot be told."""
    words = shlex.split(entry["command"])
    at = words.index("-o")
    del words[at:at + 2]
    done = subprocess.run([*words, "-E", "-C", "-P"], cwd=entry["directory"], capture_output=True)
    command = " ".join(words).replace(str(ROOT), "")
    text = done.stdout.replace(str(ROOT).encode(), b"")  # of assertions, which name their file
    return None if done.returncode else command.encode() + text


def check(file, build, entry, common):
    """clang-tidy's exit code and what it printed."""
    text = entry and text_of(entry)
    clean = text and CACHE / hashlib.sha256(common + text).hexdigest()
    if clean and clean.exists():
        clean.touch()  # so that a cache may be emptied of what nobody asks for
        return 0, ""
    done = subprocess.run(["clang-tidy", "-p", build, "--quiet", file], capture_output=True, text=True)
    if clean and done.returncode == 0 and not done.stdout.strip():
        clean.touch()
    return done.returncode, done.stdout + done.stderr


def main():
    build, n_jobs, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    common = version + (ROOT / ".clang-tidy").read_bytes()
    commands = json.loads(pathlib.Path(build, "compile_commands.json").read_text())
    entries = {entry["file"]: entry for entry in commands}
    CACHE.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(n_jobs) as pool:
        done = list(pool.map(lambda f: check(f, build, entries.get(str(ROOT / f)), common), files))
    print("".join(text for code, text in done if code))
    return int(any(code for code, _ in done))


if __name__ == "__main__":
    sys.exit(main())
