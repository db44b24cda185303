// Maths: which parts of a text are TeX, and TeX as MathML.
/* global temml */

import { hasUnseen, make, textNodes } from "./text.js";

const PAIRS = [
  ["$$", "$$", true],
  ["$", "$", false],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
];
const ENVIRONMENT = /^\\begin\{((?:equation|align|alignat|gather|multline)\*?)\}/;

/** A plugin of markdown-it. env.open: the text is not complete yet. */
export function mathPlugin(md) {
  md.inline.ruler.before("escape", "math_inline", inlineMath);
  md.block.ruler.before("fence", "math_block", blockMath, { alt: ["paragraph", "reference", "blockquote", "list"] });
}

function inlineMath(state, silent) {
  const pair = PAIRS.find(([open]) => state.src.startsWith(open, state.pos));
  if (!pair) return false;
  const [open, close, display] = pair;
  const begin = state.pos + open.length;
  if (open === "$" && (/\s/.test(state.src[begin] ?? " ") || /[\p{L}\p{N}]/u.test(state.src[state.pos - 1] ?? ""))) {
    return false;
  }
  const end = closing(state, close, begin);
  if (end < 0 || end >= state.posMax || state.src.slice(begin, end).trim() === "") return false;
  if (!silent) {
    const token = state.push("math_inline", "", 0);
    token.content = state.src.slice(begin, end);
    token.markup = open;
    token.meta = { display };
  }
  state.pos = end + close.length;
  return true;
}

// Where `close` is, or -1. What was not found once is not looked for again: else many openings take quadratic time.
function closing(state, close, begin) {
  state.noClosing ??= new Set();
  if (state.noClosing.has(close)) return -1;
  let end = begin - 1;
  while ((end = state.src.indexOf(close, end + 1)) >= 0) {
    const escaped = /(?<!\\)(?:\\\\)*\\$/.test(state.src.slice(Math.max(0, end - 20), end));
    const isPrice = close === "$" && (/\s/.test(state.src[end - 1]) || /\d/.test(state.src[end + 1] ?? ""));
    if (!escaped) return isPrice ? -1 : end;
  }
  state.noClosing.add(close);
  return -1;
}

function blockMath(state, startLine, endLine, silent) {
  const line = (at) => state.src.slice(state.bMarks[at] + state.tShift[at], state.eMarks[at]);
  const first = line(startLine);
  const environment = ENVIRONMENT.exec(first);
  const close = environment ? `\\end{${environment[1]}}` : { $$: "$$", "\\[": "\\]" }[first.slice(0, 2)];
  if (!close || state.sCount[startLine] - state.blkIndent >= 4) return false;
  const lines = [environment ? first : first.slice(2)];
  let next = startLine + 1;
  while (!lines.at(-1).includes(close) && next < endLine) {
    if (state.isEmpty(next) || state.sCount[next] < state.blkIndent) return false;
    lines.push(line(next++));
  }
  const end = lines.at(-1).indexOf(close);
  const isOpen = end < 0 && state.env.open;
  if (!isOpen && (end < 0 || lines.at(-1).slice(end + close.length).trim() !== "")) return false;
  if (silent) return true;
  if (end >= 0) lines.push(lines.pop().slice(0, environment ? undefined : end));
  const token = state.push("math_block", "", 0);
  token.content = lines.join("\n").trim();
  token.markup = environment ? "" : first.slice(0, 2);
  token.map = [startLine, next];
  token.meta = { display: true, isOpen };
  state.line = next;
  return true;
}

/** The element of a token of maths: MathML, or the TeX itself where it is not complete or not understood. */
export function mathElement({ content, markup, meta }) {
  const place = make("span", meta.display ? "math display" : "math");
  try {
    if (meta.isOpen || hasUnseen(content)) throw new Error("shown as it is");
    const options = { displayMode: meta.display, throwOnError: true, trust: false, maxExpand: 500, maxSize: [30, 400] };
    temml.render(content, place, options);
    place.querySelectorAll("*").forEach(check);
  } catch {
    const close = PAIRS.find(([open]) => open === markup)?.[1] ?? "";
    place.replaceChildren(make("code", "", ...textNodes(markup + content + close)));
  }
  return place;
}

// Temml refuses what is not mathematics (\href, \htmlClass, ...) by itself. This holds whatever Temml does.
function check(element) {
  const isMath = element.namespaceURI === "http://www.w3.org/1998/Math/MathML";
  if (!isMath && element.localName !== "span") throw new Error("not MathML");
  for (const { name } of [...element.attributes]) {
    if (/^(?:on.*|id|name|.*href|src|action.*)$/i.test(name)) element.removeAttribute(name);
  }
}
