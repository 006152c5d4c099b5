"""The steps of run_on_gpu.sh and their JSON. Standard library alone; what was built lies in --build:
bin/ (programs of Switchyard), gpu/ (programs of this folder), lib/switchyard/ (the plugin)."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import time
import traceback
import xml.etree.ElementTree as tree

import gpu_probe

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NO_DEVICE = "no driver, or no device"
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
# What may take all of the time that is left comes last.
STEPS = ("device", "kernels", "probe", "plugin", "model", "service", "cluster", "measure",
         "sanitizer")
# Seconds that a step may take at most. What is left of all of them bounds it, too.
BUDGET_S = {"device": 60, "kernels": 120, "probe": 60, "plugin": 60, "model": 100, "service": 70,
            "cluster": 120, "measure": 220, "sanitizer": 600}
# What serves in a cluster: the family (None: the bundled model), how experts are held, and whether the
# aggregator's trunk is on the GPU, too, which it can be where its matrices are bf16.
CLUSTERS = (("deepseek_v3", None, True), ("gpt_oss", None, True), ("llama4_text", None, True),
            ("deepseek_v3_fp8", "fp8", True), ("deepseek_v3", "q4", True),
            ("gpt_oss_mxfp4", "mxfp4", False), (None, None, True))
WIDE_LAYERS = 4


class Skip(Exception):
    """The step cannot be done here; says why."""


class Ended:
    """A program that has ended, by itself or because its time was up."""

    def __init__(self, command, timeout_s, env=None):
        self.command = [str(c) for c in command]
        begin = time.monotonic()
        with subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, cwd=ROOT, text=True, errors="replace",
                              env={**os.environ, **(env or {})}, start_new_session=True) as running:
            try:
                self.out, self.err = running.communicate(timeout=timeout_s)
                self.code = running.returncode
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, 9)
                self.out, self.err = running.communicate()
                self.code = None
        self.seconds = time.monotonic() - begin

    def why(self):
        """One line: how it ended, and the last thing it said."""
        if self.code is None:
            how = f"was stopped after {self.seconds:.0f} s"
        elif self.code < 0:
            how = f"was killed by signal {-self.code}"
        else:
            how = f"ended with {self.code}"
        said = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return f"{pathlib.Path(self.command[0]).name} {how}" + (f": {said[-1]}" if said else "")

    def objects(self):
        """The JSON objects among its lines."""
        found = []
        for line in self.out.splitlines():
            if line.startswith("{"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass
        return found


def case(name, reason=None, **more):
    """reason: None when it passed."""
    return {"name": name, "result": "fail" if reason else "pass",
            **({"reason": str(reason)[:1000]} if reason else {}), **more}


class Run:
    """What is known of the machine, and what each step found."""

    def __init__(self, args):
        self.args = args
        self.build = args.build.resolve()
        self.begin = self.step_end = time.monotonic()
        self.has_device = False
        self.report = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(
            timespec="seconds"), "commit": commit(args), "quick": args.quick,
            "without_gpu": args.without_gpu, "host": host(), "toolkit": toolkit(),
            "device": None, "steps": {}, "ceilings": {}, "kernels": [], "model": None,
            "service": None, "clusters": []}
        if args.built_in is not None:
            self.report["build_seconds"] = args.built_in

    def left_s(self, most):
        """Of a program, of its step, or of all, whichever is over first."""
        now = time.monotonic()
        return max(5.0, min(most, self.step_end - now, self.begin + self.args.seconds - now))

    def program(self, name):
        path = self.build / "gpu" / name
        if not path.exists():
            raise Skip(f"{name} was not built")
        return path

    def needs_device(self):
        if not self.has_device:
            raise Skip(NO_DEVICE)

    def step(self, name):
        begin = time.monotonic()
        self.step_end = begin + BUDGET_S[name]
        found = {"cases": []}
        say(f"{name}")
        try:
            getattr(self, f"step_{name}")(found["cases"])
            results = {c["result"] for c in found["cases"]}
            found["result"] = "fail" if "fail" in results else \
                "pass" if "pass" in results else "skip"
        except Skip as e:
            found.update(result="skip", reason=str(e))
        except Exception as e:  # pylint: disable=broad-except
            traceback.print_exc()
            found.update(result="fail", reason=f"{type(e).__name__}: {e}"[:1000])
        found["seconds"] = round(time.monotonic() - begin, 2)
        self.report["steps"][name] = found
        for c in found["cases"]:
            if c["result"] != "pass":
                print(f"  {c['result']}: {c['name']}: {c.get('reason', '')}")
        print(f"  {found['result']}" + (f": {found['reason']}" if "reason" in found else "") +
              f" ({found['seconds']} s)", flush=True)
        self.save()

    def save(self):
        """After every step, so that what was found stays when the machine is taken away."""
        cases = [c for s in self.report["steps"].values() for c in s["cases"] or [s]]
        self.report["counts"] = {r: sum(c["result"] == r for c in cases)
                                 for r in ("pass", "fail", "skip")}
        self.report["seconds"] = round(time.monotonic() - self.begin, 1)
        out = self.args.out or self.default_out()
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_suffix(".part")
        part.write_text(json.dumps(self.report, indent=1) + "\n", encoding="utf-8")
        part.replace(out)
        return out

    def default_out(self):
        if not self.has_device:
            return ROOT / "build" / "gpu-without-device.json"
        device = re.sub(r"[^a-z0-9]+", "-", self.report["device"]["name"].lower()).strip("-")
        return ROOT / "bench" / "results" / f"gpu-{self.report['date'][:10]}-{device}.json"

    # ---- steps ----

    def step_device(self, cases):
        """A kernel runs; what the device is."""
        if self.args.without_gpu:
            raise Skip("not looked for")
        done = Ended([self.program("measure_gpu"), "--info"], self.left_s(60))
        found = [o for o in done.objects() if o["kind"] == "device"]
        if found:
            self.report["device"] = {**found[0], **nvidia_smi()}
        self.has_device = done.code == 0
        cases.append(case("a kernel runs", None if self.has_device else done.why()))

    def kernel_tests(self):
        """Without the results that lie beside them."""
        return sorted(p for p in (self.build / "gpu").glob("gpu_test_*") if not p.suffix)

    def step_kernels(self, cases):
        """The tests of tests/emu, on the device."""
        tests = self.kernel_tests()
        if not tests:
            raise Skip("nothing was built")
        for test in tests:
            if not self.has_device:
                cases.append(self.without_device(test))
                continue
            cases += cmocka_cases(test, self.left_s(60))
        if not self.has_device:
            cases += cmocka_cases(self.program("gpu_ops_emulated"), self.left_s(60))

    def without_device(self, program):
        """It loads, and says why it cannot go on."""
        done = Ended([program], 60)
        if "cudaErrorInsufficientDriver" in done.err or "cudaErrorNoDevice" in done.err:
            return {"name": program.name, "result": "skip", "reason": NO_DEVICE}
        return case(program.name, f"not the end that was expected: {done.why()}")

    def step_probe(self, cases):
        """The instructions' results, beside the emulator's."""
        emulator = self.build / "gpu" / "probe-emulator.txt"
        device = self.build / "gpu" / "probe-device.txt"
        made = self.write_probe("gpu_probe_emulated", emulator)
        if made is not None:
            cases.append(case("the emulator's side", made))
            return
        if self.has_device:
            made = self.write_probe("gpu_probe_device", device)
            if made is not None:
                cases.append(case("the device's side", made))
        else:
            cases.append({"name": "the device's side", "result": "skip", "reason": NO_DEVICE})
            device = emulator
        want, got = gpu_probe.read(emulator), gpu_probe.read(device)
        cases += [case(name if self.has_device else f"{name}, the emulator beside itself", what)
                  for name, what in gpu_probe.compare(want, got).items()]
        if got:
            self.report["rounding"] = {"of": "device" if self.has_device else "emulator",
                                       **gpu_probe.rounding(got)}

    def write_probe(self, name, path):
        """What went wrong, or None."""
        done = Ended([self.program(name)], self.left_s(60))
        path.write_text(done.out, encoding="utf-8")
        return None if done.code == 0 else done.why()

    def step_plugin(self, cases):
        """The plugin opens the device, copies there and back, and measures."""
        switchyard = self.build / "bin" / "switchyard"
        if not switchyard.exists():
            raise Skip("switchyard was not built")
        done = Ended([switchyard, "devices", "--measure", "--json"], self.left_s(60))
        told = json.loads(done.out)["cuda"]
        self.report["plugin"] = told
        if not self.has_device:
            cases.append(case("it loads and tells the reason",
                              None if told["plugin"] else told.get("why", "no plugin")))
            return
        for found in told["devices"]:
            measured = found.get("measured", {})
            cases.append(case(found["device"], None if found["usable"] and
                              measured.get("status") == "OK" else found.get("why") or
                              measured.get("why") or done.why()))
        if not told["devices"]:
            cases.append(case("cuda:0", told.get("why", "no device")))

    def device_env(self):
        """(environment of programs that need a GPU, what to call it)."""
        if self.has_device:
            return {}, "the GPU"
        plugin = self.build / "tests" / "emu" / "plugin"
        if not (plugin / "libswitchyard_cuda.so").exists():
            raise Skip(f"{NO_DEVICE}, and the plugin of emulated ones was not built")
        return {"SWITCHYARD_BACKEND_DIR": str(plugin)}, "emulated GPUs"

    def python(self, script, *args, timeout_s):
        """A script of this folder, ended."""
        env, _ = self.device_env()
        done = Ended([sys.executable, HERE / script, "--build", self.build, *args],
                     timeout_s, env)
        if "ModuleNotFoundError" in done.err:
            raise Skip(f"{done.why()}: tests/run.sh makes .venv, which has it")
        return done

    def step_model(self, cases):
        """One process on the GPU beside the CPU, for several families; and how long a wide one takes."""
        _, where = self.device_env()
        seconds = self.left_s(BUDGET_S["model"])
        done = self.python("gpu_model.py", "--seconds", seconds - 20, timeout_s=seconds)
        objects = done.objects()
        cases += [{k: v for k, v in o.items() if k != "kind"} for o in objects if o["kind"] == "case"]
        if not any(o["kind"] == "end" for o in objects):
            cases.append(case("to its end", done.why()))
        self.report["model"] = {"on": where, "worst": max(
            (o["worst"] for o in cases if "worst" in o), default=None)}

    def step_service(self, cases):
        """Two nodes, a router, an aggregator, Redis; experts move while clients ask."""
        seconds = 20 if self.has_device and not self.args.quick else 8 if self.has_device else 2
        self.report["service"] = self.serve(cases, "the bundled model", [], seconds)

    def step_cluster(self, cases):
        """The same with other families, trunks on the GPU, and encoded experts: bits, and moves."""
        self.report["clusters"] = []
        for family, weights, trunk in CLUSTERS[::2 if self.args.quick else 1]:
            name = (family or "the bundled model") + (f" with --weights {weights}" if weights else "") \
                + (" and the trunk on the GPU" if trunk else "")
            if self.left_s(600) < 15:
                cases.append({"name": name, "result": "skip", "reason": "no time was left for it"})
                continue
            args = [*(["--family", family] if family else []),
                    *(["--weights", weights] if weights else []),
                    *(["--trunk-on-gpu"] if trunk else [])]
            found = self.serve(cases, name, args, 6 if self.has_device else 1)
            self.report["clusters"].append({"of": name, **found})

    def serve(self, cases, name, args, seconds):
        """A cluster for about so long: what it told of itself. Two cases, of bits and of moves."""
        for tool in ("redis-server", "setpriv"):
            if shutil.which(tool) is None:
                raise Skip(f"{tool} is not there")
        _, where = self.device_env()
        descriptors = self.build / "python" / "switchyard.pb"
        if descriptors.exists():
            args = [*args, "--descriptors", descriptors]
        done = self.python("gpu_service.py", "--seconds", seconds, *args, timeout_s=self.left_s(70))
        found = (done.objects() or [{"result": "fail", "reason": done.why()}])[-1]
        if found["result"] != "pass":
            print(done.err[-6000:], file=sys.stderr)
        cases.append(case(f"{name}: the bits of answers stay while experts move, on {where}",
                          found.get("reason") or (None if done.code == 0 else done.why())))
        if "moved_by" in found:
            cases.append(case(f"{name}: experts go from node to node by CUDA IPC, on {where}",
                              not_by_ipc(found["moved_by"])))
        return {"on": where, **found}

    def step_sanitizer(self, cases):
        """compute-sanitizer over the smallest cases."""
        tool = shutil.which("compute-sanitizer") or next(
            (str(p) for p in pathlib.Path("/usr/local").glob("cuda*/bin/compute-sanitizer")), None)
        if tool is None:
            raise Skip("not available: there is no compute-sanitizer")
        self.needs_device()
        command = [tool, "--error-exitcode", "99", "--tool"]
        measure = self.program("measure_gpu")
        trial = Ended([*command, "memcheck", measure, "--info"], self.left_s(60))
        if trial.code != 0:
            said = [line for line in (trial.out + trial.err).splitlines() if "===" in line and
                    re.search("[Ee]rror|[Uu]nable|not ", line)]
            raise Skip(f"not available: it does not work here: {said[0] if said else trial.why()}")
        for name in SANITIZERS:
            cases.append(self.sanitized([*command, name, measure, "--tiny"], f"{name}, tiny shapes"))
        for test in self.kernel_tests():
            if not self.args.quick and self.left_s(600) > 50:
                cases.append(self.sanitized([*command, "memcheck", test], f"memcheck, {test.name}"))

    def sanitized(self, command, name):
        done = Ended(command, self.left_s(40), {"SY_GPU_EXACT": "1"})
        if done.code is None:
            return {"name": name, "result": "skip", "reason": f"not done in {done.seconds:.0f} s"}
        if done.code == 0:
            return case(name, seconds=round(done.seconds, 1))
        said = [line.strip("= ") for line in done.out.splitlines() if line.startswith("=====")]
        return case(name, "; ".join(s for s in said if s)[:900] or done.why())

    def step_measure(self, cases):
        """Ceilings and the table of kernels, all results checked before they are timed."""
        if self.has_device:
            seconds = self.left_s(BUDGET_S["measure"])
            command = [self.program("measure_gpu"), "--seconds", seconds - 60]
            done = Ended(command + (["--quick"] if self.args.quick else []), seconds - 25)
        else:
            done = Ended([self.program("gpu_measure_emulated"), "--tiny"], self.left_s(120))
        objects = done.objects()
        for o in objects:
            if o["kind"] == "ceiling":
                self.report["ceilings"][o.pop("name")] = {k: v for k, v in o.items() if k != "kind"}
        self.report["kernels"] = [self.with_shares(o) for o in objects if o["kind"] == "kernel"]
        cases += check_cases(objects)
        cases += [{"name": ", ".join(filter(None, (o["kernel"], o["shape"], o["weights"]))),
                   "result": "skip", "reason": o["reason"]} for o in objects if o["kind"] == "skip"]
        if not any(o["kind"] == "end" for o in objects):
            cases.append(case("to its end", done.why()))
        elif not self.has_device:
            cases.append({"name": "times", "result": "skip", "reason": NO_DEVICE})
        self.measure_run(cases)

    def measure_run(self, cases):
        """Steps of a model as wide as a real one, experts and all, in one process."""
        name = "a step of `switchyard run`"
        if self.has_device and self.args.quick:
            cases.append({"name": name, "result": "skip", "reason": "--quick"})
            return
        args = ["--wide", WIDE_LAYERS] if self.has_device else ["--wide", 2, "--narrow"]
        done = self.python("gpu_model.py", *args, timeout_s=self.left_s(60))
        objects = done.objects()
        self.report["run"] = {"on": self.device_env()[1], "steps": []}
        for o in objects:
            kind = o.pop("kind")
            if kind == "wide":
                self.report["run"].update(o)
            elif kind == "step":
                self.report["run"]["steps"].append(o)
            elif kind == "case":
                cases.append(o)
        cases.append(case(name, None if self.report["run"]["steps"] else done.why()))

    def with_shares(self, row):
        """The row with its shares of what the device can do, per cent."""
        ceilings = self.report["ceilings"]
        row = {k: v for k, v in row.items() if k != "kind"}
        for key, ceiling, figure in (("of_copy", "copy_on_device", "gb_s"),
                                     ("of_read", "read_on_device", "gb_s"),
                                     ("of_blas", "cublaslt_bf16", "tflop_s")):
            most = ceilings.get(ceiling, {}).get(figure)
            if most and row.get(figure):
                row[key + "_percent"] = round(100.0 * row[figure] / most, 1)
        return row


# ---- what programs say ----

def cmocka_cases(program, timeout_s):
    """A program of cmocka tests: one case a test, and one of the program when it did not end."""
    xml = program.with_suffix(".xml")
    xml.unlink(missing_ok=True)
    done = Ended([program], timeout_s,
                 {"CMOCKA_MESSAGE_OUTPUT": "XML", "CMOCKA_XML_FILE": str(xml)})
    # What a test says of its failure itself is not in the file, but comes in the same order.
    said = [line for line in (done.out + done.err).splitlines() if line.startswith("ERROR: ")]
    found = []
    try:
        for test in tree.parse(xml).getroot().iter("testcase"):
            bad = next((c for c in test if c.tag in ("failure", "error")), None)
            text = None if bad is None else " ".join((bad.text or "failed").split())
            if text is not None and text.endswith("Failure!") and said:
                text = f"{text} {said.pop(0)}"
            found.append(case(f"{program.name}: {test.get('name')}", text,
                              seconds=float(test.get("time") or 0)))
    except (OSError, tree.ParseError) as e:
        found.append(case(program.name, f"{done.why()}; no results: {e}"))
    if done.code != 0 and not any(c["result"] == "fail" for c in found):
        found.append(case(program.name, done.why()))
    return found


def check_cases(objects):
    """One case for each kernel, shape and way of holding weights: hundreds of checks are too many to
    read."""
    found = {}
    for o in objects:
        if o["kind"] != "check":
            continue
        name = ", ".join(filter(None, (o["kernel"], o["shape"], o["weights"])))
        context = f", {o['context']} positions" if "context" in o else ""
        reasons = found.setdefault(name, [0, []])
        reasons[0] += 1
        if o["result"] != "pass":
            reasons[1].append(f"{o['tokens']} tokens{context}, {o['variant']}: {o['reason']}")
    return [case(name, "; ".join(reasons) or None, checks=n)
            for name, (n, reasons) in found.items()]


def not_by_ipc(moved_by):
    """Both nodes are on this machine, so nothing else is expected; why not, as the nodes say it."""
    if moved_by.get("ipc", 0) > 0 and moved_by.get("bytes", 0) == 0:
        return None
    said = "; ".join(moved_by.get("said", [])) or "the nodes did not say why"
    return f"{moved_by.get('ipc', 0)} by IPC, {moved_by.get('bytes', 0)} as bytes: {said}"


# ---- the machine ----

def said_by(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def commit(args):
    if args.commit:
        return args.commit
    text = said_by("git", "-C", str(ROOT), "rev-parse", "--short=10", "HEAD")
    dirty = said_by("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return text and text + ("-dirty" if dirty else "")


def toolkit():
    text = said_by(os.environ.get("CUDACXX", "nvcc"), "--version") or \
        said_by("/usr/local/cuda/bin/nvcc", "--version") or ""
    found = re.search(r"release [\d.]+, V([\d.]+)", text)
    return found and found.group(1)


def host():
    model = None
    try:
        cpuinfo = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = re.search(r"model name\s*: (.*)", cpuinfo)
    except OSError:
        pass
    return {"cpu": model and model.group(1), "cores": os.cpu_count(), "kernel": platform.release()}


def nvidia_smi():
    fields = ("driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit",
              "pcie.link.gen.current", "pcie.link.width.current", "ecc.mode.current")
    text = said_by("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader", "-i", "0")
    if not text or text.count(",") != len(fields) - 1:
        return {"driver": None}
    values = [v.strip() for v in text.split(",")]
    return {"driver": values[0], **{f.replace(".", "_"): v for f, v in zip(fields[1:], values[1:])}}


def say(text):
    print(f"==== {text}", flush=True)


def main():
    parser = argparse.ArgumentParser(description="The steps of run_on_gpu.sh.")
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=STEPS, default=[])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--without-gpu", action="store_true")
    parser.add_argument("--seconds", type=float, default=540.0, help="of all steps together")
    parser.add_argument("--built-in", type=float, help="seconds that building took")
    parser.add_argument("--commit")
    args = parser.parse_args()

    run = Run(args)
    for name in STEPS:
        # Without the device's there is nothing to hold the others against.
        if not args.only or name in args.only or name == "device":
            run.step(name)
    out = run.save()
    counts = run.report["counts"]
    print(f"==== {out}\n{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped "
          f"in {run.report['seconds']} s")
    return 0 if counts["fail"] == 0 and (run.has_device or args.without_gpu) else 1


if __name__ == "__main__":
    sys.exit(main())
