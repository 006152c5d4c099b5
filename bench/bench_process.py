"""Runs the programs that are measured: `switchyard run` in one process, and clusters of
`switchyard up`. Every figure comes from what the programs print about themselves."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

TIMEOUT_S = 900


class Failed(Exception):
    """A program did not do what was asked: nothing it says is a figure."""


def call(argv):
    """stdout of a program that must succeed, and its peak memory in bytes."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=out,
                                 stderr=err)
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:  # Ctrl-C: leave nothing behind
            child.kill()
            raise
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode != 0:
            raise Failed(f"{' '.join(map(str, argv[:3]))} ...: exit code {child.returncode}: "
                         f"{err.read().decode(errors='replace')[-600:]}")
        return out.read().decode(), usage.ru_maxrss << 10


def raise_priority(pid):
    """Linux shares the cores between sessions before it looks at processes: lifts the whole session
    of the process above the others. Needs root; without it, or without such groups, nothing."""
    try:
        pathlib.Path(f"/proc/{pid}/autogroup").write_text("-20")
    except OSError as why:
        print(f"the priority of process {pid} stays as it is: {why}", file=sys.stderr)


def tokens_option(ids):
    return ["--tokens", ",".join(map(str, ids))]


class OneProcess:
    """`switchyard run`: no gRPC, no Redis. It loads the model for every request, which is not part
    of any figure."""

    def __init__(self, bin_dir, model_dir, threads, options=()):
        self.argv = [bin_dir / "switchyard", "run", "--model", model_dir, "--threads", threads,
                     "--ignore-eos", "--json", *options]
        self.peak = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def _ask(self, extra):
        text, peak = call(self.argv + extra)
        self.peak = max(self.peak, peak)
        return [json.loads(line) for line in text.splitlines()]

    def generate(self, ids, max_tokens):
        return self._ask([*tokens_option(ids), "--max-tokens", max_tokens])[0]

    def generate_from(self, path, max_tokens):
        """The prompt is the text of a file: for prompts longer than a command line."""
        return self._ask(["--prompt-file", path, "--max-tokens", max_tokens])[0]

    def at_once(self, prompts, max_tokens):
        """Tokens a second of all prompts together, from the submission to the last answer."""
        with prompts_file(prompts) as path:
            answers = self._ask(["--prompts-file", path, "--max-tokens", max_tokens])
        wall_s = max(a["timing"]["total_ms"] for a in answers) / 1e3
        return {"tokens_per_s": sum(len(a["tokens"]) for a in answers) / wall_s,
                "tokens": [a["tokens"] for a in answers]}

    def peak_bytes(self):
        return {"run": self.peak}


class Cluster:
    """`switchyard up`, its own Redis included, on Unix sockets."""

    def __init__(self, bin_dir, model_dir, threads, experts, router="remote", is_raised=False,
                 options=(), expert_threads=None):
        self.is_raised = is_raised
        # As `up` does when it is not told: nodes share the cores out among themselves.
        expert_threads = expert_threads or max(1, threads // experts)
        options = [*options, f"--expert-arg=--threads={expert_threads}"]
        self.tool = bin_dir / "switchyard"
        self.argv = [self.tool, "up", "--model", model_dir, "--threads", threads, "--experts",
                     experts, "--router", router, "--log-level", "warn", "--timeout-s", 600,
                     "--detach", "--json", *options]
        self.dir = None

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="sy-bench-", dir="/tmp")
        try:
            started = json.loads(call([*self.argv, "--dir", self.dir])[0])
        except BaseException:
            self._stop()
            raise
        self.target = started["aggregators"][0]
        self.pids = {p["name"]: p["pid"] for p in started["processes"]}
        for pid in self.pids.values() if self.is_raised else ():
            raise_priority(pid)
        return self

    def __exit__(self, *_):
        self._stop()

    def _stop(self):
        stopped = subprocess.run([str(self.tool), "down", "--dir", self.dir], capture_output=True,
                                 timeout=TIMEOUT_S, check=False)
        if stopped.returncode != 0:
            print(f"switchyard down: {stopped.stderr.decode(errors='replace')}", file=sys.stderr)
        shutil.rmtree(self.dir, ignore_errors=True)

    def _ask(self, extra):
        return json.loads(call([self.tool, "generate", "--target", self.target, "--ignore-eos",
                                "--json", *extra])[0])

    def generate(self, ids, max_tokens):
        return self._ask([*tokens_option(ids), "--max-tokens", max_tokens])

    def generate_from(self, path, max_tokens):
        return self._ask(["--prompt-file", path, "--max-tokens", max_tokens])

    def at_once(self, prompts, max_tokens):
        if len(prompts) == 1:  # is no load, and is answered otherwise
            answer = self.generate(prompts[0], max_tokens)
            return {"tokens_per_s": len(answer["tokens"]) * 1e3 / answer["timing"]["total_ms"],
                    "tokens": [answer["tokens"]]}
        with prompts_file(prompts) as path:
            answer = self._ask(["--prompts-file", path, "--max-tokens", max_tokens,
                                "--concurrency", len(prompts)])
        outputs = [json.loads(o) if isinstance(o, str) else o for o in answer["outputs"]]
        return {"tokens_per_s": answer["tokens_per_s"], "tokens": [o["tokens"] for o in outputs],
                "first_token_ms": answer["first_token_ms"]}

    def peak_bytes(self):
        """Of each process, Redis left out; while the cluster is up."""
        return {name: int(re.search(r"^VmHWM:\s+(\d+) kB",
                                    pathlib.Path(f"/proc/{pid}/status").read_text(),
                                    re.M).group(1)) << 10
                for name, pid in self.pids.items() if name != "redis"}


class prompts_file:
    """A file of prompts that lives for a `with` block."""

    def __init__(self, prompts):
        self.prompts = prompts

    def __enter__(self):
        fd, self.path = tempfile.mkstemp(suffix=".jsonl", dir="/tmp")
        with os.fdopen(fd, "w") as file:
            file.writelines(json.dumps({"tokens": ids}) + "\n" for ids in self.prompts)
        return self.path

    def __exit__(self, *_):
        os.unlink(self.path)
