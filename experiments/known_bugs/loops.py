"""Training loops that public reports call silently wrong, watched: each is a function of whether it is wrong."""

import torch
from known import loop
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import dpexp

IGNORED, VOCABULARY, STEPS = -100, 32, 3


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def rows(seed, count=6):
    """Inputs and targets that differ by seed and rank."""
    rng = torch.Generator().manual_seed(100 * seed + rank())
    return torch.randn(count, 8, generator=rng), torch.randn(count, 4, generator=rng)


def texts(seed, ignored):
    """Four rows of tokens; the first of each row and ``ignored`` more are its prompt, which has no labels."""
    ids = torch.randint(VOCABULARY, (4, 8), generator=torch.Generator().manual_seed(100 * seed + rank()))
    labels = ids.clone()
    labels[:, : 1 + ignored] = IGNORED
    return ids, labels


def rank():
    return torch.distributed.get_rank() if torch.distributed.is_initialized() else 0


def tokens_of(labels):
    """How many labels count in the loss."""
    return (labels != IGNORED).sum()


def watched(model, loss=functional.mse_loss, **options):
    return dpexp.watch(model, loss, steps=STEPS - 1, track=False, **options)


# --- accumulation --------------------------------------------------------------------------------


def language_model():
    from transformers_models import small

    torch.manual_seed(0)
    return small("llama")


def accumulate_texts(scale, **options):
    """Four micro-batches with unequal numbers of labels; ``scale(loss, labels, total)`` is what is added up."""
    model = language_model()
    run, optimizer = watched(model, None), torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        batches = [texts(10 * step + number, number) for number in range(4)]
        total = sum(tokens_of(labels) for _, labels in batches)
        for ids, labels in batches:
            scale(model(ids, labels=labels).loss, labels, total).backward()
        optimizer.step()
        optimizer.zero_grad()
    return run


def by_tokens(loss, labels, total):
    return loss * tokens_of(labels) / total


@loop(
    "huggingface/transformers/pull/34191",
    "transformers",
    run="a loop over transformers 5.23.0 with the division of Trainer before 4.46",
)
def transformers_34191(is_wrong):
    """Gradient accumulation takes the mean of the micro-batches' means, which have unequal numbers of tokens."""
    return accumulate_texts((lambda loss, labels, total: loss / 4) if is_wrong else by_tokens)


@loop(
    "huggingface/transformers/issues/37766",
    "transformers",
    run="a loop over transformers 5.23.0 without the division that Trainer 4.47 left out",
)
def transformers_37766(is_wrong):
    """Gradient accumulation adds up the means of the micro-batches."""
    return accumulate_texts((lambda loss, labels, total: loss) if is_wrong else by_tokens)


@loop("modelscope/ms-swift/pull/10084")
def swift_10084(is_wrong):
    """The last window of an epoch has fewer micro-batches, and its losses are divided by the number of a full one."""
    model = perceptron()
    run, optimizer = watched(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        count = 4 if step == 0 else 2
        for number in range(count):
            inputs, targets = rows(10 * step + number)
            (run.loss(model(inputs), targets) / (4 if is_wrong else count)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return run


@loop("pytorch/torchtitan/pull/3575")
def torchtitan_3575(is_wrong):
    """zero_grad is called for each micro-batch: all gradients but those of the last are thrown away."""
    model = perceptron()
    run, optimizer = watched(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        for number in range(4):
            if is_wrong or number == 0:
                optimizer.zero_grad()
            inputs, targets = rows(10 * step + number)
            (run.loss(model(inputs), targets) / 4).backward()
        optimizer.step()
    return run


@loop("meta-pytorch/torchforge/pull/71")
def torchforge_71(is_wrong):
    """zero_grad is never called: each step takes the gradients of all steps before it, too."""
    model = perceptron()
    run, optimizer = watched(model), torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        inputs, targets = rows(step)
        run.loss(model(inputs), targets).backward()
        optimizer.step()
        if not is_wrong:
            optimizer.zero_grad()
    return run


# --- clipping ------------------------------------------------------------------------------------


@loop("pytorch/examples/issues/1196")
def examples_1196(is_wrong):
    """Gradients are clipped before they are unscaled: the norm is 65,536 times too large, and the step as much too small."""
    model = perceptron()
    run, optimizer = watched(model, clip_norm=0.1), torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(STEPS):
        inputs, targets = rows(step)
        scaler.scale(run.loss(model(inputs), targets)).backward()
        if not is_wrong:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return run


# --- several ranks -------------------------------------------------------------------------------


@loop("karpathy/build-nanogpt/pull/30", ranks=2)
def nanogpt_30(is_wrong):
    """The flag that a backward must reduce gradients is set after the forward, which DDP has prepared without it."""
    model = perceptron()
    run, laid_out = watched(model), DistributedDataParallel(model)
    optimizer = torch.optim.SGD(laid_out.parameters(), lr=0.1)
    for step in range(STEPS):
        for number in range(2):
            inputs, targets = rows(10 * step + number)
            if not is_wrong:
                laid_out.require_backward_grad_sync = number == 1
            loss = run.loss(laid_out(inputs), targets) / 2
            laid_out.require_backward_grad_sync = number == 1
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return run


class Tokens(nn.Module):
    """Token ids through an embedding and a head."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY)

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)))


def cross_entropy(logits, labels):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@loop("huggingface/transformers/issues/34242", ranks=2)
def transformers_34242(is_wrong):
    """Each rank takes the mean over its own tokens, and the mean of these over ranks with unequal numbers of tokens."""
    torch.manual_seed(0)
    model = Tokens()
    run, laid_out = watched(model, cross_entropy), DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(laid_out.parameters())
    for step in range(STEPS):
        ids, labels = texts(step, 4 * rank())
        loss = run.loss(laid_out(ids), labels)
        if not is_wrong:
            torch.distributed.all_reduce(total := tokens_of(labels))
            loss = loss * tokens_of(labels) * torch.distributed.get_world_size() / total
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return run
