// The page's own script. What a model says is only ever put into text nodes, never parsed as HTML.
"use strict";

const by = (id) => document.getElementById(id);
const messages = [];
let running = null; // the AbortController of the answer that is under way

function make(tag, kind, text) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text) element.textContent = text;
  return element;
}

function addMessage(kind, name, text) {
  by("hint").hidden = true;
  const article = make("article", kind);
  const said = make("div", "said", text);
  article.append(make("h2", "", name), said);
  by("log").append(article);
  return { article, said };
}

// --- what is asked -------------------------------------------------------------------------------

function request() {
  const system = by("system").value.trim();
  const body = {
    messages: system ? [{ role: "system", content: system }, ...messages] : [...messages],
    stream: true,
  };
  if (by("drafted").checked) body.drafted = true;
  for (const [id, field] of [["temperature", "temperature"], ["most", "max_tokens"], ["seed", "seed"]]) {
    if (by(id).value !== "") body[field] = by(id).valueAsNumber;
  }
  return body;
}

async function post(body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (by("key").value) headers.Authorization = `Bearer ${by("key").value}`;
  const response = await fetch("/v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  if (response.ok) return response;
  const found = await response.json().catch(() => null);
  const error = new Error(found?.error?.message ?? `the server said ${response.status}`);
  error.needsKey = response.status === 401;
  throw error;
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: ") && part !== "data: [DONE]") yield JSON.parse(part.slice(6));
    }
  }
}

// --- an answer -----------------------------------------------------------------------------------

function append(said, chunk) {
  const text = chunk.choices?.[0]?.delta?.content ?? "";
  for (const piece of chunk.medusa?.pieces ?? [{ text, drafted: false }]) {
    // White space between words is left alone: coloured, it would hang over the end of a line.
    const words = piece.drafted ? piece.text.trimStart() : "";
    said.append(piece.text.slice(0, piece.text.length - words.length));
    if (words) said.append(make("span", "drafted", words));
  }
  return text;
}

function figures(found, reason) {
  const parts = [];
  if (found.tokens_per_second > 0) parts.push(`${found.tokens_per_second.toFixed(1)} tokens/s`);
  if (found.tokens_per_step > 0) parts.push(`${found.tokens_per_step.toFixed(2)} tokens per step`);
  if (reason === "length") parts.push(found.stop_reason === "context_full" ? "the context is full" : "cut at the limit");
  return parts.join(" · ");
}

async function answer() {
  const { article, said } = addMessage("theirs writing", by("model").textContent || "model", "");
  running = new AbortController();
  showRunning(true);
  let text = "";
  let needsKey = false;
  try {
    for await (const chunk of events(await post(request(), running.signal))) {
      if (chunk.error) throw new Error(chunk.error.message);
      const near = isNearEnd();
      text += append(said, chunk);
      const reason = chunk.choices?.[0]?.finish_reason;
      if (reason && chunk.medusa) article.append(make("p", "figures", figures(chunk.medusa, reason)));
      if (near) scrollToEnd();
    }
  } catch (error) {
    if (error.name === "AbortError") article.append(make("p", "figures", "stopped"));
    else article.append(failure(error));
    needsKey = error.needsKey;
  }
  article.classList.remove("writing");
  if (text) messages.push({ role: "assistant", content: text });
  else takeBack();
  running = null;
  showRunning(false);
  if (needsKey) {
    showOptions(true);
    by("key").focus();
  }
  if (isNearEnd()) scrollToEnd();
}

function failure(error) {
  const line = make("p", "wrong", error instanceof TypeError ? "the server does not answer" : error.message);
  line.setAttribute("role", "alert");
  return line;
}

// A question without an answer goes back into the box, so that it can be sent again.
function takeBack() {
  const last = messages.pop();
  if (!by("text").value) {
    by("text").value = last.content;
    fit();
  }
}

// --- the page ------------------------------------------------------------------------------------

function isNearEnd() {
  const log = by("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function scrollToEnd() {
  by("log").scrollTop = by("log").scrollHeight;
}

function showRunning(is) {
  by("send").hidden = is;
  by("stop").hidden = !is;
  by("new").disabled = is;
  by("log").setAttribute("aria-busy", String(is));
  by("status").textContent = is ? "answering" : "";
  by("text").focus();
}

function showOptions(is) {
  by("options").hidden = !is;
  by("options-button").setAttribute("aria-expanded", String(is));
}

function fit() {
  const box = by("text");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight + 2}px`;
}

function send() {
  const text = by("text").value.trim();
  if (!text || running) return;
  by("text").value = "";
  fit();
  messages.push({ role: "user", content: text });
  addMessage("mine", "You", text);
  scrollToEnd();
  answer();
}

by("form").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
by("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
by("text").addEventListener("input", fit);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
by("stop").addEventListener("click", () => running?.abort());
by("options-button").addEventListener("click", () => showOptions(by("options").hidden));
by("new").addEventListener("click", () => {
  messages.length = 0;
  for (const article of document.querySelectorAll("article")) article.remove();
  by("hint").hidden = false;
  by("text").focus();
});
fetch("/health")
  .then((response) => response.json())
  .then((health) => {
    by("model").textContent = health.model;
    document.title = `medusa · ${health.model}`;
  })
  .catch(() => {});
