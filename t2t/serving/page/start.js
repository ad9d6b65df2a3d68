// Adapts the page to the model, and registers event listeners.

function setOffered(about) {
  const adapters = about.adapters ?? [];
  find("adapter-field").hidden = !adapters.length;
  find("adapter").replaceChildren(new Option("none", ""), ...adapters.map((name) => new Option(name)));
  find("prefix-field").hidden = !ask.writes;
  find("prefixes").replaceChildren(...(about.prefixes ?? []).map((prefix) => new Option(prefix, prefix)));
  find("chosen").hidden = !ask.writes && !adapters.length;
  find("lines-field").hidden = about.asks === "span" || about.asks === "choice" || about.pairs;
  setAttention(about.attention);
  const others = [["second", about.pairs], ["candidates", about.asks === "choice"], ["context", about.asks === "span"]];
  for (const [id, shown] of others) {
    find(id).hidden = !shown;
    document.querySelector(`label[for=${id}]`).hidden = !shown;
  }
}

async function start() {
  const answer = await fetch("about", {headers: letsIn});
  const about = await answer.json();
  if (!answer.ok) {
    showError(about.error);
    return;
  }
  const step = about.step === null ? [] : [`step ${about.step.toLocaleString("en")}`];
  const head = about.head ? [`head ${about.head}`] : [];
  const facts = [about.architecture, `${about.parameters} parameters`, ...step, about.checkpoint, ...head];
  find("about").textContent = facts.join(" · ");
  document.title = `${about.checkpoint} · t2t`;
  ask = WAYS[about.asks];
  find("limit").textContent = `reads ${count(about.max_inputs, "token")} ${ask.limit ?? "at most"}`;
  find("input-title").textContent = ask.title ?? "Input";
  find("inputs").classList.toggle("short", about.asks === "span");
  find("write").textContent = ask.button;
  find("does").textContent = ask.does;
  find("inputs").placeholder = ask.placeholder;
  find("empty").textContent = ask.empty;
  find("settings").hidden = !ask.writes;
  setOffered(about);
  if (!ask.writes) return;
  for (const input of ranges) {
    const name = input.dataset.option;
    if (name.endsWith("_length")) input.max = Math.min(512, about.max_length);
    if (about.defaults[name] !== undefined) input.value = about.defaults[name];
  }
  document.querySelector(`[name=mode][value=${about.defaults.mode}]`).checked = true;
  showOptions();
}

find("settings").addEventListener("input", showOptions);
find("write").addEventListener("click", writeOrStop);
find("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(cards.map((card) => String(card.prediction ?? "")).join("\n"));
  find("copy").textContent = "Copied";
  setTimeout(() => { find("copy").textContent = "Copy"; }, 1500);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !running) write();
  if (event.key === "Escape" && running) running.abort();
});
showOptions();
start().catch(() => showError(SILENT));
