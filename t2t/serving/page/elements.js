"use strict";
// Building blocks of the page.

const find = (id) => document.getElementById(id);
const count = (number, word) => `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
const shownScore = (score) => score.toFixed(3).replace("-", "\u2212");
const percent = (share) => {
  const value = 100 * share;
  if (value > 0 && value < 0.0001) return "< 0.0001 %";
  return `${value > 0 && value < 1 ? value.toPrecision(2) : value.toFixed(1)} %`;
};

// Returns an element with an optional class and its content.
function element(name, className, ...inside) {
  const found = document.createElement(name);
  if (className) found.className = className;
  found.append(...inside);
  return found;
}

const heading = (text) => element("h4", "", text);

// Returns a table with these columns and rows of cells (text or nodes).
function table(columns, rows) {
  const names = columns.map((name) => {
    const cell = element("th", "", name);
    cell.scope = "col";
    return cell;
  });
  const lines = rows.map((cells) => element("tr", "", ...cells.map((cell) => element("td", "", cell))));
  return element("table", "", element("thead", "", element("tr", "", ...names)), element("tbody", "", ...lines));
}

// Returns a bar for a share from 0 to 1.
function bar(share) {
  const part = element("div", "");
  part.style.width = `${100 * share}%`;
  return element("div", "bar", part);
}

// Returns a table of rows [text or node, second column, share of a bar].
function bars(columns, rows) {
  const cells = rows.map(([text, beside, share]) => [text || "(empty)", element("div", "", beside, bar(share))]);
  return table(columns, cells);
}

// Sorts [text, probability], likeliest first, and formats the probabilities.
function likeliestFirst(pairs) {
  return [...pairs].sort((one, other) => other[1] - one[1]).map(([text, share]) => [text, percent(share), share]);
}

// Colour number of each entity label, in order of appearance.
const kinds = new Map();

function marked(text, label) {
  const found = element("mark", "", text);
  if (label === undefined) return found;
  if (!kinds.has(label)) kinds.set(label, kinds.size % 6);
  found.className = `kind-${kinds.get(label)}`;
  found.dataset.label = label;
  return found;
}

// Marks spans {start, end, label} of a text. They count characters, but JavaScript counts UTF-16 units.
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

// The token comes after # in the address, which browsers do not send.
const letsIn = location.hash.length > 1 ? {Authorization: `Bearer ${location.hash.slice(1)}`} : {};

function post(path, body, signal) {
  const headers = {"Content-Type": "application/json", ...letsIn};
  return fetch(path, {method: "POST", signal, headers, body: JSON.stringify(body)});
}

const SILENT = "The server does not respond; check that t2t infer --server is running.";
