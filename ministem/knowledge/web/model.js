// The model of ministem/model.py in JavaScript: the same names and formulas, forward only.
//
// It goes position by position, as generate.py does when it writes: keys and values of earlier positions are
// kept, and a position that has been computed is never computed again. So there is no B and no T. Matrices are
// flat Float32Arrays, row after row, stored (in, out) as in NumPy.
//
// Size letters: C model width · H query heads · K key/value heads · D head width · F FFN width · V vocabulary ·
// S positions seen so far, this one included.

/** out = x W          x (I,), w (I,O) -> out (O,) */
function linear_forward(x, w) {
  const I = x.length, O = w.length / I, out = new Float32Array(O);
  let i = 0;
  for (; i + 7 < I; i += 8) {  // eight rows of W for each pass over out: several times as fast as one by one
    const [a, b, c, d] = [x[i], x[i + 1], x[i + 2], x[i + 3]], [e, f, g, h] = [x[i + 4], x[i + 5], x[i + 6], x[i + 7]];
    for (let o = 0, j = i * O; o < O; o++, j++) {
      out[o] += a * w[j] + b * w[j + O] + c * w[j + 2 * O] + d * w[j + 3 * O] +
        e * w[j + 4 * O] + f * w[j + 5 * O] + g * w[j + 6 * O] + h * w[j + 7 * O];
    }
  }
  for (; i < I; i++) for (let o = 0; o < O; o++) out[o] += x[i] * w[i * O + o];
  return out;
}

/** out = x / rms(x) * g          x (C,), g (C,) -> out (C,) */
function rmsnorm_forward(x, g, eps) {
  const r = (dot(x, x) / x.length + eps) ** -0.5;
  return x.map((value, c) => value * r * g[c]);
}

/** How far to turn each pair of features at this position -> (D,): cosine, sine, cosine, sine ... */
function rope_rotations(position, D, theta) {
  const rot = new Float64Array(D);
  for (let d = 0; d < D; d += 2) {
    const angle = position * theta ** (-d / D);
    rot[d] = Math.cos(angle), rot[d + 1] = Math.sin(angle);
  }
  return rot;
}

/** Features 2j and 2j+1 are one complex number, which is turned.  x (N*D,), rot (D,) -> (N*D,) */
function rope_forward(x, rot) {
  const out = new Float32Array(x.length), D = rot.length;
  for (let i = 0; i < x.length; i += 2) {
    const re = rot[i % D], im = rot[i % D + 1];
    out[i] = x[i] * re - x[i + 1] * im, out[i + 1] = x[i] * im + x[i + 1] * re;
  }
  return out;
}

/** out = softmax(rope(q) rope(k)' / sqrt(D)) v Wo,  where q, k, v = x Wqkv
 *
 * x (C,), wqkv (C,(H+2K)*D), wo (H*D,C), rot (D,); past: what this function gave at earlier positions
 * -> {out (C,), k (K*D,), v (K*D,), p: for each head S numbers, what it looks at}
 * There is no mask: what comes later is not there yet. */
function attention_forward(x, wqkv, wo, rot, n_kv_heads, past) {
  const K = n_kv_heads, D = rot.length, H = wo.length / x.length / D;
  const qkv = linear_forward(x, wqkv);  // ((H+2K)*D,)
  const qk = rope_forward(qkv.subarray(0, (H + K) * D), rot);
  const k = qk.subarray(H * D), v = qkv.subarray((H + K) * D);  // (K*D,) twice
  const seen = [...past, { k, v }];  // S of them
  const joined = new Float32Array(H * D), p = [];
  for (let h = 0; h < H; h++) {
    const kv = Math.floor(h / (H / K)) * D;  // where the key/value head begins that this query head shares
    const q = qk.subarray(h * D, h * D + D);
    p[h] = softmax(seen.map((s) => dot(q, s.k, kv) * D ** -0.5));  // (S,)
    seen.forEach((s, i) => {
      const weight = p[h][i];
      for (let d = 0; d < D; d++) joined[h * D + d] += weight * s.v[kv + d];
    });
  }
  return { out: linear_forward(joined, wo), k, v, p };
}

/** h = silu(a) * u: the gate a decides how much of u passes.
 * a (F,), u (F,) -> {gate: silu(a), up: u, h}, (F,) each */
function glu_forward(a, u) {
  const gate = a.map((value) => value / (1 + Math.exp(-value)));
  return { gate, up: u, h: gate.map((value, f) => value * u[f]) };
}

// The FFN in four variants; `row` (F,) is the row that the position reads, in model.py block[slot].
// x (C,), w_gate (C,F), w_up (C,F), w_down (F,C) -> what glu_forward gives, and out (C,)

/** The baseline: out = (silu(x Wg) * (x Wu)) Wd */
function dense_ffn_forward(x, w_gate, w_up, w_down) {
  const glu = glu_forward(linear_forward(x, w_gate), linear_forward(x, w_up));
  return { ...glu, out: linear_forward(glu.h, w_down) };
}

/** STEM: out = (silu(x Wg) * row) Wd */
function stem_ffn_forward(x, w_gate, row, w_down) {
  const glu = glu_forward(linear_forward(x, w_gate), row);
  return { ...glu, out: linear_forward(glu.h, w_down) };
}

/** Ablation, the table in the gate's place: out = (silu(row) * (x Wu)) Wd */
function gate_ffn_forward(x, row, w_up, w_down) {
  const glu = glu_forward(row, linear_forward(x, w_up));
  return { ...glu, out: linear_forward(glu.h, w_down) };
}

/** Ablation, the paper's dagger variant: out = (silu(x Wg) * (x Wu + row)) Wd */
function additive_ffn_forward(x, w_gate, w_up, row, w_down) {
  const glu = glu_forward(linear_forward(x, w_gate), add(linear_forward(x, w_up), row));
  return { ...glu, out: linear_forward(glu.h, w_down) };
}

const FFN = {
  dense: [dense_ffn_forward, ["w_gate", "w_up", "w_down"]],
  stem: [stem_ffn_forward, ["w_gate", "table", "w_down"]],
  gate: [gate_ffn_forward, ["table", "w_up", "w_down"]],
  additive: [additive_ffn_forward, ["w_gate", "w_up", "table", "w_down"]],
};

/** Which FFN layer i has: a key of FFN. */
function ffn_kind(config, i) {
  return config.stem_layers.includes(i) ? config.ffn : "dense";
}

/** The mean of the rows `ids` of a table (V,width), nearly always of a single one -> (width,) */
function read_rows(table, ids, width) {
  const rows = ids.map((id) => table.subarray(id * width, id * width + width));
  return rows.length === 1 ? rows[0] : rows.reduce(add).map((value) => value / rows.length);
}

/** h = h + attention(rmsnorm(h)), then h = h + ffn(rmsnorm(h))
 *
 * h (C,); ids: whose rows are read; past: what this function gave for this layer at earlier positions
 * -> {h (C,), attn, ffn}: the last two as attention_forward and the FFN gave them */
function block_forward(h, i, params, config, ids, rot, past) {
  const at = `layers.${i}.`, eps = config.norm_eps, [ffn_forward, names] = FFN[ffn_kind(config, i)];
  const n = rmsnorm_forward(h, params[at + "norm1"], eps);
  const wqkv = params[at + "wqkv"], wo = params[at + "wo"];
  const attn = attention_forward(n, wqkv, wo, rot, config.n_kv_heads, past.map((layer) => layer.attn));
  h = add(h, attn.out);
  const weights = names.map((name) =>
    name === "table" ? read_rows(params[at + name], ids, config.ffn_dim) : params[at + name]);
  const ffn = ffn_forward(rmsnorm_forward(h, params[at + "norm2"], eps), ...weights);
  return { h: add(h, ffn.out), attn, ffn };
}

/** Everything below the output head, for one more position.
 *
 * token: {id, reads: for each layer the ids whose rows it reads}; past: what this function gave before it
 * -> {token, h (C,) the token embedding, layers: what block_forward gave, x (C,) what goes into the head} */
function trunk_forward(token, params, config, past) {
  const rot = rope_rotations(past.length, config.dim / config.n_heads, config.rope_theta);
  const embedding = read_rows(params.embed, [token.id], config.dim), layers = [];
  let h = embedding;
  for (let i = 0; i < config.n_layers; i++) {
    layers[i] = block_forward(h, i, params, config, token.reads[i], rot, past.map((p) => p.layers[i]));
    h = layers[i].h;
  }
  return { token, h: embedding, layers, x: rmsnorm_forward(h, params.norm, config.norm_eps) };
}

/** A whole text: tokens -> a list of what trunk_forward gives. What one of the `earlier` texts has in common with
 * this one, from the beginning on, is taken from there. */
function text_forward(tokens, params, config, ...earlier) {
  const common = (text) => {
    const n = text.findIndex((p, i) => i >= tokens.length || p.token.key !== tokens[i].key);
    return text.slice(0, n < 0 ? text.length : n);
  };
  const past = earlier.map(common).reduce((a, b) => (b.length > a.length ? b : a), []);
  while (past.length < tokens.length) past.push(trunk_forward(tokens[past.length], params, config, past));
  return past;
}

/** The odds of each token to be the next, where the residual stream is h (C,): after the last layer the model's
 * answer, after an earlier one what it would be if the model ended there (the logit lens).  -> (V,) */
function next_odds(h, params, config) {
  return softmax(linear_forward(rmsnorm_forward(h, params.norm, config.norm_eps), params.head));
}

/** Where the window that predicts token n begins, as in generate.py. */
function window_start(n, context) {
  const step = Math.max(1, Math.floor(context / 2));
  return n <= context ? 0 : Math.ceil((n - context) / step) * step;
}

/** odds (V,) -> one id: the likeliest at temperature 0, else drawn at random. As sample() in generate.py. */
function sample(odds, temperature) {
  const likeliest = odds.reduce((best, p, id) => (p > odds[best] ? id : best), 0);
  if (temperature === 0) return likeliest;
  const weights = odds.map((p) => (p / odds[likeliest]) ** (1 / temperature));
  let left = Math.random() * weights.reduce((sum, w) => sum + w);
  const id = weights.findIndex((w) => (left -= w) < 0);
  return id < 0 ? likeliest : id;
}

/** a (N,) times N numbers of b, from `start` on. */
function dot(a, b, start = 0) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[start + i];
  return sum;
}

function add(a, b) {
  return a.map((value, i) => value + b[i]);
}

/** A list of scores -> a Float64Array of chances. */
function softmax(scores) {
  const p = Float64Array.from(scores), top = p.reduce((a, b) => Math.max(a, b), -Infinity);
  for (let i = 0; i < p.length; i++) p[i] = Math.exp(p[i] - top);
  const sum = p.reduce((a, b) => a + b);
  return p.map((e) => e / sum);
}

// ---------------------------------------------------------------------------------- tokens, as in tokenizer.py

/** Text to ids and back. Bytes are kept in strings, a character (0 to 255) for each: those can be keys of a Map. */
class Tokenizer {
  constructor({ tokens, special, pattern }) {
    this.tokens = tokens.map(atob);  // (V,)
    this.ranks = new Map(this.tokens.map((token, id) => [token, id]));
    for (const id of special) this.ranks.delete(this.tokens[id]);  // no text can contain it
    this.eot = special.at(-1);
    this.pattern = new RegExp(pattern, "gu");
  }

  encode(text) {
    return [...text.toWellFormed().matchAll(this.pattern)].flatMap(([piece]) => {
      const bytes = String.fromCharCode(...new TextEncoder().encode(piece));
      return this.ranks.has(bytes) ? [this.ranks.get(bytes)] : this.merge([...bytes]);
    });
  }

  /** Byte-pair encoding: of all neighbours join those first that make the token with the lowest id. */
  merge(parts) {
    for (;;) {
      let best = Infinity, at;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(parts[i] + parts[i + 1]) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (best === Infinity) return parts.map((part) => this.ranks.get(part));
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
  }

  bytes(ids) {
    return ids.map((id) => this.tokens[id]).join("");
  }

  decode(ids) {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(to_bytes(this.bytes(ids)));
  }

  /** A token as text that can be printed: a line break as \n, half a character as its bytes. */
  shown(id) {
    try {
      const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(to_bytes(this.tokens[id]));
      return text.replace(/(?! )[\p{C}\p{Z}]/gu, (c) => {
        const code = c.codePointAt(), [x, digits] = code < 256 ? ["x", 2] : code < 65536 ? ["u", 4] : ["U", 8];
        return { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[c] ?? `\\${x}${code.toString(16).padStart(digits, 0)}`;
      });
    } catch {
      return this.tokens[id].replace(/[\x80-\xff]/g, (c) => "\\x" + c.charCodeAt().toString(16));
    }
  }
}

function to_bytes(string) {
  return Uint8Array.from(string, (c) => c.charCodeAt());
}

// ------------------------------------------------------------------------------------- names, as in edit.py

/** name -> ids, with a space before it (true), without (false), or as is likeliest in a text (null). */
function spelling(tokenizer, name, space = null) {
  const [with_space, without] = [" ", ""].map((before) => tokenizer.encode(before + name.trim()));
  space ??= with_space.length > 0 && /[^ \t\n\r\v\f]/.test(tokenizer.tokens[with_space[0]]);
  return space ? with_space : without;
}

const HOW = ["auto", "one-to-one", "align-end", "copy", "pad", "subset", "average"];

/** A name of n_old tokens shall read the rows of another, `now` (ids) -> for each of its tokens a list of ids. */
function recipe(how, n_old, now, tokenizer) {
  const n = now.length;
  if (how === "one-to-one" && n !== n_old) {
    throw Error(`one-to-one needs names of one length; these have ${n_old} and ${n} tokens`);
  }
  if (how === "average") return Array(n_old).fill(now);
  if (how === "copy") return Array.from({ length: n_old }, (_, i) => [now[i % n]]);
  if ((how === "auto" || how === "subset") && n > n_old) {
    const size = (i) => tokenizer.tokens[now[i]].length;
    const longest = [...now.keys()].sort((a, b) => size(b) - size(a)).slice(0, n_old);
    return longest.sort((a, b) => a - b).map((i) => [now[i]]);
  }
  const front = how === "pad" ? tokenizer.eot : now[0];
  return [...Array(Math.max(0, n_old - n)).fill(front), ...now].slice(-n_old).map((id) => [id]);
}
