"""What conditional transport finds alike in queries and keys (Zhang et al. 2021, eq. 4).

With navigator vectors s, t and unit critic vectors u, v of queries and keys, and the plans

    P_ij = softmax_j(s_i · t_j),    R_ij = softmax_i(s_i · t_j),

query i finds a_i = Σ_j P_ij u_i · v_j and key j finds b_j = Σ_i R_ij u_i · v_j.
"""

from torch import Tensor
from torch.nn import functional as F


def transported_similarity(navigated: Tensor, unit: Tensor, mask: Tensor | None) -> Tensor:
    """Return a and b, differentiable, by one call of attention and with no n × n tensor.

    Because u_i does not depend on j, a_i is its product with an attended vector, u_i · attend(s_i, t, v); b likewise,
    with the two sides exchanged.

    Args:
        navigated: s and t, `[C, 2, B, H, n, f]`, C the number of attention calls.
        unit: u and v, `[C, 2, B, H, n, f]`.
        mask: `[1 or C, 1 or 2, B, n]` bool, of both or of each, True = a token that is attended to; None = all are.

    Returns:
        `[C, 2, B, H, n]`.
    """
    if mask is not None:
        mask = mask.flip(1).expand(len(unit), 2, -1, -1).flatten(0, 2)[:, None, None]
    query, key, value = (tensor.flatten(0, 2) for tensor in (navigated, navigated.flip(1), unit.flip(1)))
    attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0)
    return (unit * attended.view(unit.shape)).sum(dim=-1)
