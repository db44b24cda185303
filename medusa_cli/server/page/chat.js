// The page's own script: what is asked, the conversation, and the controls.

import { Answer } from "./answer.js";
import { copy } from "./clipboard.js";
import { chunks } from "./server.js";
import { make, textNodes } from "./text.js";

const by = (id) => document.getElementById(id);
const turns = []; // {role, content, thinking, article, again, answer}: what the model is told of the conversation
let running = null; // {answer, abort}: the answer that is under way

// --- the conversation ----------------------------------------------------------------------------

function request() {
  const system = by("system").value.trim();
  const messages = turns.map(({ role, content, thinking }) =>
    thinking ? { role, content, reasoning_content: thinking } : { role, content },
  );
  const body = {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    drafted: true,
  };
  if (by("thinking").value) body.thinking = by("thinking").value === "on";
  for (const [id, field] of [["temperature", "temperature"], ["most", "max_tokens"], ["seed", "seed"]]) {
    if (by(id).value !== "") body[field] = by(id).valueAsNumber;
  }
  return body;
}

function ask(text) {
  by("hint").hidden = true;
  for (const form of document.querySelectorAll("article form")) form.reset();
  // The question that failed went back into the box, and comes again.
  for (const article of document.querySelectorAll("article.failed")) article.remove();
  const article = make("article", "mine", make("h2", "", "You"), make("div", "said raw", ...textNodes(text)));
  const turn = { role: "user", content: text, article };
  turn.again = button("Edit", () => edit(turn));
  article.append(make("div", "foot", turn.again));
  turns.push(turn);
  by("log").append(article);
  following = true;
  top = 0;
  respond();
}

// previous: the turn that this answer replaces, if it comes.
async function respond(previous) {
  const answer = new Answer(by("model").textContent || "model", keepingPlace, by("drafted").checked);
  running = { answer, abort: new AbortController() };
  by("log").append(answer.article);
  showRunning();
  keepingPlace(() => {});
  let line = "";
  let needsKey = false;
  try {
    for await (const chunk of chunks(request(), by("key").value, running.abort.signal)) {
      answer.add(chunk);
      const reason = chunk.choices?.[0]?.finish_reason;
      if (reason && chunk.medusa) line = make("p", "figures", figures(chunk.medusa, reason));
    }
  } catch (error) {
    line = error.name === "AbortError" ? make("p", "figures", "stopped") : failure(error);
    needsKey = error.needsKey;
  }
  answer.finish();
  keepingPlace(() => (answer.text || answer.thinking ? keep(answer, line) : takeBack(answer, line, previous)));
  running = null;
  showRunning();
  if (needsKey) {
    showOptions(true);
    by("key").focus();
  }
}

function keep(answer, line) {
  const { text, thinking, article } = answer;
  const turn = { role: "assistant", content: text, thinking, article, answer };
  turn.again = button("Regenerate", regenerate);
  const whole = button("Copy", () => copy(answer.text, whole));
  answer.article.append(make("div", "foot", line, whole, turn.again));
  turns.push(turn);
}

// A question without an answer goes back into the box, so that it can be sent again.
function takeBack(answer, line, previous) {
  answer.article.append(line);
  answer.article.classList.add("failed");
  if (previous) {
    turns.push(previous);
    answer.article.before(previous.article);
    return;
  }
  const last = turns.pop();
  last.article.classList.add("failed");
  last.again.remove();
  if (!by("text").value) {
    by("text").value = last.content;
    fit(by("text"));
  }
}

function drop(turn) {
  for (const one of turns.splice(turns.indexOf(turn))) one.article.remove();
}

function regenerate() {
  const last = turns.at(-1);
  drop(last);
  for (const article of document.querySelectorAll("article.failed")) article.remove();
  respond(last);
}

function edit(turn) {
  const shown = [...turn.article.querySelectorAll(".said, .foot")];
  const box = make("textarea", "", turn.content);
  box.setAttribute("aria-label", "Edited message");
  const cancel = button("Cancel", () => form.reset());
  const submit = make("button", "main", "Send");
  const form = make("form", "", box, make("div", "foot", submit, cancel));
  const close = () => {
    form.remove();
    for (const element of shown) element.hidden = false;
  };
  form.addEventListener("reset", close);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = box.value.trim();
    if (!text || running) return;
    drop(turn);
    ask(text);
  });
  sendsByEnter(box, form);
  box.addEventListener("keydown", (event) => {
    if (event.key === "Escape") form.reset();
  });
  for (const element of shown) element.hidden = true;
  turn.article.append(form);
  fit(box);
  box.focus();
}

function figures(found, reason) {
  const parts = [];
  if (found.tokens_per_second > 0) parts.push(`${found.tokens_per_second.toFixed(1)} tokens/s`);
  if (found.tokens_per_step > 0) parts.push(`${found.tokens_per_step.toFixed(2)} tokens per step`);
  if (reason === "length") parts.push(found.stop_reason === "context_full" ? "the context is full" : "cut at the limit");
  return parts.join(" · ");
}

function failure(error) {
  const line = make("p", "wrong", error instanceof TypeError ? "the server does not answer" : error.message);
  line.setAttribute("role", "alert");
  return line;
}

// --- the reader's place --------------------------------------------------------------------------

const log = by("log");
let following = true; // whether the end stays in sight: until the reader scrolls up, and again from the end on
let top = 0;

log.addEventListener("scroll", () => {
  if (log.scrollHeight - log.scrollTop - log.clientHeight <= 4) following = true;
  else if (log.scrollTop < top) following = false;
  top = log.scrollTop;
});

function keepingPlace(change) {
  if (log.scrollTop < top) following = false; // the event that says so may still be under way
  change();
  if (following) log.scrollTop = log.scrollHeight;
  top = log.scrollTop;
}

// --- the page ------------------------------------------------------------------------------------

function button(name, action) {
  const element = make("button", name.toLowerCase(), name);
  element.type = "button";
  element.addEventListener("click", action);
  return element;
}

function showRunning() {
  const is = running !== null;
  by("send").hidden = is;
  by("stop").hidden = !is;
  by("new").disabled = is;
  log.setAttribute("aria-busy", String(is));
  by("status").textContent = is ? "answering" : "";
  const question = turns.findLast((turn) => turn.role === "user");
  for (const turn of turns) turn.again.hidden = is || (turn !== question && turn !== turns.at(-1));
  // The focus goes where one writes, unless it is somewhere for a reason.
  const focused = document.activeElement;
  if ((focused === document.body || focused.hidden) && getSelection().isCollapsed) by("text").focus();
}

function showOptions(is) {
  by("options").hidden = !is;
  by("options-button").setAttribute("aria-expanded", String(is));
}

function fit(box) {
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function sendsByEnter(box, form) {
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  box.addEventListener("input", () => fit(box));
}

sendsByEnter(by("text"), by("form"));
by("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = by("text").value.trim();
  if (!text || running) return;
  by("text").value = "";
  fit(by("text"));
  ask(text);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort.abort();
});
by("stop").addEventListener("click", () => running?.abort.abort());
by("options-button").addEventListener("click", () => showOptions(by("options").hidden));
by("drafted").addEventListener("change", () => {
  const answers = [...turns.map((turn) => turn.answer), running?.answer];
  for (const answer of answers) answer?.show(by("drafted").checked);
});
by("new").addEventListener("click", () => {
  turns.length = 0;
  for (const article of document.querySelectorAll("article")) article.remove();
  by("hint").hidden = false;
  by("text").focus();
});
log.addEventListener("click", (event) => {
  const pressed = event.target.closest(".copy-code");
  if (pressed) copy(pressed.closest(".code").querySelector("code").textContent, pressed);
});
fetch("/health")
  .then((response) => response.json())
  .then((health) => {
    by("model").textContent = health.model;
    document.title = `medusa · ${health.model}`;
  })
  .catch(() => {});
