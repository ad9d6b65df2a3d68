// What a model is asked, and how its answers are shown; a card is where one answer stands, see asking.js.

function showOthers(card, ...nodes) {
  card.others.replaceChildren(...nodes);
  card.others.hidden = false;
}

function showClasses(card, event) {
  card.text.textContent = event.prediction;
  const rows = likeliestFirst(Object.entries(event.probabilities));
  showOthers(card, heading("All classes"), bars(["Class", "Probability"], rows));
}

function showCandidates(card, event) {
  const pairs = card.sent.candidates.map((text, index) => [text, event.probabilities[index]]);
  card.text.textContent = event.prediction;
  showOthers(card, heading("All candidates"), bars(["Candidate", "Probability"], likeliestFirst(pairs)));
}

function showNumber(card, event) {
  card.text.textContent = event.prediction.toPrecision(4).replace("-", "\u2212");
}

function showFillings(card, event) {
  const between = card.sent.inputs.split(/\[MASK\]|<mask>|<extra_id_[0-9]+>/);
  if (between.length === event.fillings.length + 1) {
    const likeliest = event.fillings.map((found) => marked(found[0].text));
    card.text.replaceChildren(...between.flatMap((part, index) => index ? [likeliest[index - 1], part] : [part]));
  } else {
    card.text.textContent = event.prediction; // a part of the text did not fit, and blanks with it
  }
  const blanks = event.fillings.map((found) => likeliestFirst(found.map((each) => [each.text, each.probability])));
  const titles = blanks.map((_, index) => heading(blanks.length > 1 ? `Blank ${index + 1}` : "The blank"));
  showOthers(card, ...blanks.flatMap((rows, index) => [titles[index], bars(["Filling", "Probability"], rows)]));
}

function showEntities(card, event) {
  card.text.replaceChildren(...withMarks(card.sent.inputs, event.prediction));
  if (!event.prediction.length) {
    showOthers(card, heading("Nothing is marked in this text"));
    return;
  }
  const legend = element("ul", "legend");
  for (const label of new Set(event.prediction.map((entity) => entity.label))) {
    const number = event.prediction.filter((entity) => entity.label === label).length;
    legend.append(element("li", "", marked(String(number), label)));
  }
  const row = ({text, label, probability}) => [marked(text, label), percent(probability), probability];
  showOthers(card, heading("What is marked"), legend, bars(["Words", "Probability"], event.prediction.map(row)));
}

function showSpan(card, event) {
  card.text.textContent = event.prediction || "No answer";
  const pairs = event.best.map(({text, probability}) => [text, probability]);
  if (event.null !== undefined) pairs.push(["No answer", event.null]);
  const likeliest = [heading("The likeliest"), bars(["Answer", "Probability"], likeliestFirst(pairs))];
  if (!event.prediction) {
    showOthers(card, ...likeliest);
    return;
  }
  const passage = element("p", "passage", ...withMarks(card.sent.context, [event]));
  passage.tabIndex = 0;
  showOthers(card, heading("Where it stands"), passage, ...likeliest);
  // Into view, and the page stays where it is.
  passage.scrollTop = passage.querySelector("mark").offsetTop - passage.offsetTop - 48;
}

// A text, its tokens' probabilities where they were asked for; and beside it others, of beams or draws.
function showText(card, event) {
  const tokens = tokenDetails(event.token_probabilities);
  if (!event.alternatives) {
    card.text.replaceChildren(...shownText(event));
    if (tokens.length) showOthers(card, ...tokens);
    return;
  }
  const all = [event, ...event.alternatives];
  const best = Math.max(...all.map((each) => each.score));
  // Scores are logarithms: a bar is as long as the text is likely, beside the best.
  const beside = all.map((each, index) => element("div", "alternative",
    heading(`Text ${index + 1}`), element("p", "text", ...shownText(each)),
    element("p", "hint", `score ${shownScore(each.score)}`), bar(Math.exp(each.score - best))));
  card.text.replaceChildren();
  showOthers(card, element("div", "beside", ...beside), ...tokens);
}

const NOTHING = "(nothing: the model ended the text at once)";

function shownText(event) {
  if (event.token_probabilities?.length) return [tokensOf(event.token_probabilities)];
  return [event.prediction || NOTHING];
}

// What a model is asked -> what the page is called by, and how an answer is shown.
const WAYS = {
  write: {
    writes: true, show: showText, button: "Write", does: "writes", placeholder: "What the model is to read",
    empty: "What the model writes appears here, token by token.",
  },
  class: {
    show: showClasses, button: "Classify", does: "classifies", placeholder: "The text",
    empty: "The class that the model finds likeliest appears here, and how likely each is.",
  },
  choice: {
    show: showCandidates, button: "Choose", does: "chooses", placeholder: "The text, or the question",
    empty: "The candidate that the model chooses appears here, and how likely each is.",
  },
  score: {
    show: showNumber, button: "Score", does: "scores", placeholder: "The text",
    empty: "The number that the model gives appears here.",
  },
  tag: {
    show: showEntities, button: "Tag the words", does: "tags them", placeholder: "The text",
    empty: "The text with the tags of its words appears here, and how likely each is.",
  },
  span: {
    show: showSpan, button: "Answer", does: "answers", title: "Question", field: "question", limit: "at a time",
    placeholder: "What you want to know of the context",
    empty: "The part of the context that answers the question appears here, and what else might.",
  },
  fill: {
    show: showFillings, button: "Fill", does: "fills", placeholder: "Text with [MASK] where a word is to be filled in",
    empty: "The text with its blanks filled appears here, and what else each may be.",
  },
};
