"""Clusters for the tests: HandCluster starts every process itself, so that a test can leave one
out, kill, pause or restart it; UpCluster is what `switchyard up` makes of the same programs."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

import redis

from sy_client import (BIN, MODEL, ROOT, SANITIZED, WAIT_S, Client, http_get, metric,
                       wait_for)

# What a process must never write, whatever happened to it.
BAD_NEWS = re.compile(r"ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error:|"
                      r"assertion|Assertion|SY_ASSERT|stack smashing|double free|free\(\): invalid")
live = []  # clusters not closed yet: a failing test shows their logs

# No servers survive a killed pytest. Not by preexec_fn, which would run gRPC's handlers of fork in
# the child, with threads gone that they wait for.
DIE_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"]


def server_env():
    env = dict(os.environ)
    env.setdefault("TSAN_OPTIONS", f"suppressions={ROOT}/tests/support/tsan.supp")
    return env


def run_tool(*args, timeout_s=None, check=True, env=None):
    """`switchyard ARGS...`; its stdout, or the CompletedProcess when check is false."""
    done = subprocess.run([str(BIN / "switchyard"), *map(str, args)], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=timeout_s or WAIT_S * 2,
                          env={**server_env(), **(env or {})})
    if not check:
        return done
    assert done.returncode == 0, f"switchyard {args[0]} ended with {done.returncode}\n{done.stderr}"
    return done.stdout


class Process:
    """One server with its log. Started from the main thread only: it dies with its starter."""

    def __init__(self, name, argv, log, env=None):
        self.name, self.argv, self.log, self.env = name, argv, log, env
        self.popen = None
        self.n_starts = 0
        self.start()

    def start(self):
        self.n_starts += 1
        with open(self.log, "ab") as log:
            self.popen = subprocess.Popen([*DIE_WITH_PARENT, *self.argv], stdin=subprocess.DEVNULL,
                                          stdout=log, stderr=log,
                                          env={**server_env(), **(self.env or {})})

    @property
    def pid(self):
        return self.popen.pid

    def alive(self):
        return self.popen.poll() is None

    def signal(self, signum):
        self.popen.send_signal(signum)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.popen.wait(WAIT_S)

    def terminate(self, timeout_s=None):
        """SIGTERM; the exit code."""
        if self.alive():
            self.signal(signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s=None):
        try:
            return self.popen.wait(timeout_s or WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} does not end\n{self.tail()}") from None

    def text(self):
        return pathlib.Path(self.log).read_text(errors="replace")

    def tail(self, n=40):
        return "\n".join(self.text().splitlines()[-n:])


def rss_bytes(pid):
    fields = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s+(\d+) kB", fields, re.M).group(1)) << 10


class Cluster:
    """What the tests need to know, however it was started."""

    def __init__(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sy-", dir="/tmp"))
        self.model_name = MODEL.name
        live.append(self)

    # Filled in by who starts it.
    redis_path = None

    def redis(self):
        return redis.Redis(unix_socket_path=self.redis_path, decode_responses=True)

    @property
    def placement_key(self):
        return f"switchyard:{{{self.model_name}}}:placement"

    def client(self, i=0):
        return Client(self.aggregators[i])

    def set_placement(self, fields):
        """One transaction of HSETs, as an operator's script would do."""
        with self.redis() as r:
            r.hset(self.placement_key, mapping=fields)

    def placement_of(self, name):
        status, body = http_get(self.http(name), "/placement")
        return json.loads(body) if status == 200 else {}

    def hash_of(self, name):
        found = self.placement_of(name).get("hash")
        return int(found, 16) if found else None

    def json_of(self, name, path):
        """What the process says at this path of its HTTP port; None while it does not answer."""
        status, body = http_get(self.http(name), path)
        return json.loads(body) if status == 200 else None

    def shards_of(self, name):
        """Every shard that is not absent on a node; None while the node does not answer."""
        told = self.json_of(name, "/shards")
        return told and told["shards"]

    def nodes_of(self, aggregator):
        """The expert nodes as an aggregator sees them."""
        told = self.json_of(aggregator, "/nodes")
        return told["nodes"] if told else []

    def metric(self, name, metric_name):
        return metric(self.http(name), metric_name)

    def ready(self, name):
        return http_get(self.http(name), "/readyz")[0] == 200

    def wait_ready(self, *names, timeout_s=None):
        for name in names or self.names():
            wait_for(lambda n=name: self.ready(n) or self._check_alive(n), f"{name} to be ready",
                     timeout_s)

    def wait_idle(self, name="aggregator-0"):
        wait_for(lambda: self.metric(name, "switchyard_running_requests") == 0
                 and self.metric(name, "switchyard_waiting_requests") == 0, f"{name} to be idle")

    def wait_resident(self, counts):
        """counts: node name -> number of shards in its memory."""
        for name, n in counts.items():
            wait_for(lambda name=name, n=n: self.metric(name, "switchyard_expert_shards") == n,
                     f"{n} shards on {name}")

    def wait_same_hash(self, *names, other_than=None):
        """Every process named has one and the same placement in force; returns its hash."""
        def agreed():
            hashes = {self.hash_of(n) for n in names}
            return len(hashes) == 1 and None not in hashes and hashes != {other_than} and hashes
        return wait_for(agreed, f"one placement on {names}").pop()

    def bad_news(self):
        """Lines of sanitizers and failed assertions in the logs."""
        return [line for log in self.logs() for line in
                log.read_text(errors="replace").splitlines() if BAD_NEWS.search(line)]

    def report(self):
        return "\n".join(f"---- {log.name}\n" +
                         "\n".join(log.read_text(errors="replace").splitlines()[-60:])
                         for log in self.logs())

    def logs(self):
        return sorted(self.dir.rglob("*.log"))

    def _forget(self, keep):
        live.remove(self)
        news = self.bad_news()
        if not keep and not news:
            shutil.rmtree(self.dir, ignore_errors=True)
        assert not news, f"the logs in {self.dir} hold bad news:\n" + "\n".join(news[:40])

    def _check_alive(self, _name):
        return False


class HandCluster(Cluster):
    """Starts nothing by itself. Names are those of the processes: router-0, expert-1, ..."""

    def __init__(self, experts=0, routers=0, aggregators=0, **aggregator_options):
        super().__init__()
        self.process = {}
        self.redis_path = f"{self.dir}/redis.sock"
        if experts + routers + aggregators == 0:
            return
        try:
            self.start_redis()
            for i in range(experts):
                self.start("expert", i)
            for i in range(routers):
                self.start("router", i)
            for i in range(aggregators):
                self.start("aggregator", i, **aggregator_options)
            self.set_placement(self.spread(experts))
            self.wait_ready()
            self.wait_connected()
        except BaseException:
            print(self.report())
            self.close()
            raise

    def wait_connected(self, *names):
        """The aggregators are connected to these nodes and routers (default: all). Ready does not
        say that: one router is enough for it. Told by their logs: as many connections as the
        process was started, and the latest of them not lost."""
        names = names or [n for n in self.names() if not n.startswith("aggregator")]
        logs = [p for n, p in self.process.items() if n.startswith("aggregator")]

        def connected(log, name):
            peer = f"peer {name} at {self.address(name)}: "
            events = [line for line in log.text().splitlines() if peer in line]
            ups = [line for line in events if line.endswith(": up")]
            return len(ups) >= self.process[name].n_starts and events[-1] == ups[-1]
        for name in names:
            for log in logs:
                wait_for(lambda: connected(log, name), f"{log.name} to be connected to {name}")

    def names(self):
        return [n for n in self.process if n != "redis"]

    def address(self, name):
        return f"unix:{self.dir}/{name}.sock"

    def http(self, name):
        return f"unix:{self.dir}/{name}.http"

    @property
    def aggregators(self):
        return [self.address(n) for n in self.process if n.startswith("aggregator")]

    def pids(self):
        return {n: p.pid for n, p in self.process.items() if n != "redis"}

    def start_redis(self):
        argv = ["redis-server", "--port", "0", "--unixsocket", self.redis_path, "--save", "",
                "--appendonly", "no", "--dir", str(self.dir)]
        self.process["redis"] = Process("redis", argv, f"{self.dir}/redis.log")
        self.wait_redis()

    def wait_redis(self):
        def answers():
            try:
                with self.redis() as r:
                    return r.ping()
            except redis.RedisError:
                return False
        wait_for(answers, "redis to answer")

    def argv(self, tier, name, **options):
        patience = {"silent-ms": 20000} if SANITIZED and tier == "aggregator" else {}
        options = {**patience, "model": MODEL, "model-name": self.model_name, "name": name,
                   "listen": self.address(name), "http": self.http(name),
                   "redis": f"unix:{self.redis_path}", "threads": 2, **options}
        return [str(BIN / f"switchyard-{tier}"),
                *(f"--{k}={v}" for k, v in options.items() if v is not None)]

    def start(self, tier, i=0, env=None, **options):
        """Options are spelt with underscores: peer_timeout_ms=500."""
        name = f"{tier}-{i}"
        options = {k.replace("_", "-"): v for k, v in options.items()}
        self.process[name] = Process(name, self.argv(tier, name, **options),
                                     f"{self.dir}/{name}.log", env)
        return self.process[name]

    def spread(self, n_nodes, layers=4, experts=16):
        """The even placement, written down here a second time on purpose."""
        return {f"{layer}/{e}": f"expert-{(e + layer) % n_nodes}/cpu:0"
                for layer in range(layers) for e in range(experts)}

    def everywhere(self, *nodes, layers=4, experts=16):
        value = " ".join(f"{n}/cpu:0" for n in nodes)
        return {f"{layer}/{e}": value for layer in range(layers) for e in range(experts)}

    def _check_alive(self, name):
        process = self.process[name]
        assert process.alive(), f"{name} ended with {process.popen.returncode}\n{process.tail()}"
        return False

    def close(self, keep=False):
        for process in self.process.values():
            if process.alive():
                process.signal(signal.SIGCONT)
        codes = {}
        for name in sorted(self.process, key=lambda n: (n == "redis", n)):
            process = self.process[name]
            was_alive = process.alive()
            if was_alive:
                process.signal(signal.SIGTERM)
        for name, process in self.process.items():
            try:
                code = process.popen.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                code = "no end within the time"
            if code not in (0, -signal.SIGKILL):
                codes[name] = code
        self._forget(keep or codes)
        assert not codes, f"bad ends: {codes}; logs in {self.dir}"


class UpCluster(Cluster):
    """What `switchyard up --detach` starts and supervises."""

    def __init__(self, experts=1, routers=1, aggregators=1, model=MODEL, **options):
        super().__init__()
        options = {"experts": experts, "routers": routers, "aggregators": aggregators, "threads": 2,
                   **options}
        if SANITIZED:
            options["aggregator_arg"] = "--silent-ms=20000"
        args = [f"--{k.replace('_', '-')}" + ("" if v is True else f"={v}")
                for k, v in options.items()]
        try:
            self.told = json.loads(run_tool("up", "--model", model, "--dir", self.dir, "--detach",
                                            "--json", *args, timeout_s=WAIT_S * 4))
        except BaseException:
            print(self.report())
            live.remove(self)
            raise
        self.processes = {p["name"]: p for p in self.told["processes"]}
        self.aggregators = self.told["aggregators"]
        self.redis_path = self.told["redis"].removeprefix("unix:")

    def names(self):
        return [n for n in self.processes if n != "redis"]

    def address(self, name):
        return self.processes[name]["address"]

    def http(self, name):
        return self.processes[name]["http"]

    def status(self):
        return json.loads(run_tool("status", "--dir", self.dir, "--json", check=False).stdout)

    def pid(self, name):
        """The process that runs now; 0 while it is being started again."""
        return next(p["pid"] for p in self.status()["processes"] if p["name"] == name)

    def kill(self, name):
        """SIGKILL; returns the pid that is gone."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_restarted(self, name, old_pid):
        wait_for(lambda: self.pid(name) not in (0, old_pid), f"{name} to be started again")

    def close(self, keep=False):
        run_tool("down", "--dir", self.dir, timeout_s=WAIT_S * 4)
        self._forget(keep)
