// Markdown to nodes. No HTML is ever parsed: the libraries give trees, and elements are made here, one by one, of the
// kinds named here alone. The page's policy (trusted-types 'none') has the browser refuse everything else.
/* global hljs, markdownit */

import { mathElement, mathPlugin } from "./math.js";
import { make, textNodes } from "./text.js";

const TAGS = new Set(
  "p ul ol li blockquote table thead tbody tr th td strong em s h1 h2 h3 h4 h5 h6".split(" "),
);
const LINK = /^(?:https?:\/\/|mailto:)/i;
const MOST_COLOURED = 100_000; // characters of a code block

const md = markdownit({ html: false, linkify: true, breaks: true }).use(mathPlugin);
md.validateLink = (url) => LINK.test(url.trim());
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false, fuzzyIP: false });

/** An answer in `place`, drawn again and again while its text grows. */
export class Rendering {
  #place;
  #from = 0; // of the text: what comes before is drawn for good
  #kept = 0; // the nodes of it

  constructor(place) {
    this.#place = place;
  }

  /** Draws what came since, from the last blocks on. */
  grow(text) {
    const rest = normal(text).slice(this.#from);
    const tokens = md.parse(rest, { open: true });
    graft(this.#place, build(tokens), this.#kept);
    // Two blocks stay open: one is growing, and may yet turn out to be part of the one before it.
    const starts = tokens.filter((token) => token.level === 0 && token.nesting >= 0).map((token) => token.map[0]);
    if (starts.length <= 2) return;
    this.#kept += starts.length - 2;
    this.#from += lengthOfLines(rest, starts.at(-2));
  }

  /** Draws the whole text: what came late may change what was drawn early. */
  finish(text) {
    graft(this.#place, build(md.parse(normal(text), {})), 0);
  }
}

function normal(text) {
  return text.replace(/\r\n?/g, "\n");
}

function lengthOfLines(text, lines) {
  let at = 0;
  for (let line = 0; line < lines; line++) at = text.indexOf("\n", at) + 1;
  return at;
}

// Makes the children of `parent` from the index `first` on those of `fresh`, and leaves alone what is the same already:
// a selection and the place a code block is scrolled to survive.
function graft(parent, fresh, first) {
  const old = [...parent.childNodes].slice(first);
  const next = [...fresh.childNodes];
  next.forEach((node, index) => {
    const had = old[index];
    if (!had) parent.append(node);
    else if (had.isEqualNode(node)) return;
    else if (had.localName !== "math" && had.nodeType === 1 && had.cloneNode().isEqualNode(node.cloneNode())) {
      graft(had, node, 0);
    } else had.replaceWith(node);
  });
  old.slice(next.length).forEach((node) => node.remove());
}

// --- tokens to nodes -----------------------------------------------------------------------------

function build(tokens) {
  const root = document.createDocumentFragment();
  fill(root, tokens);
  return root;
}

function fill(root, tokens) {
  const open = [root];
  for (const token of tokens) {
    const at = open.at(-1);
    if (token.nesting < 0) {
      open.pop();
    } else if (token.nesting > 0) {
      const element = token.hidden ? at : container(token);
      if (element !== at) at.append(element.localName === "table" ? scrolling(element) : element);
      open.push(element);
    } else if (token.type === "inline") {
      fill(at, token.children);
    } else {
      const inLink = open.some((element) => element.localName === "a");
      at.append(...leaf(token, inLink));
    }
  }
}

function container(token) {
  if (token.type === "link_open") return link(token.attrGet("href"));
  if (!TAGS.has(token.tag)) return make("span");
  // The page's own headings are h1 and h2.
  const level = /^h(\d)$/.exec(token.tag);
  const element = make(level ? `h${Math.min(6, Number(level[1]) + 2)}` : token.tag);
  const start = token.attrGet("start");
  if (start !== null) element.start = start;
  const side = /^text-align:(left|center|right)$/.exec(token.attrGet("style") ?? "");
  if (side) element.className = side[1];
  return element;
}

function leaf(token, inLink) {
  switch (token.type) {
    case "softbreak":
    case "hardbreak":
      return [make("br")];
    case "hr":
      return [make("hr")];
    case "code_inline":
      return [make("code", "", ...textNodes(token.content))];
    case "fence":
    case "code_block":
      return [codeBlock(token)];
    case "math_inline":
    case "math_block":
      return [mathElement(token)];
    case "image": {
      // Not fetched: whoever serves an image learns that it was looked at, and what its address was made to say.
      const words = textNodes(`image: ${token.content || token.attrGet("src")}`);
      const place = inLink ? make("span") : link(token.attrGet("src"));
      place.append(...words);
      return [place];
    }
    default:
      return textNodes(token.content);
  }
}

function link(address) {
  if (!LINK.test(address)) return make("span");
  const element = make("a");
  element.href = address;
  element.title = element.href;
  element.target = "_blank";
  element.rel = "noopener noreferrer";
  return element;
}

// What is too wide scrolls by itself, also by keyboard.
function scrolling(element) {
  const place = make("div", "scrolling", element);
  place.tabIndex = 0;
  return place;
}

function codeBlock(token) {
  const name = token.info.trim().split(/\s+/)[0];
  const copy = make("button", "copy-code", "Copy");
  copy.type = "button";
  copy.title = "Copy this code";
  const head = make("div", "code-head", make("span", "", ...textNodes(name.slice(0, 40))), copy);
  const pre = make("pre", "", coloured(token.content.replace(/\n$/, ""), name));
  pre.tabIndex = 0;
  return make("div", "code", head, pre);
}

function coloured(text, language) {
  const code = make("code");
  if (!hljs.getLanguage(language) || text.length > MOST_COLOURED) {
    code.append(...textNodes(text));
    return code;
  }
  const paint = (place, parts) => {
    for (const part of parts) {
      if (typeof part === "string") place.append(...textNodes(part));
      else if (!part.scope) paint(place, part.children);
      else {
        const span = make("span", `hl-${part.scope.split(".")[0]}`);
        paint(span, part.children);
        place.append(span);
      }
    }
  };
  paint(code, hljs.highlight(text, { language, ignoreIllegals: true })._emitter.rootNode.children);
  return code;
}
