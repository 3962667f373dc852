"""What the client gives and takes: the messages of the contract (proto/memferry/v1) as dataclasses.

The names are the contract's, units last (`step_ns`, `host_bytes`); a choice is its short lower-case
name ("stream"), "" where none was made. Nothing here changes after it was made."""
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Strategy = Literal["auto", "resident", "stream", "zero_offload", "memferry"]
Effort = Literal["cached", "estimate", "measure"]
Forward = Literal["", "resident", "stream", "direct"]
Backward = Literal["", "keep", "stream", "direct", "late"]
Gradient = Literal["", "device", "copy", "direct"]
Optimizer = Literal["", "cpu", "gpu", "gpu_stream"]
Activation = Literal["keep", "recompute", "offload"]

IGNORED = -100
"""A label that does not count."""


@dataclass(frozen=True)
class Unit:
    """One weight-bearing operation of a model that you run yourself: y = x W^T (+ bias)."""
    name: str
    block: int  # from 0, never falling from unit to unit
    rows: int  # output features
    columns: int  # input features
    bias: bool = False


@dataclass(frozen=True)
class Model:
    """Exactly one of the four."""
    folder: str = ""  # Hugging Face folder on the daemon's machine, absolute
    preset: str = ""  # "gpt2": shapes only
    config_json: str = ""  # the text of a config.json: shapes only
    units: tuple[Unit, ...] = ()  # can be planned, not trained


ModelLike = str | os.PathLike[str] | Model | Sequence[Unit]
"""A Model; units; or, as on the command line, an existing folder, a config.json, else a preset."""


@dataclass(frozen=True)
class Pin:
    """A wish for all units whose name matches the shell glob; "" = free."""
    pattern: str
    forward: Forward = ""
    backward: Backward = ""
    gradient: Gradient = ""
    optimizer: Optimizer = ""


@dataclass(frozen=True)
class Workload:
    micro_batch: int = 0  # sequences in one forward and backward; 0 = 1
    seq_len: int = 0  # tokens in one sequence; 0 = the model's limit, at most 1024
    accumulation: int = 0  # micro-batches in one optimizer step at most; 0 = 1
    no_clip: bool = False  # the update need not wait for the gradient's norm


@dataclass(frozen=True)
class Constraints:
    device_memory_bytes: int = 0  # 0 = all there is
    host_memory_bytes: int = 0
    strategy: Strategy = "auto"
    pins: tuple[Pin, ...] = ()


@dataclass(frozen=True)
class UnitPlan:
    """How one unit is held; times are the predicted busy time of each lane in one step."""
    name: str
    kind: str  # "embedding", "linear", "norm", "head", "position"
    block: int
    rows: int
    columns: int
    params: int  # 0 when tied to another unit
    weight_bytes: int
    forward: Forward
    backward: Backward
    gradient: Gradient
    optimizer: Optimizer
    pinned: bool
    why: str
    tied_to: str  # "" or the unit that owns the parameters
    compute_ns: float
    h2d_ns: float
    d2h_ns: float
    cpu_ns: float


@dataclass(frozen=True)
class MemoryByPurpose:
    purpose: str  # "weights", "weight ring", "gradients", "optimizer state", ...
    device_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class Prediction:
    step_ns: float  # one optimizer step
    bound_ns: float  # no plan under these budgets can be faster
    bound_lane: str  # what binds it
    gap: float  # step_ns / bound_ns - 1
    compute_busy_ns: float
    h2d_busy_ns: float
    d2h_busy_ns: float
    cpu_busy_ns: float
    stall_ns: float  # compute waits
    device_peak_bytes: int  # exact
    host_peak_bytes: int  # pinned host memory, exact
    memory: tuple[MemoryByPurpose, ...]
    h2d_bytes: int  # over the link in one step
    d2h_bytes: int
    direct_bytes: int
    task_count: int
    estimated_tasks: int  # whose cost was not measured


@dataclass(frozen=True)
class Trial:
    """One micro-batch that was tried."""
    micro_batch: int
    accumulation: int
    step_ns: float  # 0 = there is no plan
    tokens_per_second: float
    device_peak_bytes: int
    host_peak_bytes: int
    measured: bool
    chosen: bool
    plan_id: str
    why: str  # there is no plan; "" = there is one


@dataclass(frozen=True)
class Plan:
    """A decision for every unit, and what is predicted of it."""
    id: str
    model_name: str
    model_fingerprint: str
    hardware_fingerprint: str
    hardware_name: str  # the device it is for
    here: bool  # this machine is the one it is for; False: no session can run it
    workload: Workload
    constraints: Constraints
    measured: bool  # False: from the hardware's rates
    link_emulated: bool  # so are the predictions
    created_unix_seconds: int
    planner_version: int
    ring_slots: int
    deferred_blocks: int  # so many, spread evenly, are updated in the next step's forward
    speculate: bool  # the others before the norm is known, and again where it is too large
    units: tuple[UnitPlan, ...]  # in the order of the forward
    activations: tuple[Activation, ...]  # of each block
    prediction: Prediction
    # How it was got; only Client.plan() fills them in.
    how: str = ""  # "cached", "estimated", "measured"
    miss: str = ""  # why it was not in the store, "" for a hit
    age_seconds: float = 0.0
    measure_seconds: float = 0.0
    solve_seconds: float = 0.0
    trials: tuple[Trial, ...] = ()  # of tune_micro_batch

    def table(self) -> str:
        """The plan for people: a row a unit, then the prediction."""
        from ._table import plan_table
        return plan_table(self)


@dataclass(frozen=True)
class PlanSummary:
    id: str
    model_name: str
    strategy: Strategy
    workload: Workload
    measured: bool
    step_ns: float
    device_peak_bytes: int
    host_peak_bytes: int
    created_unix_seconds: int
    use_count: int
    current: bool  # made for this hardware and this planner
    hardware_name: str  # the device of another machine that it is for, "" = this one


@dataclass(frozen=True)
class Alternative:
    forward: Forward
    backward: Backward
    gradient: Gradient
    optimizer: Optimizer
    step_ns: float  # predicted with this choice, all else equal
    device_peak_bytes: int
    host_peak_bytes: int
    fits: bool
    chosen: bool


@dataclass(frozen=True)
class Explanation:
    unit: UnitPlan
    alternatives: tuple[Alternative, ...]  # fastest first


@dataclass(frozen=True)
class Measurement:
    kernel: str
    lane: str  # "compute", "h2d", "d2h", "cpu"
    placement: str
    rows: int  # tokens
    n: int
    k: int
    median_ns: float
    spread_ns: float  # median absolute deviation
    samples: int
    units: str  # which it stands for, shortened


@dataclass(frozen=True)
class Profile:
    """What each unit of a model costs on this machine, measured."""
    hardware_fingerprint: str
    model_name: str
    method: str
    measured_at_unix_seconds: int
    complete: bool
    needed_count: int  # distinct kernels this model needs
    measured_count: int
    measurements: tuple[Measurement, ...]
    link_emulated: bool
    seconds: float  # what this call took to measure
    unit_count: int


@dataclass(frozen=True)
class Progress:
    what: str  # "planning", "loading weights"
    done: float  # 0..1 of this stage


@dataclass(frozen=True)
class Status:
    """The daemon."""
    version: str
    pid: int
    uptime_seconds: float
    address: str
    store_path: str
    session_count: int
    sessions_max: int
    device_reserved_bytes: int
    device_memory_bytes: int
    host_reserved_bytes: int
    host_memory_bytes: int
    plan_count: int
    measurement_count: int
    working_on: str  # "" = idle
    no_gpu: str  # why no GPU is used, "" = one is


@dataclass(frozen=True)
class SessionInfo:
    id: str
    model_name: str
    plan_id: str
    plan_how: str
    state: str  # "opening", "ready", "running", "closed", "failed", "lost", "finished", "stopped"
    step: int  # optimizer steps done
    next_seq_id: int  # the first that was not yet carried out
    loss: float  # of the last step
    tokens_per_second: float
    device_bytes: int
    host_bytes: int
    lease_left_seconds: float  # < 0: a job
    steps_total: int  # of a job, 0 = not a job
    run_folder: str  # of a job
    error: str  # why it failed
    started_unix_seconds: int
    ended_unix_seconds: int
    step_ms: float
    predicted_step_ms: float
    params: int
    vocab: int
    workload: Workload
    note: str  # "": the plan is as asked; else why it had to be made anew


@dataclass(frozen=True)
class Adam:
    """AdamW as PyTorch computes it, for one update."""
    learning_rate: float
    beta1: float = 0.9  # both 0 = 0.9 and 0.999
    beta2: float = 0.999
    eps: float = 1e-8  # 0 = 1e-8
    weight_decay: float = 0.0  # matrices only
    clip_norm: float = 0.0  # 0 = do not clip
    update_nonfinite: bool = False


@dataclass(frozen=True)
class Loss:
    loss_sum: float  # of -log p over the counted tokens
    token_count: int  # labels that are not IGNORED
    loss: float  # loss_sum / token_count, 0 when nothing counts
    elapsed_ms: float


@dataclass(frozen=True)
class ForwardResult:
    loss_sum: float
    token_count: int
    loss: float
    logprobs: tuple[float, ...]  # of each label, 0 where ignored


@dataclass(frozen=True)
class Step:
    step: int  # optimizer steps done
    grad_norm: float  # of the mean gradient, before clipping
    skipped: bool  # nothing was changed: the norm was not finite, or no token counted
    token_count: int
    loss: float  # mean over them
    elapsed_ms: float


@dataclass(frozen=True)
class Sample:
    tokens: tuple[int, ...]  # the continuation


@dataclass(frozen=True)
class Saved:
    path: str
    bytes: int


@dataclass(frozen=True)
class Loaded:
    step: int
    optimizer_loaded: bool  # False: moments are zero, step is 0


@dataclass(frozen=True)
class StepReport:
    """One step of a job."""
    step: int
    steps_total: int
    epoch: float
    loss: float
    grad_norm: float
    learning_rate: float
    step_ms: float
    predicted_step_ms: float
    tokens_per_second: float
    stall: float  # share of the step in which compute waited; 0 = not traced
    skipped: bool
    validation_loss: float  # 0 = not evaluated at this step


@dataclass(frozen=True)
class RunEvent:
    """News of a job: the one that is not None. `finished` is the last."""
    progress: Progress | None = None
    session: SessionInfo | None = None  # memory is reserved, the job has begun
    plan: Plan | None = None
    step: StepReport | None = None
    checkpoint: str | None = None  # the folder of a completed one
    sample: str | None = None  # generated text
    finished: SessionInfo | None = None
    warning: str | None = None  # something went wrong that the job survives
