"""Models with embedding tables: one table and a linear layer, or many tables and dense features."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class EmbeddingLinear(nn.Module):
    """Ids ``(batch,)`` or ``(batch, length)`` -> logits ``(batch, out)`` or ``(batch, length, out)``.

    Source: "Multi-GPU examples", PyTorch tutorials, "Part of the model on CPU and part on the GPU"
    (1000 x 10, then 10 -> 10 there).
    """

    from_data = (("rows", "vocabulary"), ("out", "outputs"))

    def __init__(self, rows: int = 1000, dim: int = 10, out: int = 10) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, dim)
        self.linear = nn.Linear(dim, out)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids ``(batch, …)`` below ``rows`` -> ``(batch, …, out)``."""
        return self.linear(self.embedding(ids))

    def example(self, samples: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Uniform ids ``(samples,)`` and uniform classes."""
        ids = torch.randint(self.embedding.num_embeddings, (samples,), generator=generator)
        return ids, torch.randint(self.linear.out_features, (samples,), generator=generator)


class DLRM(nn.Module):
    """Dense features ``(batch, dense)`` and ids ``(batch, tables)`` -> logits of a click ``(batch,)``.

    ::

        dense -> bottom ----+
                            +-> dot product of each pair -> top -> logit
        ids   -> embedding -+

    ``embedding`` holds all tables, which are nearly all bytes: it stays on the host in a hybrid layout.

    Source: Naumov et al., "Deep learning recommendation model for personalization and
    recommendation systems", 2019.
    """

    from_data = (("dense", "width"), ("tables", "tables"), ("rows", "vocabulary"))

    def __init__(
        self, dense: int = 13, tables: int = 8, rows: int = 1000, dim: int = 16, hidden: int = 64
    ) -> None:
        super().__init__()
        self.dense, self.tables, self.rows = dense, tables, rows
        self.embedding = FusedTables(tables, rows, dim)
        self.bottom = nn.Sequential(nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, dim), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """``(batch, dense)`` and ``(batch, tables)`` -> ``(batch,)``."""
        low = self.bottom(dense)
        vectors = torch.cat([low.unsqueeze(1), self.embedding(ids)], dim=1)  # (batch, 1 + tables, dim)
        products = vectors @ vectors.transpose(1, 2)
        count = vectors.shape[1]
        row, column = torch.tril_indices(count, count, offset=-1, device=products.device)
        return self.top(torch.cat([low, products[:, row, column]], dim=1)).squeeze(1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Binary cross entropy of logits ``(batch,)`` with clicks ``(batch,)``, 0 or 1."""
        return functional.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))

    def accuracy(self, outputs: Tensor, targets: Tensor) -> float:
        """The fraction of logits ``(batch,)`` that have the sign of their click ``(batch,)``."""
        return ((outputs > 0) == (targets > 0.5)).double().mean().item()

    def example(self, samples: int, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Standard normal ``(samples, dense)``, uniform ids ``(samples, tables)``, random clicks."""
        dense = torch.randn(samples, self.dense, generator=generator)
        ids = torch.randint(self.rows, (samples, self.tables), generator=generator)
        return (dense, ids), torch.randint(2, (samples,), generator=generator).float()


class FusedTables(nn.Module):
    """Ids ``(batch, tables)`` -> vectors ``(batch, tables, dim)``: column i is looked up in table i.

    All tables are one parameter, in which table i begins at row ``i * rows``. One lookup, one gradient and
    one update serve all tables: one for each would cost more than the rows of a batch do.

    Source: the table-batched embeddings of FBGEMM (Khudia et al., "FBGEMM: enabling high-performance
    low-precision deep learning inference", 2021), as TorchRec uses them for training.
    """

    def __init__(self, tables: int, rows: int, dim: int) -> None:
        super().__init__()
        self.tables, self.rows = tables, rows
        self.table = nn.Embedding(tables * rows, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)

    def forward(self, ids: Tensor) -> Tensor:
        """``(batch, tables)`` -> ``(batch, tables, dim)``. The lookup refuses ids of no table."""
        first_rows = torch.arange(0, self.tables * self.rows, self.rows, device=ids.device)
        is_known = (ids >= 0) & (ids < self.rows)  # else it would be a row of another table
        return self.table(torch.where(is_known, ids + first_rows, -1))
