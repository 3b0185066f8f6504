(() => {
const D = JSON.parse(document.getElementById("data").textContent);
const TENSORS = ["In", "Ker", "Out"], SPATIAL = ["d", "h", "w"];
const $ = id => document.getElementById(id);
const product = list => list.reduce((a, b) => a * b, 1);
const P = product(D.grid);
const axis = Object.fromEntries(D.axes.map((name, i) => [name, i]));
const gridOf = name => name in axis ? D.grid[axis[name]] : 1;

// intervals and boxes: the rules of ownership, as the planner has them
const cut = ([low, high], parts, index) => {
  const size = Math.floor((high - low) / parts), longer = (high - low) % parts;
  const start = low + index * size + Math.min(index, longer);
  return [start, start + size + (index < longer ? 1 : 0)];
};
const meet = (a, b) => { const low = Math.max(a[0], b[0]); return [low, Math.max(low, Math.min(a[1], b[1]))]; };
const volume = box => product(box.map(([low, high]) => high - low));
const overlap = (a, b) => a.map((each, i) => meet(each, b[i]));
const at = rank => {
  const found = [];
  for (let i = D.grid.length - 1; i >= 0; i--) { found[i] = rank % D.grid[i]; rank = Math.floor(rank / D.grid[i]); }
  return found;
};
const rankOf = coordinates => coordinates.reduce((rank, index, i) => rank * D.grid[i] + index, 0);
const work = p => Object.fromEntries(D.axes.map((name, i) => [name, cut([0, D.extents[i]], D.grid[i], p[i])]));
const member = (tensor, p) => D.lacks[tensor].reduce((m, name) => m * gridOf(name) + p[axis[name]], 0);
const size = tensor => product(D.lacks[tensor].map(gridOf));
const lines = (p, names) => names.reduce(
  (all, name) => all.flatMap(q => Array.from({length: gridOf(name)}, (_, i) => q.with(axis[name], i))), [p]);
const group = (tensor, p) => lines(p, D.lacks[tensor]).map(rankOf);
const partsOf = (tensor, p) => {
  let index = member(tensor, p);
  const found = {};
  for (const [dim, parts] of [...D.shard_cuts[tensor]].reverse()) { found[dim] = [parts, index % parts]; index = Math.floor(index / parts); }
  return found;
};
const owned = (tensor, p) => {
  const parts = partsOf(tensor, p);
  return D.dims[tensor].map((dim, i) =>
    cut(cut([0, D.shapes[tensor][i]], gridOf(dim), dim in axis ? p[axis[dim]] : 0), ...(parts[dim] || [1, 0])));
};
const reach = (name, [low, high]) => {
  if (high <= low) return [0, 0];
  const [stride, kernel, dilation, padding, rows, divisor] = D.windows[name];
  const first = Math.max(0, Math.ceil((stride * low - padding) / divisor));
  const last = Math.min(rows, Math.floor((stride * (high - 1) + dilation * (kernel - 1) - padding) / divisor) + 1);
  return first < last ? [first, last] : [0, 0];
};
const touched = (tensor, block) => D.dims[tensor].map((dim, i) =>
  !(dim in block) ? [0, D.shapes[tensor][i]] :
  D.framed[tensor].includes(dim) ? reach(dim, block[dim]) : block[dim]);
const needed = (tensor, p) => touched(tensor, work(p));
const carried = (tensor, p) => {
  const own = owned(tensor, p);
  if (!D.framed[tensor].length) return own;
  const parts = partsOf(tensor, p), need = needed(tensor, p);
  return D.dims[tensor].map((dim, i) => {
    if (!D.framed[tensor].includes(dim)) return own[i];
    const [count, part] = parts[dim] || [1, 0];
    const low = part === 0 ? need[i][0] : own[i][0], high = part === count - 1 ? need[i][1] : own[i][1];
    return meet([low, Math.max(low, high)], need[i]);
  });
};
const rowsShared = tensor => D.shard_cuts[tensor].some(([dim]) => SPATIAL.includes(dim));
const others = (tensor, p) => lines(p, rowsShared(tensor) ? [...SPATIAL, ...D.lacks[tensor]] : SPATIAL)
  .filter(q => rankOf(q) !== rankOf(p));
const neighboursOf = (tensor, p) => {
  const mine = carried(tensor, p);
  if (volume(mine) === volume(overlap(mine, owned(tensor, p)))) return [];
  return others(tensor, p).filter(q => volume(overlap(mine, owned(tensor, q))) > 0).map(rankOf);
};
const neighbours = p => [...new Set(["In", "Out"].flatMap(tensor => neighboursOf(tensor, p)))];
const returned = (tensor, p) => others(tensor, p)
  .reduce((sum, q) => sum + volume(overlap(carried(tensor, q), owned(tensor, p))), 0);

// what travels in a step
const tileOf = (p, step) => {
  const block = work(p), counts = D.counts[step.pass];
  for (const [name, index] of Object.entries(step.tile)) {
    const count = counts[axis[name]], begin = (sum, tensor) => {
      const [parts, part] = partsOf(tensor, p)[name];
      return sum + Math.floor(part * count / parts);
    };
    block[name] = cut(block[name], count, D.rotation[step.pass].reduce(begin, index) % count);
  }
  return block;
};
const regionOf = (tensor, p, step) => step.phase === "loop" ? touched(tensor, tileOf(p, step)) : needed(tensor, p);
const wordsIn = (p, step) => step.moves.map(([tensor, kind]) => {
  const mine = carried(tensor, p), region = kind === "halo" ? mine : regionOf(tensor, p, step);
  if (kind === "halo") return [tensor, volume(mine) - volume(overlap(mine, owned(tensor, p)))];
  if (kind === "broadcast") return [tensor, volume(region) - volume(overlap(mine, region))];
  if (kind === "reduce") return [tensor, volume(overlap(mine, region)) * (size(tensor) - 1)];
  if (kind === "return") return [tensor, returned(tensor, p)];
  return [tensor, null];
});
const uses = (tensor, p, step) => volume(overlap(carried(tensor, p), regionOf(tensor, p, step))) > 0;
const sends = (tensor, p, step) => {
  if (step.phase !== "loop" || !D.rotation[step.pass].includes(tensor)) return uses(tensor, p, step);
  const [name] = Object.keys(step.tile), panels = D.counts[step.pass][axis[name]];  // all are used equally often
  return volume(carried(tensor, p)) > 0 && (size(tensor) > panels || !uses(tensor, p, step));
};

const received = [];
for (const [count, ...words] of D.received) for (let i = 0; i < count; i++) received.push(words);
const shown = words => Math.round(words).toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");

// the grid of processes
const columns = D.columns, rows = Math.ceil(P / columns);
const inner = D.grid[6], gap = i => inner > 1 && inner < columns ? Math.floor(i / inner) * 0.25 : 0;
const svg = $("grid"), wide = columns + gap(columns - 1), pitch = Math.max(0.55, Math.min(1, 0.62 * wide / rows));
svg.setAttribute("viewBox", `0 0 ${wide} ${rows * pitch}`);
const numbers = P <= 512;
let cells = "";
for (let r = 0; r < P; r++) {
  const column = r % columns, row = Math.floor(r / columns), x = column + gap(column) + 0.05, y = row * pitch + 0.05;
  cells += `<g data-rank="${r}"><rect x="${x}" y="${y}" width=".9" height="${pitch - 0.1}" rx=".12"/>` +
    (numbers ? `<text x="${x + 0.45}" y="${y + pitch / 2 - 0.04}" font-size="${P > 200 ? 0.34 : 0.3}">${r}</text>` : "") + "</g>";
}
svg.innerHTML = cells + TENSORS.map(t => `<path class="dots t-${t}" data-sends="${t}"/>`).join("");
const cell = [...svg.querySelectorAll("g")];
const CORNERS = {In: [0.11, 0.11], Ker: [0.75, 0.11], Out: [0.75, pitch - 0.25]};  // of a cell, for the sender's dot
const corner = (tensor, rank) => {
  const column = rank % columns, row = Math.floor(rank / columns);
  return [column + gap(column) + CORNERS[tensor][0], row * pitch + CORNERS[tensor][1]];
};

// the three tensors: rectangles nested along each side, outermost dimension first
const SIDES = {In: [["g", "c"], ["b", "d", "h", "w"]], Ker: [["g", "k"], ["c", "t", "r", "s"]], Out: [["g", "k"], ["b", "d", "h", "w"]]};
const FRAME = {In: [244, 30, 310, 140], Ker: [48, 212, 140, 226], Out: [244, 212, 310, 226]};
const along = (tensor, names, box) => {
  let start = 0, length = 1;
  for (const name of names) {
    const i = D.dims[tensor].indexOf(name), total = D.shapes[tensor][i];
    start += length * box[i][0] / total;
    length *= (box[i][1] - box[i][0]) / total;
  }
  return [start, length];
};
const place = (tensor, box) => {
  const [x, y, w, h] = FRAME[tensor];
  const [top, high] = along(tensor, SIDES[tensor][0], box), [left, length] = along(tensor, SIDES[tensor][1], box);
  return `x="${(x + left * w).toFixed(2)}" y="${(y + top * h).toFixed(2)}" width="${Math.max(1.5, length * w).toFixed(2)}" height="${Math.max(1.5, high * h).toFixed(2)}"`;
};
const cuts = tensor => {
  const [x, y, w, h] = FRAME[tensor], across = product(SIDES[tensor][1].map(gridOf)), down = product(SIDES[tensor][0].map(gridOf));
  let found = "";
  for (let i = 1; i < across && across <= 64; i++) found += `<line class="cut" x1="${x + w * i / across}" x2="${x + w * i / across}" y1="${y}" y2="${y + h}"/>`;
  for (let i = 1; i < down && down <= 64; i++) found += `<line class="cut" x1="${x}" x2="${x + w}" y1="${y + h * i / down}" y2="${y + h * i / down}"/>`;
  return found;
};
const stripes = TENSORS.map(t => `<pattern id="p-${t}" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="t-${t}" width="3.5" height="7" stroke="none"/></pattern>`).join("");
const used = (tensor, side) => SIDES[tensor][side].filter(n => D.shapes[tensor][D.dims[tensor].indexOf(n)] > 1).join("·") || "1";
const frames = TENSORS.map(t => {
  const [x, y, w, h] = FRAME[t];
  return `<rect class="frame" x="${x}" y="${y}" width="${w}" height="${h}" rx="3"/>${cuts(t)}` +
    `<text class="name" x="${x}" y="${y - 8}">${t}</text><text x="${x + w}" y="${y - 8}" text-anchor="end">${used(t, 1)} \u2192</text>` +
    `<text x="${x - 7}" y="${y + 13}" text-anchor="end">${used(t, 0)} \u2193</text>`;
}).join("");

const state = {rank: 0, step: 0, timer: null};

function showTensors() {
  const p = at(state.rank), step = D.steps[state.step];
  let text = `<defs>${stripes}</defs>${frames}`;
  for (const t of TENSORS) text += `<rect class="need t-${t}" data-need="${t}" ${place(t, needed(t, p))}/>`;
  for (const t of TENSORS) { const own = owned(t, p); if (volume(own)) text += `<rect class="own t-${t}" data-own="${t}" ${place(t, own)}/>`; }
  for (const [t, kind] of step ? step.moves : [])
    text += `<rect class="move" data-move="${t}" fill="url(#p-${t})" ${place(t, kind === "halo" ? carried(t, p) : regionOf(t, p, step))}/>`;
  $("tensors").innerHTML = text;
}

function showGrid() {
  const p = at(state.rank), step = D.steps[state.step], kind = Array(P).fill("");
  for (const r of neighbours(p)) kind[r] = "near";
  for (const t of TENSORS) for (const r of group(t, p)) kind[r] = t + (kind[r] === "near" ? " near" : "");
  kind[state.rank] = "self";
  cell.forEach((each, r) => { if (each.getAttribute("class") !== kind[r]) each.setAttribute("class", kind[r]); });
  const casts = step ? step.moves.filter(([, how]) => how === "broadcast").map(([t]) => t) : [];
  for (const path of svg.querySelectorAll("[data-sends]")) {
    const t = path.dataset.sends;
    let dots = "";
    if (casts.includes(t)) for (let r = 0; r < P; r++) if (sends(t, at(r), step)) {
      const [x, y] = corner(t, r);
      dots += `M${x.toFixed(2)} ${y.toFixed(2)}h.14v.14h-.14z`;
    }
    path.setAttribute("d", dots);
  }
  for (const b of document.querySelectorAll("[data-group]")) {
    const count = b.dataset.group === "halo" ? neighbours(p).length : size(b.dataset.group) - 1;
    b.textContent = count;
  }
}

function interval([low, high], total) { return high - low === total ? "all" : `${low}:${high}`; }
function boxText(tensor, box) {
  return D.dims[tensor].map((dim, i) => D.shapes[tensor][i] > 1 ? `${dim} ${interval(box[i], D.shapes[tensor][i])}` : "")
    .filter(Boolean).join(", ");
}
function showDetail() {
  const p = at(state.rank), words = received[state.rank];
  const where = D.axes.map((name, i) => D.grid[i] > 1 ? `${name}=${p[i]}` : "").filter(Boolean).join(" ") || "alone";
  const rows = TENSORS.map((t, i) => `<tr data-row="${t}"><th scope="row">${t}</th><td>${boxText(t, owned(t, p))}</td>` +
    `<td class="num">${shown(volume(owned(t, p)))}</td><td class="num">${shown(words[i])}</td></tr>`).join("");
  const total = words[0] + words[1] + words[2];
  $("detail").innerHTML = `<table><thead><tr><th>rank ${state.rank} (${where})</th><th>owns</th><th class="num">words</th><th class="num">receives</th></tr></thead>` +
    `<tbody>${rows}<tr><th>together</th><td></td><td class="num">${shown(TENSORS.reduce((s, t) => s + volume(owned(t, p)), 0))}</td>` +
    `<td class="num" id="total">${shown(total)}</td></tr></tbody></table>`;
  const marker = $("marker");
  marker.setAttribute("x", +marker.dataset.left + state.rank * marker.dataset.each);
  marker.setAttribute("width", Math.max(1, +marker.dataset.each));
}

function showStep() {
  const step = D.steps[state.step], names = step ? D.names[step.pass] : {};
  $("step").value = state.step;
  $("count").textContent = `${state.step + 1} / ${D.steps.length}`;
  $("what").textContent = step ? step.text : "nothing moves: every rank has what it needs";
  const mine = step ? wordsIn(at(state.rank), step).filter(([, words]) => words !== null) : [];
  $("mine").textContent = mine.length ? `rank ${state.rank} receives ` + mine.map(([t, words]) => `${shown(words)} words of ${names[t]}`).join(" and ") : "";
}

function show() { showGrid(); showTensors(); showDetail(); showStep(); }
function choose(rank) { state.rank = Math.min(P - 1, Math.max(0, rank)); show(); }
function goto(step) {
  const most = D.steps.length - 1;
  state.step = step > most ? 0 : step < 0 ? most : step;
  showGrid(); showTensors(); showStep();
}
function play(on) {
  clearInterval(state.timer);
  state.timer = on ? setInterval(() => goto(state.step + 1), 900) : null;
  $("play").textContent = on ? "\u275a\u275a pause" : "\u25b6 play";
  $("play").setAttribute("aria-label", on ? "pause" : "play");
}

svg.addEventListener("click", event => {
  const hit = event.target.closest("[data-rank]");
  if (hit) choose(+hit.dataset.rank);
});
svg.addEventListener("keydown", event => {
  const moves = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -state.rank, End: P - 1 - state.rank};
  if (event.key in moves) {
    const to = state.rank + moves[event.key];
    if (to >= 0 && to < P) choose(to);
    event.preventDefault();
  }
  if (event.key === " ") { play(!state.timer); event.preventDefault(); }
});
$("step").max = Math.max(0, D.steps.length - 1);
$("step").addEventListener("input", event => { play(false); goto(+event.target.value); });
$("back").addEventListener("click", () => { play(false); goto(state.step - 1); });
$("next").addEventListener("click", () => { play(false); goto(state.step + 1); });
$("play").addEventListener("click", () => play(!state.timer));
show();

// for tests: what the page knows about a rank, against the planner
window.synth = {state, choose, goto, received: rank => received[rank], owned: (t, r) => owned(t, at(r)), needed: (t, r) => needed(t, at(r)),
  carried: (t, r) => carried(t, at(r)), group: (t, r) => group(t, at(r)), neighbours: r => neighbours(at(r)),
  sum: r => D.steps.reduce((s, step) => s + wordsIn(at(r), step).reduce((a, [, w]) => a + (w || 0), 0), 0)};
})();
