"""The machine under the rows: packages, compiler, processes with limits, memory as the system sees
it. Every process started here runs in a session of its own and is killed with all its children
when its time or the host's memory is used up."""
import importlib.util
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
HOST_SHARE = 0.96  # of the machine's memory; beyond it the kernel would kill something at random


def cuda_folders():
    """Folders that hold CUDA's libraries: the toolkit's and those of PyTorch's wheels."""
    toolkit = pathlib.Path("/usr/local/cuda")
    found = [toolkit / name for name in ("lib64", "lib") if (toolkit / name).is_dir()]
    specification = importlib.util.find_spec("nvidia")
    for root in specification.submodule_search_locations if specification else ():
        found += sorted(pathlib.Path(root).glob("*/lib"))
    return found


def cuda_home(folder):
    """A toolkit as PyTorch's extension builder expects it, made of links: bin, include and lib64
    with unversioned names, whatever the machine calls them. None where there is no nvcc."""
    nvcc = None
    for home in filter(None, (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"),
                              "/usr/local/cuda", "/opt/cuda")):
        if (pathlib.Path(home) / "bin/nvcc").exists():
            nvcc = pathlib.Path(home) / "bin/nvcc"
            break
    else:
        for part in os.environ.get("PATH", "").split(":"):
            if (pathlib.Path(part) / "nvcc").exists():
                nvcc = (pathlib.Path(part) / "nvcc").resolve()
                break
    if nvcc is None:
        return None
    root = nvcc.parent.parent
    shim = folder / "cuda"
    (shim / "lib64").mkdir(parents=True, exist_ok=True)
    for name in ("bin", "include", "nvvm", "targets"):
        if (root / name).exists() and not (shim / name).exists():
            (shim / name).symlink_to(root / name)
    own = [root / name for name in ("lib64", "lib", "targets/x86_64-linux/lib")]
    for source in own + cuda_folders():
        for library in source.glob("lib*.so*") if source.is_dir() else ():
            for name in {library.name, library.name.split(".so")[0] + ".so"}:
                if not (shim / "lib64" / name).exists():
                    (shim / "lib64" / name).symlink_to(library)
    return shim


def environment(folder, wheels):
    """Variables for every child. Wheels are unpacked beside the machine's packages, once."""
    result = dict(os.environ)
    cores = len(os.sched_getaffinity(0))
    site = folder / "site"
    files = [str(file) for place in wheels for file in sorted(pathlib.Path(place).glob("*.whl"))]
    if files and not site.exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps",
                        "--no-compile", "--target", str(site), *files], check=True)
    result["PYTHONPATH"] = ":".join(filter(None, (str(site) if site.exists() else "",
                                                  os.environ.get("PYTHONPATH"))))
    # DeepSpeed's --bind_cores_to_rank gives a single rank all cores and says so to OpenMP.
    result.update(OMP_NUM_THREADS=str(cores), MAX_JOBS=str(cores), TORCH_CUDA_ARCH_LIST="9.0",
                  TORCH_EXTENSIONS_DIR=str(folder / "extensions"), DS_SKIP_CUDA_CHECK="1",
                  TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1")
    result["PATH"] = f"{pathlib.Path(sys.executable).parent}:{site / 'bin'}:{result['PATH']}"
    home = cuda_home(folder)
    if home:
        result["CUDA_HOME"] = str(home)
    return result


class Nvml:
    """Bytes in use on the first GPU, of all processes and their contexts; None without NVML."""

    def __init__(self):
        self.handle = None
        try:
            import pynvml
            pynvml.nvmlInit()
            self.library, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception:  # no driver, no package: the column stays empty
            pass

    def used(self):
        return self.library.nvmlDeviceGetMemoryInfo(self.handle).used if self.handle else None


def memory_used():
    """(used, total) bytes of host memory, used as in free(1): total less available. Counts pinned
    pages, which a process's resident size may leave out."""
    values = {}
    with open("/proc/meminfo") as file:
        for line in file:
            name, value = line.split(":")
            values[name] = int(value.split()[0]) << 10
    return values["MemTotal"] - values["MemAvailable"], values["MemTotal"]


def members(session):
    """The living processes of a session. Not of a process group: ninja gives each compiler its
    own."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def session_bytes(session):
    """Resident bytes of all processes of a session; shared pages count in each."""
    total = 0
    for process in members(session):
        try:
            total += int(pathlib.Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096
        except (OSError, IndexError):
            continue
    return total


class Watch(threading.Thread):
    """Highest memory of the machine and of a session since start, less what was used then. Kills
    the session when the host's memory runs out: `full` says how much that was. Without a limit
    in bytes it must have run out for a second: some machines' memory grows as it is used."""
    PERIOD, PATIENCE = 0.1, 10

    def __init__(self, session, host_bytes):
        super().__init__(daemon=True)
        self.session, self.host_bytes = session, host_bytes
        self.ended, self.full = threading.Event(), 0
        self.nvml = Nvml()
        self.host_before, self.gpu_before = memory_used()[0], self.nvml.used()
        self.host, self.gpu, self.resident = self.host_before, self.gpu_before, 0
        self.start()

    def run(self):
        count = over = 0
        while not self.ended.wait(self.PERIOD):
            used, total = memory_used()
            self.host = max(self.host, used)
            if self.gpu_before is not None:
                self.gpu = max(self.gpu, self.nvml.used())
            if count % 10 == 0:
                self.resident = max(self.resident, session_bytes(self.session))
            count += 1
            over = over + 1 if used > (self.host_bytes or total * HOST_SHARE) else 0
            if over >= (1 if self.host_bytes else self.PATIENCE) and not self.full:
                self.full = used
                kill_session(self.session)

    def finish(self):
        self.ended.set()
        self.join()
        result = {"host_used_bytes": self.host - self.host_before, "resident_bytes": self.resident}
        if self.gpu_before is not None:
            result["gpu_used_bytes"] = self.gpu - self.gpu_before
        return result


def kill_session(session, seconds=30):
    """Kills what start() made and all its children, also those that are born meanwhile, and waits
    until they are gone: only then is their memory free for the next row."""
    end = time.monotonic() + seconds
    while (processes := members(session)) and time.monotonic() < end:
        for process in processes:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def start(command, log, variables):
    return subprocess.Popen([str(part) for part in command], stdout=log, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, env=variables, start_new_session=True)


def run(command, log_path, variables, seconds, host_bytes):
    """Runs to the end or the limit. Returns (how it ended, memory): "" or a sentence."""
    with open(log_path, "ab") as log:
        process = start(command, log, variables)
        watch = Watch(process.pid, host_bytes)
        reason = ""
        try:
            code = process.wait(timeout=seconds)
            if code != 0:
                reason = f"ended by signal {-code}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            reason = f"killed after {seconds:.0f} s"
        finally:
            kill_session(process.pid)
            process.wait()
            memory = watch.finish()
        if watch.full:
            reason = f"killed at {watch.full / 2**30:.0f} GiB of host memory"
    return reason, memory


def tail(path, lines=3):
    try:
        text = pathlib.Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    return " | ".join(line.strip() for line in text if line.strip())[-160 * lines:]


ALLOCATOR_TEST = """
import sys, torch
torch.cuda.set_per_process_memory_fraction(
    (1 << 30) / torch.cuda.get_device_properties(0).total_memory)
held = []
try:
    for _ in range(64):
        held.append(torch.empty(32 << 20, dtype=torch.uint8, device="cuda"))
except torch.OutOfMemoryError:
    sys.exit(0)
sys.exit(3)
"""


def allocator(variables):
    """The setting of PyTorch's allocator that wastes least and still honours the cap, tried out
    here: expandable segments do in some versions only."""
    setting = "expandable_segments:True"
    trial = dict(variables, PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    reason, _ = run([sys.executable, "-c", ALLOCATOR_TEST], os.devnull, trial, 120, 0)
    if reason:
        return "default"
    variables.update(PYTORCH_CUDA_ALLOC_CONF=setting, PYTORCH_ALLOC_CONF=setting)
    return setting


def build_cpu_adam(folder, variables, seconds=240):
    """Compiles DeepSpeed's CPUAdam before anything is timed. Returns "" or why it failed."""
    log = folder / "cpu_adam.log"
    for lock in (folder / "extensions").glob("*/lock"):
        lock.unlink()  # PyTorch waits for ever for a build that was killed
    code = ("import torch; from deepspeed.ops.adam import DeepSpeedCPUAdam;"
            "DeepSpeedCPUAdam([torch.nn.Parameter(torch.zeros(64))])")
    reason, _ = run([sys.executable, "-c", code], log, variables, seconds, 0)
    return reason and f"DeepSpeed's CPUAdam was not built ({reason}): {tail(log)}"


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError):
        return None


def wait_for(path, process, seconds):
    end = time.monotonic() + seconds
    while not os.path.exists(path):
        if process.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
