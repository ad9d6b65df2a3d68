// Attention map of one layer and head, with a row for each query token.

let map = null; // response of the server
let cell = {row: 0, column: 0}; // selected cell
let drawn = {size: 0, left: 0, top: 0};

const numbers = (most) => Array.from({length: most}, (_, index) => new Option(index + 1));

function setAttention(sizes) {
  find("attention").hidden = !sizes;
  if (!sizes) return;
  const named = {encoder: "encoder self-attention", decoder: "decoder self-attention", cross: "cross-attention"};
  find("which").replaceChildren(...Object.keys(sizes).map((name) => new Option(named[name], name)));
  const chosen = () => {
    const {layers, heads} = sizes[find("which").value];
    find("layer").replaceChildren(...numbers(layers));
    find("head").replaceChildren(...numbers(heads));
  };
  find("which").addEventListener("change", chosen);
  chosen();
  for (const id of ["which", "layer", "head", "of"]) {
    find(id).addEventListener("change", () => { if (map) look(); });
  }
}

// Lists the texts with available attention maps.
function setLooked(cards) {
  find("of").replaceChildren(...cards.map((card, index) => new Option(`${index + 1}: ${card.title.slice(0, 40)}`, index)));
  find("of-field").hidden = cards.length < 2;
}

async function look() {
  const card = cards[Number(find("of").value)];
  if (!card) {
    showError("No text yet; run the model first.", "attention-error");
    return;
  }
  showError("", "attention-error");
  const body = {which: find("which").value, layer: Number(find("layer").value), head: Number(find("head").value)};
  if (ask.writes) {
    body.inputs = card.sent.inputs;
    if (card.sent.adapter) body.adapter = card.sent.adapter;
    if (body.which !== "encoder") body.targets = card.prediction ?? "";
  } else {
    Object.assign(body, card.sent);
  }
  try {
    find("look").disabled = true;
    const response = await post("attention", body);
    const found = await response.json();
    if (!response.ok) throw new Error(found.error);
    map = found;
    cell = {row: 0, column: 0};
    find("map").hidden = false;
    find("attention-hint").hidden = true;
    find("cell").textContent = "";
    draw();
    showMost();
  } catch (error) {
    find("map").hidden = true;
    map = null;
    showError(error instanceof TypeError ? SILENT : error.message, "attention-error");
  }
  find("look").disabled = false;
}

const short = (text) => text.length > 12 ? `${text.slice(0, 11)}\u2026` : visible(text);

function draw() {
  if (!map) return;
  const canvas = find("picture");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const most = Math.max(map.queries.length, map.keys.length);
  const size = Math.max(12, Math.min(26, Math.floor(700 / most)));
  const context = canvas.getContext("2d");
  const font = `${Math.min(13, size)}px system-ui, sans-serif`;
  context.font = font;
  const wide = (labels) => Math.ceil(Math.max(...labels.map((each) => context.measureText(short(each)).width))) + 8;
  const left = wide(map.queries);
  const top = wide(map.keys);
  const width = left + size * map.keys.length + 2;
  const height = top + size * map.queries.length + 2;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  context.scale(ratio, ratio);
  context.fillStyle = colour("--surface");
  context.fillRect(0, 0, width, height);
  context.font = font;
  context.textBaseline = "middle";
  context.fillStyle = colour("--text");
  map.keys.forEach((label, column) => {
    context.save();
    context.translate(left + (column + 0.5) * size, top - 4);
    context.rotate(-Math.PI / 2);
    context.fillText(short(label), 0, 0);
    context.restore();
  });
  context.textAlign = "right";
  map.queries.forEach((label, row) => {
    context.fillText(short(label), left - 4, top + (row + 0.5) * size);
  });
  map.weights.forEach((shares, row) => shares.forEach((share, column) => {
    context.globalAlpha = 1;
    context.fillStyle = colour("--sunken");
    context.fillRect(left + column * size, top + row * size, size - 1, size - 1);
    // The square root makes small shares visible.
    context.globalAlpha = Math.sqrt(share);
    context.fillStyle = colour("--accent");
    context.fillRect(left + column * size, top + row * size, size - 1, size - 1);
  }));
  context.globalAlpha = 1;
  context.strokeStyle = colour("--text");
  context.lineWidth = 2;
  context.strokeRect(left + cell.column * size, top + cell.row * size, size - 1, size - 1);
  drawn = {size, left, top};
  canvas.setAttribute("aria-label", `Attention of ${map.which}, layer ${map.layer}, head ${map.head}: `
    + `${map.queries.length} rows, ${map.keys.length} columns`);
}

function sayCell() {
  const {row, column} = cell;
  const share = percent(map.weights[row][column]);
  find("cell").textContent = `${visible(map.queries[row])} (${row + 1}) attends to ${visible(map.keys[column])} (${column + 1}): ${share}`;
}

function showMost() {
  const rows = map.weights.map((shares, row) => {
    const order = shares.map((share, column) => [share, column]).sort((one, other) => other[0] - one[0]).slice(0, 3);
    return [visible(map.queries[row]), order.map(([share, column]) => `${visible(map.keys[column])} ${percent(share)}`).join(", ")];
  });
  find("most").replaceChildren(table(["Token", "Attends to"], rows));
}

find("picture").addEventListener("keydown", (event) => {
  const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
  if (!move || !map) return;
  event.preventDefault();
  cell.row = Math.max(0, Math.min(map.queries.length - 1, cell.row + move[0]));
  cell.column = Math.max(0, Math.min(map.keys.length - 1, cell.column + move[1]));
  draw();
  sayCell();
});
find("picture").addEventListener("mousemove", (event) => {
  if (!map) return;
  const box = event.target.getBoundingClientRect();
  const column = Math.floor((event.clientX - box.left - drawn.left) / drawn.size);
  const row = Math.floor((event.clientY - box.top - drawn.top) / drawn.size);
  if (!map.weights[row]?.[column] && map.weights[row]?.[column] !== 0) return;
  cell = {row, column};
  draw();
  sayCell();
});
find("look").addEventListener("click", look);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
