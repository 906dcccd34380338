// What one sees of the model, and the exchange of rows. Text gets into the page as text only: nothing here makes
// HTML out of a string, and the page's security policy forbids it.
//
// `update` is one key stroke: encode, compute what has changed, show the odds. Writing on and looking inside come
// after it, when the browser has shown that.

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

const button = (properties, ...children) => make("button", { type: "button", ...properties }, ...children);
const column = (...children) => make("th", { scope: "col" }, ...children);
const line = (title, ...cells) => make("tr", {}, make("th", { scope: "row" }, title), ...cells);

function percent(p) {
  if (p >= 0.9995 || p === 0) return p ? "100 %" : "0 %";
  return p < 0.0001 ? "< 0.01 %" : `${p < 0.01 ? (100 * p).toPrecision(1) : (100 * p).toFixed(1)} %`;
}

const number = (n, digits = 2) => n.toFixed(digits).replace("-", "−");
const list = (items) => items.join(", ").replace(/, ([^,]*)$/, " and $1");
const layers_of = (layers) => `layer${layers.length > 1 ? "s" : ""} ${list(layers)}`;
const shown = (ids) => ids.map((id) => `[${tokenizer.shown(id)}]`).join("");

let page, params, config, tokenizer;  // the page's content, and the model
let stem_layers;  // the layers that have a table
let known;  // first token -> [{name, ids}], the longest first: names that are one word of one token or several
let choices;  // what the list of names offers

let exchanges = [];  // {old, nth, now, layers, how}: the nth word `old` of the text reads the rows of `now`
let chosen = { name: "", nth: 0, by_hand: false };  // the word that the form is about
let place = null;  // the token to look inside at; null: the last one
let ids = [], words = [];  // of the text
let sides = [];  // {title, tokens, start, positions, odds, written}: the text as it is; then, with its exchanges
let writing = 0;  // number of the writing that is going on; one with a lower number stops

// ------------------------------------------------------------------------------------------------ loading

async function load() {
  page = JSON.parse($("content").textContent);
  config = page.config;
  tokenizer = new Tokenizer(page.vocabulary);
  params = await unpacked($("weights").textContent, page.shapes);
  stem_layers = [...Array(config.n_layers).keys()].filter((i) => ffn_kind(config, i) !== "dense");
  know(page.names);
  const texts = tokenizer.tokens.map((_, id) => tokenizer.decode([id]));
  const whole_words = texts.filter((text) => /^ \p{L}{3,}$/u.test(text)).map((text) => text.trim());
  choices = [...new Set([...page.names, ...whole_words])];
  const spread = [0.2, 0.4, 0.6, 0.8].map((at) => choices[Math.floor(at * choices.length)]).filter(Boolean);
  if (!page.quick.length) page.quick = [spread, spread];
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
    const nth = (seen[`= ${text}`] ??= 0);  // the sign, for a word may be called "constructor"
    seen[`= ${text}`]++;
    found.push({ name: text, start, stop, nth });
  }
  return found;
}

const same = (a) => (b) => (a.old ?? a.name) === (b.old ?? b.name) && a.nth === b.nth;
const word_of = (exchange) => words.find(same(exchange));
const exchange_of = (word) => exchanges.find(same(word));
const in_force = () => exchanges.filter(word_of);

/** What an exchange makes the tokens of its word read, as naming.plan -> reads: ids, for each of them. */
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

const checked_layers = () => [...$("layers").querySelectorAll("input:checked")].map((box) => +box.value);

/** The form's exchange for the chosen word comes into force. */
function exchange(typed = $("new").value.trim()) {
  const word = words.find(same(chosen)), layers = checked_layers();
  const now = choices.find((name) => name.toLowerCase() === typed.toLowerCase()) ?? typed;
  try {
    if (!now) throw Error("Whose rows shall it read? Choose or type a name.");
    if (!layers.length) throw Error("Choose at least one layer.");
    const wanted = { old: word.name, nth: word.nth, now, layers, how: $("how").value };
    plan(word, wanted);
    exchanges = [...exchanges.filter((other) => other !== exchange_of(word)), wanted];
    $("problem").textContent = "";
    $("side").querySelector("[value='1']").checked = true;
    $("new").value = now;
  } catch (error) {
    return void ($("problem").textContent = error.message);
  }
  update();
}

/** Why an exchange fails, or may have failed where the answer is the same; "" if there is no such reason. */
function why_not(exchange, same_answer) {
  const word = word_of(exchange), { spelled, reads } = plan(word, exchange), last = config.n_layers - 1;
  const is = spelled.length === 1 ? "one token" : `${spelled.length} tokens, ${shown(spelled)}`;
  if (exchange.layers.join() === `${last}` && word.stop < ids.length) {
    return `Too late: no odds change at all. What “${word.name}” reads in layer ${last}, the last one, can no ` +
      "longer reach the end of the text, since only attention carries anything from token to token.";
  }
  if (word.stop - word.start > 1 || spelled.length > 1) {
    return `“${exchange.now}” is ${is}; ${shown(ids.slice(word.start, word.stop))} reads ` +
      `${reads.map(shown).join(", ")}. No single row holds what is known about a name of several tokens, and ` +
      "nothing is known about one that was never read: such exchanges often fail.";
  }
  if (same_answer && exchange.layers.length < stem_layers.length) {
    return `Only ${layers_of(exchange.layers)} of ${list(stem_layers)} read another row, and what is known about ` +
      "a name is spread over several.";
  }
  return !same_answer || stem_layers.length === config.n_layers ? "" : "Some layers of this model are dense, they " +
    "have no table: what is known about a name can also travel through the token embedding, which is not exchanged.";
}

// ----------------------------------------------------------------------------------------- one key stroke

function update() {
  ids = tokenizer.encode($("prompt").value);
  words = find_words(ids);
  if (!chosen.by_hand || !words.some(same(chosen))) {
    const best = words.findLast((word) => page.names.includes(word.name)) ?? words.at(-1);
    if (best && !same(chosen)(best)) fill_form(best);
  }
  if (place >= ids.length - 1) place = null;
  const versions = [["As it is", []]], [first, ...more] = in_force();
  if (first) versions.push([more.length ? "With the exchanges" : `${first.old}, reading ${first.now}`, in_force()]);
  const start = window_start(ids.length, config.context), earlier = sides.map((side) => side.positions);
  sides = [];
  for (const [title, applied] of ids.length ? versions : []) {
    const tokens = tokens_of(ids, applied);
    const positions = text_forward(tokens.slice(start), params, config, ...earlier);
    earlier.push(positions);
    sides.push({ title, tokens, start, positions, odds: odds_after(positions), written: [] });
  }
  show_chips();
  show_form();
  show_odds();
  write(24, true);
  after_this(show_inside);
}

const odds_after = (positions) => next_odds(positions.at(-1).layers.at(-1).h, params, config);

/** Run this when the browser has shown what there is, unless there is something newer by then. */
function after_this(action) {
  const mine = (after_this.newest = (after_this.newest ?? 0) + 1);
  requestAnimationFrame(() => setTimeout(() => mine === after_this.newest && action()));
}

/** A token as it is shown: the space before a word is there to be seen. */
function token_text(id) {
  const text = tokenizer.shown(id), space = text.startsWith(" ");
  const parts = space ? [make("i", { ariaHidden: "true" }, "␣"), text.slice(1)] : [text];
  return make("span", { className: "token" }, ...parts);
}

function show_chips() {
  const active = [...$("chips").querySelectorAll("button")].indexOf(document.activeElement);
  $("chips").replaceChildren(...words.map((word) => {
    const now = exchange_of(word)?.now, reading = now ? `reads ${now}` : "";
    const chips = ids.slice(word.start, word.stop).map((id, i) => {
      const at = word.start + i, gone = at < sides[0].start;
      const about = [`token ${at + 1}: ${tokenizer.shown(id)}`, reading, gone ? "out of the model’s sight" : ""];
      return button({
        ariaLabel: about.filter(Boolean).join(", "), ariaPressed: `${same(chosen)(word)}`,
        title: `token ${at + 1}, id ${id}`, className: gone ? "gone" : "", onclick: () => choose(word, at),
      }, token_text(id));
    });
    const below = reading && make("small", { ariaHidden: "true" }, `⇄ ${reading}`);
    return make("li", { className: now ? "exchanged" : "" }, make("div", {}, ...chips), below);
  }));
  if (active >= 0) $("chips").querySelectorAll("button")[active]?.focus();
}

/** The form is about this word from now on, and we look inside at this token. */
function choose(word, at) {
  place = at === ids.length - 1 ? null : at;
  fill_form(word, true);
  show_chips();
  show_form();
  after_this(show_inside);
}

function fill_form(word, by_hand = false) {
  chosen = { name: word.name, nth: word.nth, by_hand };
  const exchange = exchange_of(word);
  $("new").value = exchange?.now ?? "";
  $("how").value = exchange?.how ?? "auto";
  $("problem").textContent = "";
  for (const box of $("layers").querySelectorAll("input:enabled")) {
    box.checked = exchange?.layers.includes(+box.value) ?? true;
  }
}

function show_form() {
  const word = words.find(same(chosen)), now = $("new").value.trim();
  $("exchange").hidden = !stem_layers.length || !word;
  $("exchanges").replaceChildren(...exchanges.map(exchange_line));
  if (!word) return;
  $("old").textContent = word.name;
  const several = word.stop - word.start > 1 || (now && plan(word, { now, how: "copy" }).spelled.length > 1);
  $("several").hidden = !several;
  const quick = page.quick[page.names.includes(word.name) ? 0 : 1].filter((name) => name !== word.name);
  $("quick").replaceChildren(...quick.map((name) => button({
    ariaPressed: `${exchange_of(word)?.now === name}`, onclick: () => {
      $("new").value = name;
      exchange();
      [...$("quick").children].find((other) => other.textContent === name).focus();
    },
  }, name)));
  if (stem_layers.length) show_own(word);
}

/** The chosen word's row in one layer, before the exchange and with it. */
function show_own(word) {
  const exchange = exchange_of(word), i = exchange?.layers[0] ?? stem_layers[0], table = params[`layers.${i}.table`];
  const row = (name, id) => make("div", { className: "strip" }, make("small", {}, name),
    strip(read_rows(table, id, config.ffn_dim), name));
  const strips = [row(`row of ${word.name}`, ids.slice(word.stop - 1, word.stop))];
  if (exchange) strips.push(row(`reads: ${exchange.now}`, plan(word, exchange).reads.at(-1)));
  const says = exchange ?
    `The text still says ${word.name}. In layer ${i} it reads the lower strip now, not the upper.` :
    `A row is ${config.ffn_dim} numbers; this is ${word.name}’s in layer ${i}, blue above zero, orange below.`;
  $("own").replaceChildren(make("p", {}, says), ...strips);
}

/** An exchange, and the button that takes it back. */
function exchange_line(exchange) {
  const { old, now, layers } = exchange;
  const where = layers.length < stem_layers.length ? ` in ${layers_of(layers)}` : "";
  const undo = button({ ariaLabel: `Undo: ${old} reads ${now}`, onclick: () => {
    exchanges = exchanges.filter((other) => other !== exchange);
    if (same(chosen)(exchange)) $("new").value = "";
    update();
    $("chips").querySelector("[aria-pressed=true]")?.focus();
  } }, "Undo");
  const bold = (text) => make("b", {}, text), gone = word_of(exchange) ? "" : " (not in the text now)";
  return make("li", {}, make("span", {}, "⇄ ", bold(old), " reads the rows of ", bold(now), where, gone), undo);
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

/** A cell with a bar and its number; side 0 and 1 differ in colour. */
function bar(p, side) {
  const fill = make("span", { className: `fill side${side}` });
  fill.style.width = `${100 * p}%`;
  const track = make("span", { className: "track" }, fill);
  return make("td", {}, make("div", { className: "bar" }, track, make("b", {}, percent(p))));
}

function show_odds() {
  const tops = sides.map((side) => likeliest(side.odds, sides.length > 1 ? 5 : 8));
  const highest = (id) => Math.max(...sides.map((side) => side.odds[id]));
  const rows = [...new Set(tops.flat())].sort((a, b) => highest(b) - highest(a));
  const titles = ["Next token", ...sides.map((side) => side.title)];
  $("odds").tHead.replaceChildren(make("tr", {}, ...titles.map((title) => column(title))));
  $("odds").tBodies[0].replaceChildren(...rows.map((id) =>
    line(token_text(id), ...sides.map((side, n) => bar(side.odds[id], n)))));

  const same_answer = sides.length > 1 && tops[0][0] === tops[1][0];
  const reasons = ids.length ? in_force().map((exchange) => why_not(exchange, same_answer)) : [];
  const space = /[^\S\n]$/.test($("prompt").value) && "The text ends in a space: take it away, a word brings its own.";
  reasons.unshift(space);
  $("why").textContent = reasons.find(Boolean) ?? (same_answer ? "Both give the same answer here." : "");
  clearTimeout(show_odds.later);  // a screen reader need not hear every key
  show_odds.later = setTimeout(() => {
    const answer = (side, n) => `${side.title}: ${tokenizer.shown(tops[n][0])}, ${percent(side.odds[tops[n][0]])}.`;
    $("summary").textContent = sides.map(answer).join(" ");
  }, 800);
}

// ------------------------------------------------------------------------------------------- writing on

/** Both sides write up to n tokens, one at a time. `sentence`: from the prompt on, to the end of the sentence. */
async function write(n, sentence = false) {
  const mine = ++writing, temperature = +$("temperature").value;
  if (sentence) sides.forEach((side) => (side.written = []));
  $("write").textContent = sentence ? "Write on" : "Stop";
  const ended = (side) => sentence && /[.\n]/.test(tokenizer.bytes(side.written));
  show_texts();
  for (let i = 0; i < n && !sides.every(ended); i++) {
    for (const side of sides) if (!ended(side)) side.written.push(next_token(side, temperature));
    await new Promise((done) => setTimeout(done, sentence ? 0 : 30));
    if (mine !== writing) return;
    show_texts();
  }
  $("write").textContent = "Write on";
}

/** As generate() does it: the exchanges stay in force, and the window moves on when it is full. */
function next_token(side, temperature) {
  const tokens = [...side.tokens, ...tokens_of(side.written, [])];
  const start = window_start(tokens.length, config.context);
  side.seen = text_forward(tokens.slice(start), params, config, side.seen ?? side.positions);
  return sample(odds_after(side.seen), temperature);
}

function show_texts() {
  const prompt = $("prompt").value, end = prompt.length > 120 ? `… ${prompt.slice(-120)}` : prompt;
  const texts = sides.map((side, n) => {
    const text = make("p", {}, make("span", {}, end), make("b", {}, tokenizer.decode(side.written)));
    return make("div", { className: `text side${n}` }, make("small", {}, side.title), text);
  });
  $("texts").replaceChildren(...texts, texts.length ? "" : "Type something, and the model goes on.");
}

// ------------------------------------------------------------------------------------------ looking inside

function show_inside() {
  $("side").hidden = sides.length < 2;
  if (!$("inside").open || !sides.length) return;
  const side = sides[sides.length > 1 ? +document.querySelector("[name=side]:checked").value : 0];
  const at = Math.max(place ?? ids.length - 1, side.start), position = side.positions[at - side.start];
  $("place").replaceChildren(...ids.map((id, i) =>
    make("option", { value: i, disabled: i < side.start }, `${i + 1}: ${tokenizer.shown(id).trim()}`)));
  $("place").value = at;
  show_lens(at - side.start);
  $("rows").replaceChildren(...position.layers.map((layer, i) => layer_card(layer, i, position.token)));
  show_attention(side, position);
}

/** The logit lens: what each side would say after each layer, and the odds of what it says in the end. */
function show_lens(t) {
  const columns = sides.map((side, n) => {
    const stages = [side.positions[t], ...side.positions[t].layers];
    const odds = stages.map((stage) => next_odds(stage.h, params, config)), [answer] = likeliest(odds.at(-1), 1);
    const cells = odds.map((p) => [make("td", {}, token_text(likeliest(p, 1)[0])), bar(p[answer], n)]);
    return { head: [column(side.title), column("odds of ", token_text(answer))], cells };
  });
  $("lens").tHead.replaceChildren(make("tr", {}, column("After"), ...columns.flatMap(({ head }) => head)));
  const names = ["embedding", ...Array.from({ length: config.n_layers }, (_, i) => `layer ${i}`)];
  $("lens").tBodies[0].replaceChildren(...names.map((name, stage) =>
    line(name, ...columns.flatMap(({ cells }) => cells[stage]))));
}

/** One layer at one token: three strips of features, and the rows most alike to the one that is read. */
function layer_card(layer, i, token) {
  const kind = ffn_kind(config, i), { gate, up, h } = layer.ffn, read = token.reads[i];
  const row = `row of ${read.map((id) => `[${tokenizer.shown(id)}]`).join(" + ")}`;
  const [left, right] = {
    dense: ["silu(x Wg)", "x Wu"], stem: ["silu(x Wg)", row], gate: [`silu(${row})`, "x Wu"],
    additive: ["silu(x Wg)", `x Wu + ${row}`],
  }[kind];
  const open = gate.reduce((n, value) => n + (value > 0), 0) / gate.length;
  const feature = make("small", { className: "feature" });
  const readout = (f) =>
    (feature.textContent = `feature ${f}: ${number(gate[f])} × ${number(up[f])} = ${number(h[f])}`);
  const strips = [["gate", left, gate], [kind === "stem" ? "× row" : "× up", right, up], ["= written", "", h]];
  const about = make("small", {}, `${kind}; the gate is open for ${percent(open)}`);
  const title = make("h4", {}, `Layer ${i} `, about, feature);
  const card = make("article", {}, title, ...strips.map(([name, formula, values]) =>
    make("div", { className: "strip" }, make("span", {}, name, " ", make("small", {}, formula)),
      strip(values, `${name} ${formula}`, readout))));
  if (kind !== "dense") {
    const alike = nearest(i, read, 5).flatMap(([id, cosine]) => [token_text(id), ` ${number(cosine)}   `]);
    card.append(make("p", { className: "alike" }, "Rows most alike: ", ...alike));
  }
  return card;
}

/** A column of colour for each of the values (F,). */
function strip(values, label, readout = () => {}) {
  const F = values.length, most = Math.max(1e-9, ...values.map(Math.abs)), at = values.map(Math.abs).indexOf(most);
  const about = `${label}: ${F} features, the largest is number ${at} with ${number(values[at] ?? 0)}`;
  const canvas = make("canvas", { width: F, height: 1, role: "img", ariaLabel: about });
  const style = getComputedStyle(document.body);
  const [paper, plus, minus] = ["--paper", "--plus", "--minus"].map((name) =>
    style.getPropertyValue(name).match(/[\da-f]{2}/gi).map((hex) => parseInt(hex, 16)));
  const context = canvas.getContext("2d"), image = context.createImageData(F, 1);
  values.forEach((value, f) => {
    const share = Math.sqrt(Math.abs(value) / most), colour = value > 0 ? plus : minus;
    const mixed = paper.map((from, c) => from + share * (colour[c] - from));
    image.data.set([...mixed, 255], 4 * f);
  });
  context.putImageData(image, 0, 0);
  canvas.onpointermove = ({ offsetX }) =>
    readout(Math.min(F - 1, Math.max(0, Math.floor((offsetX / canvas.clientWidth) * F))));
  return canvas;
}

/** The k tokens whose rows in layer i point most in the direction of what is read, as inside.nearest
 * -> [[id, cosine]] */
function nearest(i, read, k) {
  const F = config.ffn_dim, table = params[`layers.${i}.table`], row = read_rows(table, read, F);
  const length_of = (row) => Math.sqrt(dot(row, row)), length = length_of(row);
  nearest.lengths ??= {};  // of all rows: they stay as they are
  nearest.lengths[i] ??= Float64Array.from(tokenizer.tokens, (_, id) => length_of(read_rows(table, [id], F)));
  const cosines = nearest.lengths[i].map((other, id) => dot(row, table, id * F) / Math.max(other * length, 1e-30));
  for (const id of read) cosines[id] = -Infinity;
  return likeliest(cosines, k).map((id) => [id, cosines[id]]);
}

function show_attention(side, position) {
  const head = +$("head").value, S = position.layers[0].attn.p[0].length;
  const seen = side.tokens.slice(side.start, side.start + S).map(({ id }) => column(token_text(id)));
  $("attention").tHead.replaceChildren(make("tr", {}, column("Layer"), ...seen));
  $("attention").tBodies[0].replaceChildren(...position.layers.map(({ attn }, i) => {
    const heads = head < 0 ? attn.p : [attn.p[head]];
    return line(i, ...seen.map((_, s) => {
      const p = heads.reduce((sum, one) => sum + one[s], 0) / heads.length;
      const cell = make("td", {}, Math.round(100 * p));
      cell.style.setProperty("--p", p);
      return cell;
    }));
  }));
}

// ----------------------------------------------------------------------------------- what stays as it is

function show_card() {
  const { total, active, flops } = page.count, c = config, plain = (n) => n.toLocaleString("en");
  const dense = [...Array(c.n_layers).keys()].filter((i) => !stem_layers.includes(i));
  const kinds = [[c.ffn, stem_layers], ["dense", dense]].filter(([, layers]) => layers.length);
  const facts = {
    Run: `${page.run}, step ${plain(page.step)}`,
    "Trained on": page.about,
    Shape: `${c.n_layers} layers of width ${c.dim}, FFN ${c.ffn_dim}, ${c.n_heads} heads (${c.n_kv_heads} key/value), ` +
      `a context of ${c.context} tokens, ${plain(c.vocab_size)} tokens in the vocabulary`,
    FFN: kinds.map(([kind, layers]) => `${kind} in ${layers_of(layers)}`).join("; "),
    Parameters: `${plain(total)}; a token uses ${plain(active)} of them, since of each table it reads one row`,
    Work: `${(flops / 1e6).toFixed(2)} MFLOP per token, forward, at a full context`,
    Numbers: "trained in float32; in this page float16, without its last two bits",
  };
  const recall = Object.entries(page.recall).map(([name, share]) => `${name} ${(100 * share).toFixed(1)} %`);
  if (recall.length) facts.Recall = `${list(recall)} of the questions, asked in sentences not read in training`;
  $("facts").replaceChildren(...Object.entries(facts).flatMap(([name, text]) =>
    [make("dt", {}, name), make("dd", {}, text)]));
  show_curve();
}

/** The losses of metrics.jsonl as two lines. */
function show_curve() {
  const curve = page.curve, [left, right, low_y, high_y] = [42, 396, 176, 12];
  $("curve").closest("figure").hidden = curve.length < 2;
  if (curve.length < 2) return;
  const svg = (tag, attributes, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  const [step, train, val] = curve.at(-1), losses = curve.flatMap(([, ...losses]) => losses);
  const low = Math.min(...losses), high = Math.max(...losses);
  const x = (at) => left + (at / step) * (right - left);
  const y = (loss) => low_y - ((loss - low) / (high - low || 1)) * (low_y - high_y);
  const apart = (Math.max(0, 14 - Math.abs(y(train) - y(val))) / 2) * (train > val ? -1 : 1);  // of the labels
  const curve_of = (n, name, shift) => [
    svg("polyline", { points: curve.map((row) => `${x(row[0])},${y(row[n])}`).join(" "), class: name }),
    svg("text", { x: right + 6, y: y(curve.at(-1)[n]) + 4 + shift }, `${name} ${number(curve.at(-1)[n])}`)];
  const label = `Loss: training ${number(train)}, kept back ${number(val)} nats per token at step ${step}`;
  $("curve").replaceChildren(svg("svg", { viewBox: "0 0 480 200", role: "img", "aria-label": label },
    svg("path", { d: `M${left},4V${low_y}H${right}`, class: "axis" }),
    ...[low, high].map((loss) => svg("text", { x: left - 6, y: y(loss) + 4, class: "end" }, number(loss))),
    svg("text", { x: left, y: 194 }, "0"), svg("text", { x: right, y: 194, class: "end" }, `step ${step}`),
    ...curve_of(1, "train", apart), ...curve_of(2, "val", -apart)));
}

function build() {
  document.title = `${page.run}: a language model you can touch`;
  const where = stem_layers.length === config.n_layers ? "each" : stem_layers.length;
  const rows = stem_layers.length ? ` In ${where} of its ${config.n_layers} layers a table has a row of ` +
    `${config.ffn_dim} numbers for each word; here you can let one word read another one’s rows.` : "";
  $("lede").replaceChildren("In this page is a whole model: ", make("b", {}, page.count.total.toLocaleString("en")),
    ` numbers, trained on ${page.about}.${rows} Nothing you type leaves the page.`);
  $("about").textContent = page.hint;
  for (const node of document.querySelectorAll("[data-lesson]")) {
    const lesson = node.dataset.lesson, text = `lesson ${lesson}`, file = page.lessons?.pages[lesson];
    const href = `${page.lessons?.base}/${file}`, about = file?.slice(3, -3).replaceAll("_", " ");
    node.append(file ? make("a", { href, title: `${about} (a page of the project ministem)` }, text) : text);
  }
  $("examples").append(...page.examples.map((example) => button({ onclick: () => {
    $("prompt").value = example.prompt;
    exchanges = example.exchanges.map((e) => ({ nth: 0, how: "auto", layers: stem_layers, ...e }));
    $("side").querySelector("[value='1']").checked = true;
    update();
    choose(word_of(exchanges[0]), null);
  } }, example.label)));
  $("examples").hidden = !page.examples.length;
  for (let i = 0; i < config.n_layers; i++) {
    const has = stem_layers.includes(i);
    const box = make("input", { type: "checkbox", value: i, checked: has, disabled: !has, ariaLabel: `layer ${i}` });
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
  const fit = choices.filter((name) => at(name) >= 0).sort((a, b) => (at(a) > 0) - (at(b) > 0)).slice(0, 200);
  $("names").replaceChildren(...fit.map((name) => make("option", { value: name })));
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
  $("write").onclick = () => ($("write").textContent === "Stop" ? write(0) : write(60));
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
}).catch((error) => {
  $("lede").textContent = `The model cannot be shown (${error.message}): it takes a current browser and a whole file.`;
});
