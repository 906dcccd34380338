from ministem.model import linear_backward


def glu_backward(dh, cache):
    a, s, u = cache
    return dh * u * (s + a * s * (1 - s)), dh * a * s


def dense_ffn_backward(dout, cache):
    gate, up, glu, down = cache
    dh, dw_down = linear_backward(dout, down)
    da, du = glu_backward(dh, glu)
    dx, dw_gate = linear_backward(da, gate)
    dx2, dw_up = linear_backward(du, up)
    return dx + dx2, dw_gate, dw_up, dw_down
