(() => {
const GRAPHS = JSON.parse(document.getElementById("data").textContent);  // folded and whole, or whole alone
const pictures = [...document.querySelectorAll("svg.layers")], detail = document.getElementById("detail");
const unfold = document.getElementById("unfold");
const state = {at: 0, chosen: 0};
let D, svg, layers, lines;
function show(number) {
  pictures.forEach((picture, i) => picture.toggleAttribute("hidden", i !== number));
  D = GRAPHS[number];
  svg = pictures[number];
  layers = [...svg.querySelectorAll("[data-layer]")];
  lines = [...svg.querySelectorAll("[data-edge]")];
}
const make = (tag, text, parent) => { const e = document.createElement(tag); e.textContent = text; parent.append(e); return e; };
const table = (title, rows) => {
  if (title) make("h4", title, detail);
  const body = make("tbody", "", make("table", "", detail));
  for (const [name, value] of rows) {
    const row = make("tr", "", body);
    make("th", name, row).scope = "row";
    make("td", value, row);
  }
};
const moved = (edges, end) => edges.length
  ? edges.map(e => [`${D.layers[e[end]].name} (${e.onto})`, e.free ? "nothing moves" : e.words]) : [["none", ""]];

function choose(index) {
  state.chosen = state.at = index;
  const layer = D.layers[index], mine = D.edges.filter(e => e.from === index || e.to === index);
  const near = new Set(mine.flatMap(e => [e.from, e.to]));
  layers.forEach((g, i) => {
    g.classList.toggle("chosen", i === index);
    g.classList.toggle("near", i !== index && near.has(i));
  });
  lines.forEach((path, i) => path.classList.toggle("lit", mine.includes(D.edges[i])));
  svg.classList.add("some");
  detail.replaceChildren();
  make("h3", layer.name, detail);
  if (layer.times > 1) make("p", `${layer.times} times: ${layer.names.join(", ")}`, detail).className = "hint";
  table("", [["grid", layer.grid], ["stationary", layer.stationary], ["panels", layer.panels], ["cost", layer.cost],
    ["working memory", layer.memory]]);
  table("Words received, at most", [["In", layer.words.in], ["Ker", layer.words.ker], ["Out", layer.words.out]]);
  table("Redistribution in", moved(mine.filter(e => e.to === index), "from"));
  table("Redistribution out", moved(mine.filter(e => e.from === index), "to"));
  cursor(index);
}
function cursor(index) {
  state.at = Math.min(layers.length - 1, Math.max(0, index));
  layers.forEach((g, i) => g.classList.toggle("cursor", i === state.at));
}
pictures.forEach(picture => {
  picture.addEventListener("click", event => {
    const hit = event.target.closest("[data-layer]");
    if (hit) choose(+hit.dataset.layer);
  });
  picture.addEventListener("keydown", event => {
    const to = {ArrowDown: state.at + 1, ArrowUp: state.at - 1, Home: 0, End: layers.length - 1};
    if (event.key in to) {
      cursor(to[event.key]);
      layers[state.at].scrollIntoView({block: "nearest"});
    } else if (event.key === "Enter" || event.key === " ") choose(state.at);
    else return;
    event.preventDefault();
  });
});
if (unfold) unfold.addEventListener("change", () => {
  const name = D.layers[state.chosen].name;
  show(unfold.checked ? 1 : 0);
  choose(Math.max(0, D.layers.findIndex(layer => layer.names.includes(name))));
});
show(0);
choose(0);
})();
