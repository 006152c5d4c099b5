"""What computes: the devices an operator names, and what is said where one of them cannot be used.
Most machines that run this have no GPU; two fake ones are a plugin built for the tests."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from sy_client import BIN, BUILD, MODEL, ROOT, WAIT_S
from sy_cluster import run_tool, server_env

PLUGIN = BUILD / "lib" / "switchyard" / "libswitchyard_cuda.so"
FAKES = BUILD / "tests" / "backends"

needs_plugin = pytest.mark.skipif(not PLUGIN.exists(), reason="built without a CUDA toolkit")


def fake(variant):
    assert (FAKES / variant / PLUGIN.name).exists()
    return {"SWITCHYARD_BACKEND_DIR": str(FAKES / variant)}


def run(program, *args, env=None):
    done = subprocess.run([str(program), *map(str, args)], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=WAIT_S,
                          env={**server_env(), **(env or {})})
    assert done.returncode >= 0, f"killed by signal {-done.returncode}\n{done.stderr}"
    return done


def devices(*args, env=None, code=0):
    done = run_tool("devices", "--json", *args, check=False, env=env)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def refusal(names, env=None):
    """What an expert node says that is started with these devices, which it must refuse."""
    done = run(BIN / "switchyard-expert", "--model", MODEL, "--devices", names, env=env)
    assert done.returncode == 2, (done.returncode, done.stderr)
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith("switchyard-expert: error: --devices: "), line
    return line


def hide_toolkits(*command):
    """The same command, where no CUDA toolkit is to be found."""
    toolkits = sorted({str(p.resolve()) for p in pathlib.Path("/usr/local").glob("cuda*")})
    if not toolkits:
        return [str(c) for c in command]
    mounts = " && ".join(f"mount -t tmpfs none {p}" for p in toolkits)
    root = [] if os.geteuid() == 0 else ["--map-root-user"]
    hidden = ["unshare", *root, "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh"]
    tried = subprocess.run([*hidden, "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"a folder cannot be hidden here: {tried.stderr.strip()}")
    return [*hidden, *map(str, command)]


# ---- this machine ----

@pytest.mark.asan
def test_cuda_is_refused_at_the_start_with_the_reason():
    told = devices()["cuda"]
    line = refusal("cuda:0")
    if told["devices"]:
        pytest.skip("there is a GPU; what it says is test_fake_devices_are_listed's")
    assert told["why"] in line and told["status"] in ("UNAVAILABLE", "NOT_FOUND")
    if PLUGIN.exists():
        assert told["reason"] == "NO_CUDA_DEVICE" and told["plugin"]
        assert "cudaError" in line and f"driver {told['driver']}, runtime {told['runtime']}" in line
    else:
        assert told["reason"] == "BACKEND_NOT_FOUND" and not told["plugin"]
        assert str(PLUGIN.name) in line
    assert refusal("cuda") == line


def test_up_refuses_it_before_anything_is_started(tmp_path):
    done = run_tool("up", "--model", MODEL, "--dir", tmp_path / "run", "--devices", "cuda:0",
                    check=False)
    assert done.returncode == 2 and "--devices: cuda" in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("names", ["", "cpu:0,", "cpu", "cpu:1024", "gpu:0", "cpu:0,cpu:0", "cpu:01"])
def test_a_name_that_is_none_is_explained(names):
    assert "device" in refusal(names) or "named twice" in refusal(names)


def test_without_a_plugin_every_folder_is_named(tmp_path):
    (tmp_path / "bin").mkdir()
    shutil.copy(BIN / "switchyard", tmp_path / "bin")
    done = run(tmp_path / "bin" / "switchyard", "devices", "--json",
               env={"SWITCHYARD_BACKEND_DIR": "/no/such/folder"})
    told = json.loads(done.stdout)["cuda"]
    if told["plugin"]:
        pytest.skip("a plugin is installed on this machine")
    assert told["reason"] == "BACKEND_NOT_FOUND" and told["devices"] == []
    assert f"/no/such/folder/{PLUGIN.name}, {tmp_path}/bin/../lib/switchyard/" in told["why"]


@needs_plugin
def test_the_plugin_has_one_symbol_and_needs_nothing_of_cuda():
    if shutil.which("readelf") is None or shutil.which("nm") is None:
        pytest.skip("no binutils")
    needed = subprocess.run(["readelf", "-d", PLUGIN], capture_output=True, text=True, check=True)
    for name in ("libcuda", "libcublas", "libnccl", "libstdc++"):
        assert name not in needed.stdout
    symbols = subprocess.run(["nm", "-D", "--defined-only", PLUGIN], capture_output=True, text=True,
                             check=True)
    assert [line.split()[-1] for line in symbols.stdout.splitlines()] == ["sy_backend_get"]


@needs_plugin
def test_where_the_toolkit_is_gone_everything_starts_and_serves():
    told = devices()["cuda"]
    assert run(*hide_toolkits("test", "!", "-e", "/usr/local/cuda/bin/nvcc")).returncode == 0
    hidden = run(*hide_toolkits(BIN / "switchyard", "devices", "--json"))
    assert json.loads(hidden.stdout)["cuda"] == told
    for tier in ("router", "expert", "aggregator"):
        done = run(*hide_toolkits(BIN / f"switchyard-{tier}", "--help"))
        assert done.returncode == 0 and "--model" in done.stdout, done.stderr
    prompt = ("run", "--model", MODEL, "--prompt", "The", "--max-tokens", "8", "--temperature", "0",
              "--json")
    with_toolkit = json.loads(run_tool(*prompt))
    without = run(*hide_toolkits(BIN / "switchyard", *prompt))
    assert without.returncode == 0, without.stderr
    assert json.loads(without.stdout)["tokens"] == with_toolkit["tokens"]
    assert len(with_toolkit["tokens"]) == 8


def configure(tmp_path, choice, hidden):
    """CMake of a project that has cmake/cuda.cmake alone, with nvcc in sight or not."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(p LANGUAGES C)\n"
        f"include({ROOT}/cmake/cuda.cmake)\n")
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DSY_CUDA={choice}"]
    return run(*(hide_toolkits(*command) if hidden else command), env={"CUDACXX": ""})


@pytest.mark.parametrize("choice, hidden, code, text", [
    ("AUTO", True, 0, "CUDA backend: OFF (no nvcc"),
    ("OFF", False, 0, "CUDA backend: OFF (SY_CUDA=OFF)"),
    ("ON", True, 1, "there is no CUDA toolkit to build with"),
    ("MAYBE", False, 1, "AUTO, ON or OFF"),
    pytest.param("ON", False, 0, "CUDA backend: ON (toolkit", marks=needs_plugin),
])
def test_the_build_takes_the_toolkit_or_goes_without(tmp_path, choice, hidden, code, text):
    if shutil.which("cmake") is None:
        pytest.skip("no cmake")
    done = configure(tmp_path, choice, hidden)
    assert done.returncode == code, done.stdout + done.stderr
    assert text in " ".join((done.stdout + done.stderr).split())


# ---- two fake GPUs ----

@pytest.mark.asan
def test_fake_devices_are_listed():
    cuda = devices("--measure", env=fake("devices"))["cuda"]
    assert (cuda["driver"], cuda["runtime"], cuda["status"]) == ("13.2", "13.0", "OK")
    works, broken = cuda["devices"]
    assert (works["device"], works["name"]) == ("cuda:0", "Fake GPU")
    assert works["compute_capability"] == [9, 0] and works["ecc"]
    assert works["memory_bytes"] == 80 << 30
    assert works["usable"] and not works.get("reason")
    assert works["measured"]["status"] == "OK" and works["measured"]["on_device_bytes_s"] == 4.1e12
    assert not broken["usable"] and broken["reason"] == "DEVICE_UNUSABLE"
    assert "an injected failure" in broken["why"] and "measured" not in broken


def test_fake_devices_are_listed_for_people():
    text = run_tool("devices", "--measure", env=fake("devices"))
    assert "cpu:N" in text and "usable: each N" in text
    assert "cuda:0  Fake GPU, compute capability 9.0, 132 multiprocessors" in text
    assert "55.0 GB/s to it" in text and "4.1 TB/s on it" in text
    assert "cuda:1 cannot be used: an injected failure (DEVICE_UNUSABLE)" in text


@pytest.mark.asan
def test_devices_that_cannot_be_used_are_refused():
    env = fake("devices")
    for names in ("cuda:1", "cuda", "cuda:0,cuda:1"):
        assert "cuda:1 cannot be used: an injected failure (DEVICE_UNUSABLE)" in \
            refusal(names, env=env)
    assert "this machine has 2 CUDA devices" in refusal("cuda:2", env=env)


@pytest.mark.asan
def test_devices_that_round_differently_are_refused():
    line = refusal("cpu:0,cuda:0", env=fake("devices"))
    assert "cpu:N and cuda:N round differently" in line and "start a node for each" in line
    assert line.endswith("(MIXED_ARITHMETIC)")
    line = refusal("cuda", env=fake("two_kinds"))
    assert "cuda:0 (compute capability 9.0) and cuda:1 (8.0)" in line


@pytest.mark.parametrize("variant, text", [
    ("other_abi", "ABI 2"), ("no_entry", "sy_backend_get"), ("no_driver", "lack of drivers")])
def test_a_plugin_that_is_no_good_is_named(variant, text):
    env = fake(variant)
    assert text in refusal("cuda:0", env=env)
    cuda = devices(env=env)["cuda"]
    assert text in cuda["why"] and cuda["devices"] == []
