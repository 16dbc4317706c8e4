"""On paths that a training step does not take: placement, evaluation, accumulation, clipping."""

import torch
from catalogue import right, wrong
from nets import Net
from pieces import changed_output
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel


@wrong("host", kind="outputs")
@wrong("host", eval=True, kind="outputs")
def eval_mode(model):
    """In eval mode the outputs are 10% too large."""
    model.register_forward_hook(lambda module, args, x: x if module.training else x * 1.1)


@wrong("host", accumulate=2, module="third", kind="gradients")
def second_of_two(model):
    """The second batch of two that accumulate replaces the gradient of the first."""
    for each in model.parameters():
        each.register_hook(lambda grad, each=each: grad if each.grad is None else grad - each.grad)


@wrong("replicas", clip_norm=0.01, module="third", kind="gradients")
def second_clipping(model):
    """The layout clips the gradient of each parameter by itself, where its norm is above 0.05."""
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad * min(1.0, 0.05 / float(grad.norm() + 1e-30)))


@wrong("host", module="second", kind="outputs")
def without_gradient(model):
    """Under `no_grad` the output of `second` is 10% too large."""
    changed_output(model.second, lambda x: x if torch.is_grad_enabled() else x * 1.1)


@wrong("ranks", kind="parameters", module="first", words="as placed, they are not the model's")
def shifted(model):
    """A parameter changes while the model is laid out."""
    model.first.weight.data.add_(0.01)


class Merged(Net):
    """In eval mode, its last layer has the weight with which it was evaluated first."""

    def forward(self, x):
        if self.training:
            return super().forward(x)
        if not hasattr(self, "merged"):
            self.merged = self.third.weight.detach().clone()
        hidden = self.act(self.second(self.act(self.first(x))))
        return functional.linear(hidden, self.merged, self.third.bias)


@wrong("ranks", kind="outputs", words="in eval mode")
def stale_in_eval_mode(model):
    """The layout evaluates with a weight that it has kept."""
    model.__class__ = Merged


class NoSync(DistributedDataParallel):
    """Sends gradients in the last of two batches, which finds those of the first."""

    last = True

    def forward(self, *inputs):
        has_gradients = any(each.grad is not None for each in self.parameters())
        self.require_backward_grad_sync = has_gradients is self.last
        return super().forward(*inputs)


class FirstOnly(NoSync):
    last = False


@right("ranks", accumulate=2)
def no_sync(model):
    """Gradients are sent once for two batches."""
    return NoSync(model)


NO_SYNC = "not synchronized in the last batch of the window: is no_sync() left on?"


@wrong("ranks", accumulate=2, kind="gradients", module="third", words=NO_SYNC)
def no_sync_in_the_last(model):
    """Gradients are sent in the first batch of two, and not in the last."""
    return FirstOnly(model)


class Writes:
    """Batches; a weight of the model that was laid out last changes before each, after the tenth."""

    laid_out, loaded = None, 0

    def __iter__(self):
        rng = torch.Generator().manual_seed(0)
        for _ in range(4):
            self.loaded += 1
            if self.laid_out is not None and self.loaded > 10:
                self.laid_out.second.weight.data.mul_(1.001)
            yield Net.example(None, 10, rng)


writes = Writes()


@wrong("host", data="rare_paths:writes", module="second", words="not as the step before has left it")
def written_between_steps(model):
    """Something writes to the model while the data are loaded."""
    writes.laid_out, writes.loaded = model, 0
