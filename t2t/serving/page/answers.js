// Rendering of answers by kind of model; a card shows one answer, see asking.js.

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
    card.text.textContent = event.prediction; // truncation removed some blanks
  }
  const blanks = event.fillings.map((found) => likeliestFirst(found.map((each) => [each.text, each.probability])));
  const titles = blanks.map((_, index) => heading(blanks.length > 1 ? `Blank ${index + 1}` : "The blank"));
  showOthers(card, ...blanks.flatMap((rows, index) => [titles[index], bars(["Filling", "Probability"], rows)]));
}

function showEntities(card, event) {
  card.text.replaceChildren(...withMarks(card.sent.inputs, event.prediction));
  if (!event.prediction.length) {
    showOthers(card, heading("No entities in this text"));
    return;
  }
  const legend = element("ul", "legend");
  for (const label of new Set(event.prediction.map((entity) => entity.label))) {
    const number = event.prediction.filter((entity) => entity.label === label).length;
    legend.append(element("li", "", marked(String(number), label)));
  }
  const row = ({text, label, probability}) => [marked(text, label), percent(probability), probability];
  showOthers(card, heading("Entities"), legend, bars(["Words", "Probability"], event.prediction.map(row)));
}

function showSpan(card, event) {
  card.text.textContent = event.prediction || "No answer";
  const pairs = event.best.map(({text, probability}) => [text, probability]);
  if (event.null !== undefined) pairs.push(["No answer", event.null]);
  const likeliest = [heading("Likeliest answers"), bars(["Answer", "Probability"], likeliestFirst(pairs))];
  if (!event.prediction) {
    showOthers(card, ...likeliest);
    return;
  }
  const passage = element("p", "passage", ...withMarks(card.sent.context, [event]));
  passage.tabIndex = 0;
  showOthers(card, heading("Answer in the context"), passage, ...likeliest);
  // Scrolls the answer into view without moving the page.
  passage.scrollTop = passage.querySelector("mark").offsetTop - passage.offsetTop - 48;
}

// Shows a text with its token probabilities, if requested, and the alternatives of beam search or sampling.
function showText(card, event) {
  const tokens = tokenDetails(event.token_probabilities);
  if (!event.alternatives) {
    card.text.replaceChildren(...shownText(event));
    if (tokens.length) showOthers(card, ...tokens);
    return;
  }
  const all = [event, ...event.alternatives];
  const best = Math.max(...all.map((each) => each.score));
  // Scores are logarithms: the length of a bar is the probability relative to the best text.
  const beside = all.map((each, index) => element("div", "alternative",
    heading(`Text ${index + 1}`), element("p", "text", ...shownText(each)),
    element("p", "hint", `score ${shownScore(each.score)}`), bar(Math.exp(each.score - best))));
  card.text.replaceChildren();
  showOthers(card, element("div", "beside", ...beside), ...tokens);
}

const NOTHING = "(empty: the model generated EOS first)";

function shownText(event) {
  if (event.token_probabilities?.length) return [tokensOf(event.token_probabilities)];
  return [event.prediction || NOTHING];
}

// Kind of model -> labels of the page, and the function that shows an answer.
const WAYS = {
  write: {
    writes: true, show: showText, button: "Generate", does: "generates", placeholder: "Input text of the model",
    empty: "The generated text appears here, token by token.",
  },
  class: {
    show: showClasses, button: "Classify", does: "classifies", placeholder: "Text",
    empty: "The predicted class and the probabilities of all classes appear here.",
  },
  choice: {
    show: showCandidates, button: "Choose", does: "chooses", placeholder: "Text or question",
    empty: "The predicted candidate and the probabilities of all candidates appear here.",
  },
  score: {
    show: showNumber, button: "Score", does: "scores", placeholder: "Text",
    empty: "The predicted number appears here.",
  },
  tag: {
    show: showEntities, button: "Tag the words", does: "tags", placeholder: "Text",
    empty: "The text with its entities and their probabilities appears here.",
  },
  span: {
    show: showSpan, button: "Answer", does: "answers", title: "Question", field: "question", limit: "at a time",
    placeholder: "Question about the context",
    empty: "The answer from the context appears here, with other likely answers.",
  },
  fill: {
    show: showFillings, button: "Fill", does: "fills", placeholder: "Text with [MASK] in place of missing words",
    empty: "The text with its blanks filled appears here, with other likely tokens.",
  },
};
