"""How the peers train: one class each with step(batches) -> mean loss, all on bf16 weights and
activations, fp32 masters and moments, AdamW with the same numbers, clipping by global norm.

Imported by worker.py only, in a process of its own."""
import contextlib
import json
import os

import torch
import torch.nn.functional as functional
import torch.utils.checkpoint

from training_numbers import BETAS, DECAY, EPS, RATE

LOSS_ROWS = 2048  # logits that are held in fp32 at a time


def rows_loss(logits, labels):
    return functional.cross_entropy(logits.float(), labels, reduction="sum")


def mean_loss(model, tokens):
    """Cross entropy of the next token. Only LOSS_ROWS rows of logits exist in fp32: Transformers'
    own loss holds all of them, which would cost the peers most of a small memory cap."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits.flatten(0, 1)
    labels = tokens[:, 1:].flatten()
    total = 0
    for start in range(0, len(labels), LOSS_ROWS):
        total = total + torch.utils.checkpoint.checkpoint(
            rows_loss, logits[start:start + LOSS_ROWS], labels[start:start + LOSS_ROWS],
            use_reentrant=False)
    return total / len(labels)


def groups(model):
    """Decay for matrices only, as memferry has it."""
    named = [p for p in model.parameters() if p.requires_grad]
    shape = [getattr(p, "ds_shape", p.shape) for p in named]
    return [{"params": [p for p, s in zip(named, shape) if len(s) >= 2], "weight_decay": DECAY},
            {"params": [p for p, s in zip(named, shape) if len(s) < 2], "weight_decay": 0.0}]


def clear_states(optimizer):
    """As if no step had been taken: after trial steps at rate 0 the weights are what they were."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if torch.is_tensor(value):
                value.zero_()
            elif key == "step":
                state[key] = 0


def build(folder, dtype, device):
    import transformers
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa")
    return model.train()


def read_weights(folder, device):
    import safetensors.torch
    files = sorted(folder.glob("*.safetensors"))
    state = {}
    for file in files:
        state.update(safetensors.torch.load_file(file, device=device))
    return state  # empty for a folder of shapes only: the random initialisation stays


def fill(model, state, gather=contextlib.nullcontext):
    """Copies the folder's tensors into the model, tied ones once."""
    for name, parameter in model.named_parameters() if state else ():
        with gather(parameter), torch.no_grad():
            getattr(parameter, "to_local", lambda p=parameter: p.data)().copy_(state[name])


class Peer:
    """What the peers share. resettable: states of trial steps can be cleared in this process."""
    resettable = True
    reentrant = False  # checkpointing's kind

    def __init__(self, options, device):
        self.options, self.device = options, device
        self.checkpointing = None

    def set_checkpointing(self, on):
        if on != self.checkpointing:
            module = self.module
            if on:
                module.gradient_checkpointing_enable({"use_reentrant": self.reentrant})
            elif self.checkpointing:
                module.gradient_checkpointing_disable()
            self.checkpointing = on

    def set_rate(self, rate):
        for group in self.inner.param_groups:
            group["lr"] = rate

    def clear(self):
        clear_states(self.inner)


class DeepSpeed(Peer):
    """ZeRO-Offload and its relatives. Settings: DeepSpeed's documented defaults for offloading
    (overlap_comm, contiguous gradients, pinned memory, its CPUAdam); buckets as its documentation
    and Transformers' recommend for small memory, smaller still under 12 GiB."""

    def __init__(self, options, device):
        super().__init__(options, device)
        import deepspeed
        import torch._dynamo  # its import looks at torch.Tensor, which zero.Init replaces
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        deepspeed.init_distributed(dist_backend="nccl" if device == "cuda" else "gloo")
        settings = self.settings()
        if settings["zero_optimization"]["stage"] == 3:
            self.reentrant = True  # its gathering hooks and non-reentrant recomputation disagree
            with deepspeed.zero.Init(config_dict_or_path=settings, dtype=torch.bfloat16):
                model = build(options.folder, torch.bfloat16, "cpu")
            fill(model, read_weights(options.folder, "cpu"),
                 lambda p: deepspeed.zero.GatheredParameters([p], modifier_rank=0))
        else:
            model = build(options.folder, torch.bfloat16, device)
            fill(model, read_weights(options.folder, device))
        optimizer = DeepSpeedCPUAdam(groups(model), lr=RATE, betas=BETAS, eps=EPS,
                                     adamw_mode=True)
        self.engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        self.module, self.inner = model, self.engine.optimizer.optimizer

    def settings(self):
        options = self.options
        small = 0 < options.cap < 12 << 30
        bucket = 5e7 if small else 2e8
        zero = {"stage": self.stage, "overlap_comm": True, "contiguous_gradients": True,
                "reduce_bucket_size": int(bucket),
                "offload_optimizer": {"device": "cpu", "pin_memory": True, **self.optimizer_extra}}
        if self.stage == 3:
            zero.update(stage3_max_live_parameters=int(3e8 if small else 1e9),
                        stage3_max_reuse_distance=int(3e8 if small else 1e9),
                        stage3_prefetch_bucket_size=int(5e7),
                        stage3_param_persistence_threshold=int(1e5))
        if self.offload_parameters:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
        zero.update(self.extra)
        return {"train_micro_batch_size_per_gpu": options.micro,
                "gradient_accumulation_steps": options.batch // options.micro,
                "gradient_clipping": options.clip, "bf16": {"enabled": True},
                "steps_per_print": 1 << 30, "zero_optimization": zero}

    extra = {}
    optimizer_extra = {}
    offload_parameters = False

    def step(self, batches):
        total = 0
        for tokens in batches:
            loss = mean_loss(self.engine, tokens)
            self.engine.backward(loss)
            self.engine.step()
            total += loss.detach()
        return total / len(batches)


class Zero2(DeepSpeed):
    stage = 2


class Zero3(DeepSpeed):
    stage = 3
    offload_parameters = True


class SuperOffload(DeepSpeed):
    stage = 3
    resettable = False  # its moments live in another process
    optimizer_extra = {"super_offload": True, "cpuadam_cores_perc": 0.8}
    extra = {"sub_group_size": int(1e8)}


class Fsdp2(Peer):
    """fully_shard with CPUOffloadPolicy, a unit a layer, PyTorch's fused CPU AdamW."""

    def __init__(self, options, device):
        super().__init__(options, device)
        import torch.distributed
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
        mesh = torch.distributed.init_device_mesh(device, (1,))
        model = build(options.folder, torch.float32, "cpu")
        policy = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
        if device == "cuda":
            policy["offload_policy"] = CPUOffloadPolicy(pin_memory=True)
        layers = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
        for layer in layers:
            fully_shard(layer, **policy)
        fully_shard(model, **policy)
        fill(model, read_weights(options.folder, "cpu"))
        self.module = model
        self.inner = torch.optim.AdamW(groups(model), lr=RATE, betas=BETAS, eps=EPS, fused=True)

    def step(self, batches):
        total = 0
        for tokens in batches:
            loss = mean_loss(self.module, tokens) / len(batches)
            loss.backward()
            total += loss.detach()
        if self.options.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.options.clip)
        self.inner.step()
        self.inner.zero_grad(set_to_none=True)
        return total


class TorchAo(Peer):
    """torchao's CPUOffloadOptimizer: fp32 parameters stay on the device (the optimizer keeps no
    master of its own), autocast to bf16; gradients go to the host while backward runs. It updates
    each tensor alone and cannot clip: the row says so."""
    resettable = False

    def __init__(self, options, device):
        super().__init__(options, device)
        from torchao.optim import CPUOffloadOptimizer
        self.module = build(options.folder, torch.float32, device)
        fill(self.module, read_weights(options.folder, device))
        self.inner = CPUOffloadOptimizer(
            groups(self.module), torch.optim.AdamW, fused=True, lr=RATE, betas=BETAS, eps=EPS,
            offload_gradients=options.micro == options.batch)

    def step(self, batches):
        total = 0
        for tokens in batches:
            with torch.autocast(self.device, torch.bfloat16):
                loss = mean_loss(self.module, tokens) / len(batches)
            loss.backward()
            total += loss.detach()
        self.inner.step()
        self.inner.zero_grad()
        return total


PEERS = {"ds_zero2": Zero2, "ds_zero3": Zero3, "ds_super": SuperOffload, "fsdp2": Fsdp2,
         "torchao": TorchAo}


def read_batches(options, data, step):
    """The sequences of one step as micro-batches, in the order in which memferry reads them."""
    length = options.seq_len
    sequences = (len(data) - 1) // length
    first = step * options.batch
    rows = [data[at:at + length + 1]
            for at in ((first + i) % sequences * length for i in range(options.batch))]
    return [torch.stack(rows[i:i + options.micro]) for i in range(0, len(rows), options.micro)]


def print_json(path, value):
    temporary = f"{path}.new"
    with open(temporary, "w") as file:
        json.dump(value, file)
    os.replace(temporary, path)
