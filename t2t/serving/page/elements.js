"use strict";
// What the page is made of.

const find = (id) => document.getElementById(id);
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
const shownScore = (score) => score.toFixed(3).replace("-", "\u2212");
const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 0.0001) return "< 0.0001 %";
  return `${value > 0 && value < 1 ? value.toPrecision(2) : value.toFixed(1)} %`;
};

// An element with a class, if there is one, and what stands in it.
function element(name, className, ...inside) {
  const found = document.createElement(name);
  if (className) found.className = className;
  found.append(...inside);
  return found;
}

const heading = (text) => element("h4", "", text);

// A table with these columns and rows of cells, text or nodes; the first of each row names it.
function table(columns, rows) {
  const names = columns.map((name) => {
    const cell = element("th", "", name);
    cell.scope = "col";
    return cell;
  });
  const lines = rows.map((cells) => element("tr", "", ...cells.map((cell) => element("td", "", cell))));
  return element("table", "", element("thead", "", element("tr", "", ...names)), element("tbody", "", ...lines));
}

// A bar as long as a share of one.
function bar(share) {
  const part = element("div", "");
  part.style.width = `${100 * share}%`;
  return element("div", "bar", part);
}

// A table of rows [text or node, what stands beside it, share of a bar].
function bars(columns, rows) {
  const cells = rows.map(([text, beside, share]) => [text || "(nothing)", element("div", "", beside, bar(share))]);
  return table(columns, cells);
}

// [text, probability], the likeliest first.
function likeliestFirst(pairs) {
  return [...pairs].sort((one, other) => other[1] - one[1]).map(([text, share]) => [text, percent(share), share]);
}

// Of each type of entity the number of its colour, in the order in which they were seen.
const kinds = new Map();

function marked(text, label) {
  const found = element("mark", "", text);
  if (label === undefined) return found;
  if (!kinds.has(label)) kinds.set(label, kinds.size % 6);
  found.className = `kind-${kinds.get(label)}`;
  found.dataset.label = label;
  return found;
}

// A text whose spans {start, end, label} are marked; they count characters, and JavaScript counts halves of some.
function withMarks(text, spans) {
  const characters = [...text];
  const part = (start, end) => characters.slice(start, end).join("");
  let at = 0;
  const nodes = spans.flatMap(({start, end, label}) => {
    const before = part(at, start);
    at = end;
    return [before, marked(part(start, end), label)];
  });
  return [...nodes, part(at)];
}

function showError(message, id = "error") {
  find(id).textContent = message;
  find(id).hidden = !message;
}

// The token stands behind # in the address, where it is sent to nobody but by this.
const letsIn = location.hash.length > 1 ? {Authorization: `Bearer ${location.hash.slice(1)}`} : {};

function post(path, body, signal) {
  const headers = {"Content-Type": "application/json", ...letsIn};
  return fetch(path, {method: "POST", signal, headers, body: JSON.stringify(body)});
}

const SILENT = "The server does not answer; is t2t infer --server still running?";
