"""Types in which a checkpoint keeps its linear layers: of a part quantized checkpoint, by role."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.operators import DType, Role

ATTENTION = (Role.QKV, Role.Q_DOWN, Role.Q_UP, Role.KV_DOWN, Role.KV_UP, Role.ATTENTION_OUTPUT)
"""Linear layers of attention."""
WIDE_BYTES = 2.0
"""Of an element that was not quantized."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTypes:
    """What a checkpoint stores otherwise than its type says."""

    dtype: DType
    """Type of most weights."""
    element_bytes: tuple[tuple[Role, float], ...] = ()
    """Bytes of an element by role, scales included, on average over the layers; other roles are of ``dtype``."""
    cache: DType | None = None
    """Type of keys and values, if the checkpoint states one."""

    def bytes_of(self, role: Role) -> float:
        """Bytes of an element of a role's weights; routers, the head and tables are never narrow unless stated."""
        usual = max(self.dtype.bytes, WIDE_BYTES) if role in (Role.ROUTER, Role.LOGITS) else self.dtype.bytes
        return dict(self.element_bytes).get(role, usual)

    def dtype_of(self, role: Role) -> DType:
        """The type in which most of a role's weights are multiplied."""
        stored = self.bytes_of(role)
        if abs(stored - self.dtype.bytes) < 0.25 * self.dtype.bytes:
            return self.dtype
        return DType.BF16 if stored > 1.5 else DType.FP8 if stored > 0.75 else self.dtype


def with_wide_attention(dtype: DType) -> StoredTypes:
    """A checkpoint whose attention projections stay in 16 bits."""
    return StoredTypes(dtype=dtype, element_bytes=tuple((role, WIDE_BYTES) for role in ATTENTION))
