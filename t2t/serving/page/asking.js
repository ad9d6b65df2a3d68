// Sends requests one after another; each has a card for its answer.

let running = null;
let ask = WAYS.write; // kind of the model
let cards = [];
const ranges = [...document.querySelectorAll("[data-option]")];

const mode = () => document.querySelector("[name=mode]:checked").value;
const filledLines = (id) => find(id).value.split("\n").filter((line) => line.trim());

function showOptions() {
  for (const input of ranges) {
    const option = input.closest(".option");
    option.hidden = Boolean(option.dataset.mode) && option.dataset.mode !== mode();
    const shown = option.querySelector("output");
    if (shown) shown.textContent = input.dataset.option === "max_length" ? count(Number(input.value), "token") : input.value;
  }
}

// Returns the typed inputs: one, or one for each line.
function inputs() {
  const text = find("inputs").value;
  const found = find("lines").checked && !find("lines-field").hidden ? filledLines("inputs") : [text];
  const prefix = find("prefix-field").hidden ? "" : find("prefix").value;
  // Listed prefixes end in a space, which a typed prefix may lack.
  const between = prefix && !/\s$/.test(prefix) ? " " : "";
  return (found.length ? found : [""]).map((each) => each.trim() ? prefix + between + each : each);
}

function request(text) {
  const found = {[ask.field ?? "inputs"]: text};
  if (!find("adapter-field").hidden && find("adapter").value) found.adapter = find("adapter").value;
  if (!find("context").hidden) found.context = find("context").value;
  if (!find("second").hidden && find("second").value.trim()) found.parts = [text, find("second").value];
  if (!find("candidates").hidden) found.candidates = filledLines("candidates");
  if (!ask.writes) return found;
  for (const input of ranges) {
    // Empty fields are not sent.
    if (!input.closest(".option").hidden && input.value !== "") found[input.dataset.option] = Number(input.value);
  }
  if (find("odds").checked) found.token_probabilities = true;
  return found;
}

function setRunning(controller) {
  running = controller;
  find("write").textContent = controller ? "Stop" : ask.button;
  find("write").classList.toggle("running", Boolean(controller));
}

const STATES = {
  waiting: "Waiting for another request …",
  compiling: "Compiling for these options and lengths (once) …",
  searching: "Searching …",
  telling: "Computing token probabilities …",
};

function newCard(text, number, all) {
  const title = element("h3", all > 1 ? "" : "unseen", all > 1 ? `${number + 1}. ${text}` : "Answer");
  const card = {
    title: text, sent: request(text), text: element("p", "text running"), note: element("p", "note"),
    facts: element("p", "facts"), others: element("div", "others"), prediction: null,
  };
  card.note.hidden = card.others.hidden = true;
  card.root = element("article", "", title, card.text, card.note, card.facts, card.others);
  find("results").append(card.root);
  return card;
}

function show(card, event) {
  if (event.error) throw new Error(event.error);
  if (event.state) find("status").textContent = STATES[event.state];
  if (event.cut) {
    const where = (ask.title ?? "Input").toLowerCase();
    card.note.textContent = `${count(event.cut, "token")} of the ${where} did not fit and were truncated.`;
    card.note.hidden = false;
  }
  if (event.prediction === undefined) return;
  find("status").textContent = "";
  card.prediction = event.prediction;
  const facts = [count(event.tokens, "token") + (ask.writes ? "" : " read")];
  if (ask.writes) {
    const speed = event.tokens_per_second;
    if (speed) facts.push(`${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s`);
    if (event.score !== undefined) facts.push(`score ${shownScore(event.score)}`);
    if (event.ended !== undefined) facts.push(event.ended ? "complete" : "stopped at maximum length");
  }
  card.facts.textContent = facts.join(" · ");
  if (event.ended === undefined) card.text.textContent = event.prediction;
  else ask.show(card, event);
}

async function answer(card, signal) {
  const response = await post("generate", card.sent, signal);
  if (!response.ok) throw new Error((await response.json()).error);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "", ended = false; !ended;) {
    const {value, done} = await reader.read();
    rest += value ?? "";
    ended = done;
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) show(card, JSON.parse(line));
  }
}

async function write() {
  const controller = new AbortController();
  setRunning(controller);
  showError("");
  find("copy").hidden = find("empty").hidden = true;
  find("status").textContent = find("said").textContent = "";
  find("results").replaceChildren();
  cards = [];
  const texts = inputs();
  try {
    for (const [number, text] of texts.entries()) {
      const card = newCard(text, number, texts.length);
      cards.push(card);
      await answer(card, controller.signal);
      card.text.classList.remove("running");
      setLooked(cards);
    }
    find("status").textContent = texts.length > 1 ? `${count(texts.length, "input")} answered` : "";
    find("said").textContent = cards.map((card) => card.text.textContent || card.prediction).join(". ");
  } catch (error) {
    if (error.name === "AbortError") find("status").textContent = "Stopped";
    else showError(error instanceof TypeError ? SILENT : error.message);
  }
  for (const card of cards) card.text.classList.remove("running");
  setLooked(cards);
  find("copy").hidden = !cards.some((card) => card.prediction);
  setRunning(null);
}

function writeOrStop() {
  if (running) running.abort();
  else write();
}
