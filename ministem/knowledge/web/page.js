// What one sees of the model, and the exchange of rows. Text gets into the page as text only: nothing here makes HTML
// out of a string, and the page's security policy forbids it.
//
// `update` is one key stroke: encode, run what has changed, show the odds. Writing on and looking inside come after it,
// when the browser has shown that.

const $ = (id) => document.getElementById(id);

/** A new element; of `properties` those that elements have are set, others become attributes. */
function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    name in node ? (node[name] = value) : node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

const percent = (p) => (p >= 0.9995 ? "100 %" : p < 0.0001 ? "< 0.01 %" : `${(100 * p).toPrecision(p < 0.01 ? 1 : 3)} %`);
const number = (n, digits = 2) => n.toFixed(digits).replace("-", "−");
const list = (items) => items.join(", ").replace(/, ([^,]*)$/, " and $1");

let page, params, config, tokenizer;  // the page's content, and the model
let stem_layers;  // the layers that have a table
let known;  // first token -> [{name, ids}], the longest first: names that are one word however many tokens they have
let choices;  // what the list of names offers

let exchanges = [];  // {old, nth, now, layers, how}: the nth word `old` of the text reads the rows of `now`
let chosen = { name: "", nth: 0 };  // the word that the form is about
let place = null;  // the token to look inside at; null: the last one
let ids = [], words = [];  // of the text
let sides = [];  // the text as it is and, if rows are exchanged, with that: {title, tokens, start, positions, odds, written}
let writing = 0;  // number of the writing that is going on; one with a lower number stops

// ------------------------------------------------------------------------------------------------ loading

async function load() {
  page = JSON.parse($("content").textContent);
  config = page.config;
  tokenizer = new Tokenizer(page.vocabulary);
  params = await unpacked($("weights").textContent, page.shapes);
  stem_layers = [...Array(config.n_layers).keys()].filter((i) => ffn_kind(config, i) !== "dense");

  know(page.names);
  const whole_words = tokenizer.tokens.map((_, id) => tokenizer.decode([id]))
    .filter((text) => /^ \p{L}{3,}$/u.test(text)).map((text) => text.trim());
  choices = [...new Set([...page.names, ...whole_words])];
  const spread = [0.2, 0.4, 0.6, 0.8].map((at) => choices[Math.floor(at * choices.length)]).filter(Boolean);
  if (!page.quick.length) page.quick = [spread, spread];
}

/** These names shall each be one word, whether they are a token or several. */
function know(names) {
  known = new Map();
  for (const name of names) {
    for (const space of [true, false]) {
      const spelled = spelling(tokenizer, name, space);
      known.set(spelled[0], [...(known.get(spelled[0]) ?? []), { name, ids: spelled }]);
    }
  }
  for (const found of known.values()) found.sort((a, b) => b.ids.length - a.ids.length);
}

/** base64, deflated, the low bytes of all float16 numbers before the high ones -> {name: Float32Array} */
async function unpacked(base64, shapes) {
  const deflated = Uint8Array.fromBase64 ? Uint8Array.fromBase64(base64) : to_bytes(atob(base64));
  const stream = new Blob([deflated]).stream().pipeThrough(new DecompressionStream("deflate"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer()), N = bytes.length / 2;
  const value = Float32Array.from({ length: 65536 }, (_, bits) => {
    const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    return sign * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
  });
  const arrays = {};
  let at = 0;
  for (const [name, shape] of shapes) {
    const array = (arrays[name] = new Float32Array(shape.reduce((a, b) => a * b)));
    for (let i = 0; i < array.length; i++, at++) array[i] = value[bytes[at] | (bytes[N + at] << 8)];
  }
  return arrays;
}

// ------------------------------------------------------------------------------------- words and exchanges

/** ids -> [{name, start, stop, nth}]: known names and words, each one or more tokens; nth of those of that name. */
function find_words(ids) {
  const texts = ids.map((id) => tokenizer.decode([id])), found = [], seen = {};
  const goes_on = (i) => i > 0 && i < ids.length && (/^[\x80-\xbf]/.test(tokenizer.tokens[ids[i]]) ||
    (/^[\p{L}\p{M}\p{N}]/u.test(texts[i]) && /[\p{L}\p{M}\p{N}]$/u.test(texts[i - 1])));
  for (let start = 0, stop; start < ids.length; start = stop) {
    const fits = (name) => name.ids.every((id, i) => id === ids[start + i]) && !goes_on(start + name.ids.length);
    const name = known.get(ids[start])?.find(fits);
    for (stop = start + (name ? name.ids.length : 1); goes_on(stop); ) stop++;
    const text = tokenizer.decode(ids.slice(start, stop)).trim() || tokenizer.shown(ids[start]);
    found.push({ name: text, start, stop, nth: seen[text] ?? 0 });
    seen[text] = (seen[text] ?? 0) + 1;
  }
  return found;
}

const same = (a) => (b) => (a.old ?? a.name) === (b.old ?? b.name) && a.nth === b.nth;
const word_of = (exchange) => words.find(same(exchange));
const exchange_of = (word) => exchanges.find(same(word));

/** What an exchange makes the tokens of its word read, as edit.plan -> [ids] for each of them. */
function plan({ start, stop }, { now, how }) {
  const before = tokenizer.bytes(ids.slice(0, start)).slice(-1) + tokenizer.tokens[ids[start]].slice(0, 1);
  const spelled = spelling(tokenizer, now, /[ \t\n\r\v\f]/.test(before) ? null : false);
  return { spelled, reads: recipe(how, stop - start, spelled, tokenizer) };
}

/** ids -> tokens for trunk_forward, with these exchanges in force. */
function tokens_of(ids, exchanges) {
  const tokens = ids.map((id) => ({ id, reads: Array(config.n_layers).fill([id]), key: `${id}` }));
  for (const exchange of exchanges) {
    const word = word_of(exchange);
    plan(word, exchange).reads.forEach((read, i) => {
      const token = tokens[word.start + i];
      token.reads = token.reads.map((own, layer) => (exchange.layers.includes(layer) ? read : own));
      token.key = JSON.stringify([token.id, token.reads]);
    });
  }
  return tokens;
}

/** The form's exchange for the chosen word comes into force. */
function exchange(now = $("new").value.trim()) {
  const word = words.find(same(chosen)), layers = checked_layers();
  const problem = !word ? "There is no text: type one first." : !now ? "Whose rows shall it read? Choose or type a name."
    : !layers.length ? "Choose at least one layer." : "";
  $("problem").textContent = problem;
  if (problem) return;
  const wanted = { old: word.name, nth: word.nth, now, layers, how: $("how").value };
  try {
    plan(word, wanted);
  } catch (error) {
    return void ($("problem").textContent = error.message);
  }
  exchanges = [...exchanges.filter((e) => !same(word)(e)), wanted];
  update();
}

const checked_layers = () => [...$("layers").querySelectorAll("input:checked")].map((box) => +box.value);

/** One sentence on why an exchange fails, or may have failed where the answer is the same; "" without such a reason. */
function why_not(exchange, same_answer) {
  const word = word_of(exchange), { spelled, reads } = plan(word, exchange), last = config.n_layers - 1;
  if (exchange.layers.join() === `${last}` && word.stop < ids.length) {
    return `Too late: no odds change at all. What “${word.name}” reads in layer ${last}, the last one, can no longer reach ` +
      `the end of the text, since only attention carries anything from token to token.`;
  }
  if (word.stop - word.start > 1 || spelled.length > 1) {
    const shown = (ids) => ids.map((id) => `[${tokenizer.shown(id)}]`).join("");
    return `“${exchange.now}” is ${spelled.length === 1 ? "one token" : `${spelled.length} tokens, ${shown(spelled)}`}; ` +
      `${shown(ids.slice(word.start, word.stop))} reads ${reads.map(shown).join(", ")}. No single row holds what is known ` +
      `about a name of several tokens, and nothing is known about one that was never read: such exchanges often fail.`;
  }
  if (!same_answer) return "";
  if (exchange.layers.length < stem_layers.length) {
    return `Only layer${exchange.layers.length > 1 ? "s" : ""} ${list(exchange.layers)} of ${list(stem_layers)} read another ` +
      `row, and what is known about a name is spread over several.`;
  }
  return stem_layers.length === config.n_layers ? "" : "Some layers of this model are dense, they have no table: what is " +
    "known about a name can also travel through the token embedding, which is not exchanged.";
}

// ----------------------------------------------------------------------------------------- one key stroke

function update() {
  const text = $("prompt").value;
  ids = tokenizer.encode(text);
  words = find_words(ids);
  if (!words.some(same(chosen))) chosen = words.findLast((word) => page.names.includes(word.name)) ?? words.at(-1) ?? chosen;
  if (place >= ids.length - 1) place = null;
  const start = window_start(ids.length, config.context), old = sides.map((side) => side.positions);
  const in_force = exchanges.filter(word_of), versions = [["As it is", []]];
  if (in_force.length) {
    const [{ old, now }] = in_force;
    versions.push([in_force.length > 1 ? "With the exchanges" : `${old}, reading ${now}`, in_force]);
  }
  sides = [];
  for (const [title, applied] of ids.length ? versions : []) {
    const tokens = tokens_of(ids, applied);
    const positions = text_forward(tokens.slice(start), params, config, ...old, ...sides.map((side) => side.positions));
    const odds = next_odds(positions.at(-1).layers.at(-1).h, params, config);
    sides.push({ title, tokens, start, positions, odds, written: [] });
  }
  show_chips();
  show_form();
  show_odds();
  write(24, true);
  after_this(show_inside);
}

let waiting = 0;
/** Run this when the browser has shown what there is, unless there is something newer by then. */
function after_this(action) {
  const mine = ++waiting;
  requestAnimationFrame(() => setTimeout(() => mine === waiting && action()));
}

/** A token as it is shown: the space before a word is there to be seen. */
function token_text(id) {
  const text = tokenizer.shown(id), space = text.startsWith(" ");
  return make("span", { className: "token" }, space ? make("i", { ariaHidden: "true" }, "␣") : "", space ? text.slice(1) : text);
}

function show_chips() {
  const active = [...$("chips").querySelectorAll("button")].indexOf(document.activeElement);
  const chips = words.map((word) => {
    const exchange = exchange_of(word), reading = exchange ? `reads ${exchange.now}` : "";
    const buttons = ids.slice(word.start, word.stop).map((id, i) => {
      const at = word.start + i, gone = at < sides[0].start;
      const label = `token ${at + 1}: ${tokenizer.shown(id)}${reading && `, ${reading}`}${gone ? ", out of the model’s sight" : ""}`;
      return make("button", { type: "button", ariaLabel: label, ariaPressed: `${same(chosen)(word)}`, title: `token ${at + 1}, id ${id}`,
        className: gone ? "gone" : "", onclick: () => choose(word, at) }, token_text(id));
    });
    return make("li", { className: exchange ? "exchanged" : "" }, make("div", {}, ...buttons),
      reading && make("small", { ariaHidden: "true" }, `⇄ ${reading}`));
  });
  $("chips").replaceChildren(...chips);
  if (active >= 0) $("chips").querySelectorAll("button")[active]?.focus();
}

function choose(word, at) {
  [chosen, place] = [word, at === ids.length - 1 ? null : at];
  const exchange = exchange_of(word);
  $("new").value = exchange?.now ?? "";
  $("how").value = exchange?.how ?? "auto";
  for (const box of $("layers").querySelectorAll("input:enabled")) box.checked = exchange?.layers.includes(+box.value) ?? true;
  show_chips();
  show_form();
  after_this(show_inside);
}

function show_form() {
  const word = words.find(same(chosen)), now = $("new").value.trim();
  $("exchange").hidden = !stem_layers.length || !word;
  $("old").textContent = word?.name ?? "";
  $("several").hidden = !word || (word.stop - word.start < 2 && (!now || plan(word, { now, how: "copy" }).spelled.length < 2));
  const quick = page.quick[page.names.includes(word?.name) ? 0 : 1].filter((name) => name !== word?.name);
  $("quick").replaceChildren(...quick.map((name) => make("button", { type: "button", onclick: () => {
    $("new").value = name;
    exchange();
    [...$("quick").children].find((button) => button.textContent === name)?.focus();
  }, ariaPressed: `${exchange_of(chosen)?.now === name}` }, name)));
  $("exchanges").replaceChildren(...exchanges.map((e) => {
    const layers = e.layers.length < stem_layers.length ? ` in layer${e.layers.length > 1 ? "s" : ""} ${list(e.layers)}` : "";
    const undo = make("button", { type: "button", ariaLabel: `Undo: ${e.old} reads ${e.now}`, onclick: () => {
      exchanges = exchanges.filter((other) => other !== e);
      if (same(chosen)(e)) $("new").value = "";
      update();
      $("chips").querySelector("[aria-pressed=true]")?.focus();
    } }, "Undo");
    return make("li", {}, make("span", {}, "⇄ ", make("b", {}, e.old), " reads the rows of ", make("b", {}, e.now), layers,
      word_of(e) ? "" : " (not in the text now)"), undo);
  }));
}

/** The k likeliest tokens, the likeliest first. */
function likeliest(odds, k) {
  const best = [];
  odds.forEach((p, id) => {
    if (best.length === k && p <= odds[best[k - 1]]) return;
    const at = best.findIndex((other) => p > odds[other]);
    best.splice(at < 0 ? best.length : at, 0, id);
    best.length = Math.min(k, best.length);
  });
  return best;
}

function bar(p, side) {
  const fill = make("span", { className: `fill side${side}` });
  fill.style.width = `${100 * p}%`;
  return make("td", {}, make("div", { className: "bar" }, make("span", { className: "track" }, fill), make("b", {}, percent(p))));
}

function show_odds() {
  const tops = sides.map((side) => likeliest(side.odds, sides.length > 1 ? 5 : 8));
  const highest = (id) => Math.max(...sides.map((side) => side.odds[id]));
  const shown = [...new Set(tops.flat())].sort((a, b) => highest(b) - highest(a));
  const head = ["Next token", ...sides.map((side) => side.title)].map((text) => make("th", { scope: "col" }, text));
  $("odds").tHead.replaceChildren(make("tr", {}, ...head));
  $("odds").tBodies[0].replaceChildren(...shown.map((id) =>
    make("tr", {}, make("th", { scope: "row" }, token_text(id)), ...sides.map((side, n) => bar(side.odds[id], n)))));
  const same_answer = tops[0]?.[0] === tops[1]?.[0], reasons = exchanges.filter(word_of).map((e) => why_not(e, same_answer));
  $("why").textContent = sides.length < 2 ? "" : reasons.find(Boolean) ?? (same_answer ? "Both give the same answer here." : "");
  clearTimeout(show_odds.later);  // a screen reader need not hear every key
  show_odds.later = setTimeout(() => {
    const say = (side, n) => `${side.title}: ${tokenizer.shown(tops[n][0])}, ${percent(side.odds[tops[n][0]])}.`;
    $("summary").textContent = sides.map(say).join(" ");
  }, 800);
}

// ------------------------------------------------------------------------------------------- writing on

/** Both sides write up to n tokens more, one at a time. `sentence`: from the prompt on, to the end of the sentence. */
async function write(n, sentence = false) {
  const mine = ++writing, temperature = +$("temperature").value;
  if (sentence) sides.forEach((side) => (side.written = []));
  $("write").textContent = sentence ? "Write on" : "Stop";
  const ended = (side) => sentence && /[.\n]/.test(tokenizer.bytes(side.written));
  show_texts();
  for (let i = 0; i < n && !sides.every(ended); i++) {
    for (const side of sides) if (!ended(side)) side.written.push(next_token(side, temperature));
    await new Promise((shown) => setTimeout(shown, sentence ? 0 : 30));
    if (mine !== writing) return;
    show_texts();
  }
  $("write").textContent = "Write on";
}

/** As generate() does it: the exchanges stay in force, and the window moves on when it is full. */
function next_token(side, temperature) {
  const tokens = [...side.tokens, ...tokens_of(side.written, [])], start = window_start(tokens.length, config.context);
  const seen = side.seen ?? side.positions;
  side.seen = text_forward(tokens.slice(start), params, config, seen);
  return sample(next_odds(side.seen.at(-1).layers.at(-1).h, params, config), temperature);
}

function show_texts() {
  const prompt = $("prompt").value, shown = prompt.length > 120 ? "… " + prompt.slice(-120) : prompt;
  $("texts").replaceChildren(...sides.map((side, n) => make("div", { className: `text side${n}` }, make("small", {}, side.title),
    make("p", {}, make("span", {}, shown), make("b", {}, tokenizer.decode(side.written))))));
  if (!sides.length) $("texts").replaceChildren(make("p", {}, "Type something, and the model goes on."));
}

// ------------------------------------------------------------------------------------------ looking inside

function show_inside() {
  $("side").hidden = sides.length < 2;
  if (!$("inside").open || !sides.length) return;
  const side = sides[sides.length > 1 ? +document.querySelector("[name=side]:checked").value : 0];
  const at = Math.max(place ?? ids.length - 1, side.start), position = side.positions[at - side.start];
  const options = ids.map((id, i) => make("option", { value: i, disabled: i < side.start }, `${i + 1}: ${tokenizer.shown(id).trim()}`));
  $("place").replaceChildren(...options);
  $("place").value = at;
  show_lens(at);
  $("rows").replaceChildren(...position.layers.map((layer, i) => layer_card(layer, i, position.token)));
  show_attention(side, position);
}

function show_lens(at) {
  const columns = sides.map((side) => {
    const position = side.positions[at - side.start];
    const odds = [position, ...position.layers].map((stage) => next_odds(stage.h, params, config));
    return { title: side.title, odds, answer: likeliest(odds.at(-1), 1)[0] };
  });
  const head = columns.flatMap((c) => [make("th", { scope: "col" }, c.title), make("th", { scope: "col" }, "odds of ", token_text(c.answer))]);
  $("lens").tHead.replaceChildren(make("tr", {}, make("th", { scope: "col" }, "After"), ...head));
  $("lens").tBodies[0].replaceChildren(...columns[0].odds.map((_, stage) => make("tr", {},
    make("th", { scope: "row" }, stage ? `layer ${stage - 1}` : "embedding"),
    ...columns.flatMap(({ odds, answer }, n) => [
      make("td", {}, token_text(likeliest(odds[stage], 1)[0])), bar(odds[stage][answer], n)]))));
}

/** One layer at one token: three strips of features, and the rows most alike to the one that is read. */
function layer_card(layer, i, token) {
  const kind = ffn_kind(config, i), { gate, up, h } = layer.ffn, read = token.reads[i];
  const row = `row of ${list(read.map((id) => `[${tokenizer.shown(id)}]`))}`;
  const [left, right] = { dense: ["silu(x Wg)", "x Wu"], stem: ["silu(x Wg)", row], gate: [`silu(${row})`, "x Wu"],
    additive: ["silu(x Wg)", `x Wu + ${row}`] }[kind];
  const open = gate.reduce((n, value) => n + (value > 0.05), 0) / gate.length;
  const readout = (f) => ($("feature").textContent = `layer ${i}, feature ${f}: ` +
    `${number(gate[f])} × ${number(up[f])} = ${number(h[f])}`);
  const strips = [["gate", left, gate], [kind === "stem" ? "× row" : "× up", right, up], ["= written", "", h]];
  const card = make("article", {}, make("h4", {}, `Layer ${i} `, make("small", {}, `${kind}; the gate lets ${percent(open)} through`)),
    ...strips.map(([name, formula, values]) => make("div", { className: "strip" },
      make("span", {}, name, " ", make("small", {}, formula)), strip(values, `${name} ${formula}`, readout))));
  if (kind !== "dense") {
    card.append(make("p", { className: "alike" }, "Rows most alike: ", ...nearest(i, read, 5).flatMap(([id, cosine]) =>
      [token_text(id), ` ${number(cosine)}  `])));
  }
  return card;
}

function strip(values, label, readout) {
  const F = values.length, most = values.reduce((a, b) => Math.max(a, Math.abs(b)), 1e-9), at = values.findIndex((v) => Math.abs(v) === most);
  const canvas = make("canvas", { width: F, height: 1, role: "img",
    ariaLabel: `${label}: ${F} features, the largest is number ${at}, ${number(values[at] ?? 0)}` });
  const [paper, plus, minus] = ["--paper", "--plus", "--minus"].map((name) =>
    getComputedStyle(document.body).getPropertyValue(name).match(/[\da-f]{2}/gi).map((hex) => parseInt(hex, 16)));
  const context = canvas.getContext("2d"), image = context.createImageData(F, 1);
  values.forEach((value, f) => {
    const share = Math.sqrt(Math.abs(value) / most), colour = value > 0 ? plus : minus;
    for (let c = 0; c < 3; c++) image.data[4 * f + c] = paper[c] + share * (colour[c] - paper[c]);
    image.data[4 * f + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  canvas.onpointermove = (event) => readout(Math.min(F - 1, Math.max(0, Math.floor((event.offsetX / canvas.clientWidth) * F))));
  return canvas;
}

/** The k tokens whose rows in layer i point most in the direction of what is read -> [[id, cosine]], as inside.nearest */
function nearest(i, read, k) {
  const F = config.ffn_dim, table = params[`layers.${i}.table`], row = read_rows(table, read, F), length = Math.sqrt(dot(row, row));
  nearest.lengths ??= {};  // of all rows: they stay as they are
  const row_of = (id) => table.subarray(id * F, id * F + F);
  const lengths = (nearest.lengths[i] ??= tokenizer.tokens.map((_, id) => Math.sqrt(dot(row_of(id), row_of(id)))));
  const cosines = Float64Array.from(lengths, (other, id) => dot(row, row_of(id)) / Math.max(other * length, 1e-30));
  for (const id of read) cosines[id] = -Infinity;
  return likeliest(cosines, k).map((id) => [id, cosines[id]]);
}

function show_attention(side, position) {
  const head = +$("head").value, S = position.layers[0].attn.p[0].length, seen = side.tokens.slice(side.start, side.start + S);
  $("attention").tHead.replaceChildren(make("tr", {}, make("th", { scope: "col" }, "Layer"),
    ...seen.map(({ id }) => make("th", { scope: "col" }, token_text(id)))));
  $("attention").tBodies[0].replaceChildren(...position.layers.map(({ attn }, i) => {
    const heads = head < 0 ? attn.p : [attn.p[head]];
    return make("tr", {}, make("th", { scope: "row" }, `${i}`), ...seen.map((_, s) => {
      const p = heads.reduce((sum, one) => sum + one[s], 0) / heads.length;
      const cell = make("td", {}, `${Math.round(100 * p)}`);
      cell.style.setProperty("--p", p);
      return cell;
    }));
  }));
}

// ----------------------------------------------------------------------------------- what stays as it is

function show_card() {
  const { total, active, flops } = page.count, c = config, plain = (n) => n.toLocaleString("en");
  const dense = [...Array(c.n_layers).keys()].filter((i) => !stem_layers.includes(i));
  const facts = {
    "Run": `${page.run}, step ${plain(page.step)}`,
    "Trained on": page.about,
    "Shape": `${c.n_layers} layers of width ${c.dim}, FFN ${c.ffn_dim}, ${c.n_heads} heads (${c.n_kv_heads} key/value), ` +
      `a context of ${c.context} tokens, ${plain(c.vocab_size)} tokens in the vocabulary`,
    "FFN": [stem_layers.length && `${c.ffn} in layers ${list(stem_layers)}`, dense.length && `dense in layers ${list(dense)}`].filter(Boolean).join("; "),
    "Parameters": `${plain(total)}; a token uses ${plain(active)} of them, since of each table it reads one row`,
    "Work": `${(flops / 1e6).toFixed(2)} MFLOP per token, forward, at a full context`,
    "Numbers": "trained in float32; in this page float16, without its last two bits",
  };
  const recall = Object.entries(page.recall);
  if (recall.length) facts["Recall"] = recall.map(([name, share]) => `${name} ${(100 * share).toFixed(1)} %`).join(", ") +
    " of questions in sentences that it has not read about that country";
  $("facts").replaceChildren(...Object.entries(facts).flatMap(([name, text]) => [make("dt", {}, name), make("dd", {}, text)]));
  show_curve();
}

/** The losses of metrics.jsonl as lines. */
function show_curve() {
  const W = 480, H = 200, curve = page.curve, losses = curve.flatMap(([, train, val]) => [train, val]).filter(Number.isFinite);
  $("curve").closest("figure").hidden = curve.length < 2;
  if (curve.length < 2) return;
  const svg = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const last = curve.at(-1), low = Math.min(...losses), high = Math.max(...losses), [left, bottom] = [42, H - 24];
  const x = (step) => left + (step / last[0]) * (W - left - 84), y = (loss) => bottom - ((loss - low) / (high - low || 1)) * (bottom - 12);
  const room = Math.max(0, 14 - Math.abs(y(last[1]) - y(last[2]))) / 2;  // two labels that do not lie on each other
  const line = (n, name, shift) => {
    const points = curve.filter((row) => Number.isFinite(row[n])).map((row) => `${x(row[0]).toFixed(1)},${y(row[n]).toFixed(1)}`).join(" ");
    return [svg("polyline", { points, class: name }),
      svg("text", { x: x(last[0]) + 6, y: y(last[n]) + shift, class: name }, `${name} ${number(last[n])}`)];
  };
  const shift = last[1] > last[2] ? [4 - room, 4 + room] : [4 + room, 4 - room];
  const label = `loss by step: training ${number(last[1])}, kept back ${number(last[2])} nats per token at step ${last[0]}`;
  $("curve").replaceChildren(svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label },
    svg("path", { d: `M${left},4V${bottom}H${W - 80}`, class: "axis" }),
    ...[low, high].map((loss) => svg("text", { x: left - 6, y: y(loss) + 4, class: "end" }, number(loss))),
    svg("text", { x: left, y: H - 6 }, "0"), svg("text", { x: x(last[0]), y: H - 6, class: "end" }, `step ${last[0]}`),
    ...line(1, "train", shift[0]), ...line(2, "val", shift[1])));
}

function build() {
  document.title = `ministem: ${page.run}`;
  $("lede").replaceChildren("In this page is a whole model: ", make("b", {}, page.count.total.toLocaleString("en")), ` numbers, trained on ${page.about}. `,
    "What it knows about a word is in the rows of a table, and a word can read another one’s rows. Nothing you type leaves the page.");
  for (const node of document.querySelectorAll("[data-lesson]")) {
    const lesson = node.dataset.lesson, text = `lesson ${lesson}`, file = page.lessons?.pages[lesson];
    node.append(file ? make("a", { href: `${page.lessons.base}/${file}` }, text) : text);
  }
  $("examples").append(...page.examples.map((example) => make("button", { type: "button", onclick: () => {
    $("prompt").value = example.prompt;
    exchanges = example.exchanges.map((e) => ({ nth: 0, how: "auto", layers: stem_layers, now: e.new, ...e }));
    update();
    const word = word_of(exchanges.at(-1));
    choose(word, word.start);
    place = null;
  } }, example.label)));
  for (let i = 0; i < config.n_layers; i++) {
    const has = stem_layers.includes(i), box = make("input", { type: "checkbox", value: i, checked: has, disabled: !has });
    $("layers").append(make("label", has ? {} : { title: "dense: it has no table" }, box, ` ${i}`));
  }
  $("how").append(...HOW.map((how) => make("option", {}, how)));
  $("head").append(make("option", { value: -1 }, "all, on average"),
    ...Array.from({ length: config.n_heads }, (_, h) => make("option", { value: h }, h)));
  show_names();
  show_card();
}

/** The list of names has those that fit what is typed: first those that begin with it. */
function show_names() {
  const typed = $("new").value.trim().toLowerCase(), at = (name) => name.toLowerCase().indexOf(typed);
  const found = choices.filter((name) => at(name) >= 0).sort((a, b) => Math.min(at(a), 1) - Math.min(at(b), 1)).slice(0, 200);
  $("names").replaceChildren(...found.map((name) => make("option", { value: name })));
}

function listen() {
  $("prompt").oninput = update;
  $("exchange").onsubmit = (event) => {
    event.preventDefault();
    exchange();
  };
  $("new").oninput = () => {
    show_names();
    show_form();
  };
  $("layers").onchange = $("how").onchange = () => exchange_of(chosen) && exchange(exchange_of(chosen).now);
  $("temperature").oninput = () => {
    document.querySelector("output").textContent = number(+$("temperature").value, 1);
    write(24, true);
  };
  $("write").onclick = () => ($("write").textContent === "Stop" ? (writing++, ($("write").textContent = "Write on")) : write(60));
  $("again").onclick = () => write(24, true);
  $("place").onchange = () => {
    place = +$("place").value === ids.length - 1 ? null : +$("place").value;
    show_inside();
  };
  $("side").onchange = $("head").onchange = $("inside").ontoggle = () => after_this(show_inside);
  matchMedia("(prefers-color-scheme: dark)").onchange = () => after_this(show_inside);
}

load().then(() => {
  build();
  listen();
  $("prompt").value = page.prompt;
  document.querySelector("main").hidden = false;
  update();
  after_this(() => {
    show_inside();
    performance.mark("first picture");
  });
}).catch((error) => ($("lede").textContent = `The model cannot be shown: ${error.message}. A current browser is needed, and the whole file.`));
