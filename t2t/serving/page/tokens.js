// A text with the probability of each token: on hover, on focus, and for screen readers.

// Merges tokens that end within a character with the token that completes it.
function whole(tokens) {
  const found = [];
  let open = null;
  tokens.forEach((token, index) => {
    open = open ? {...token, probability: open.probability * token.probability, parts: open.parts + 1}
      : {...token, parts: 1};
    if (token.text || index === tokens.length - 1) {
      found.push(open);
      open = null;
    }
  });
  return found;
}

const visible = (text) => text === "" ? "(end)" : text.replace(/ /g, "\u2423").replace(/\n/g, "\u21b5");

function oddsOf(token) {
  const others = token.likeliest.map((each) => `${visible(each.text)} ${percent(each.probability)}`).join(", ");
  return `${visible(token.text)}: ${percent(token.probability)}${token.parts > 1 ? ` (${token.parts} tokens)` : ""}`
    + `${token.parts > 1 ? "" : `; likeliest: ${others}`}`;
}

// Returns the tokens of a text as buttons; one is in the tab order, and arrow keys move between them.
function tokensOf(tokens) {
  const tip = element("span", "tip");
  tip.hidden = true;
  const buttons = whole(tokens).map((token, index) => {
    const share = token.probability;
    const level = share >= 0.9 ? 0 : share >= 0.5 ? 1 : share >= 0.2 ? 2 : share >= 0.05 ? 3 : 4;
    const button = element("button", `token sure-${level}`, token.text || "\u25a0");
    button.type = "button";
    button.tabIndex = index ? -1 : 0;
    button.setAttribute("aria-label", oddsOf(token));
    const show = () => {
      tip.textContent = oddsOf(token);
      tip.hidden = false;
    };
    for (const name of ["mouseenter", "focus"]) button.addEventListener(name, show);
    for (const name of ["mouseleave", "blur"]) button.addEventListener(name, () => { tip.hidden = true; });
    return button;
  });
  const group = element("span", "tokens", ...buttons, tip);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", `Tokens with probabilities; arrow keys move between them`);
  group.addEventListener("keydown", (event) => {
    const at = buttons.indexOf(document.activeElement);
    const to = {ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: buttons.length - 1}[event.key];
    if (at < 0 || to === undefined || !buttons[to]) return;
    event.preventDefault();
    buttons[at].tabIndex = -1;
    buttons[to].tabIndex = 0;
    buttons[to].focus();
  });
  return group;
}

// Returns the tokens as a table, initially collapsed.
function tokenDetails(tokens) {
  if (!tokens?.length) return [];
  const rows = whole(tokens).map((token) => {
    const others = token.likeliest.map((each) => `${visible(each.text)} ${percent(each.probability)}`);
    return [visible(token.text), percent(token.probability), others.join(", ")];
  });
  const summary = element("summary", "", "Tokens as a table");
  return [element("details", "", summary, table(["Token", "Probability", "Likeliest"], rows))];
}
