// One answer on the page, while it comes and after: Markdown, or the text as it was written with drafts coloured.

import { Rendering } from "./markdown.js";
import { make, textNodes } from "./text.js";

const REST = 5; // times what drawing took, until it is drawn again: the model needs the processor more
const SHORTEST_REST = 30; // ms
const LONGEST_REST = 300;

export class Answer {
  text = "";
  thinking = "";
  #thought = null; // the folded thinking before the text; none until there is some
  #pieces = [];
  #said = make("div", "said");
  #reading = null; // how far the question is read, until there is text
  #rendering = null; // of Markdown; none while drafts are shown
  #drawn = 0; // pieces on the page, while drafts are shown
  #done = false;
  #drawing = null; // the timer of what is to be drawn
  #rest = 0;
  #around;
  #showDrafts;

  /** around(draw): draws, and keeps the reader's place. */
  constructor(name, around, showDrafts) {
    this.article = make("article", "theirs writing", make("h2", "", name), this.#said);
    this.#around = around;
    this.show(showDrafts);
  }

  add(chunk) {
    if (chunk.reading) this.#showReading(chunk.reading);
    const thinking = chunk.choices?.[0]?.delta?.reasoning_content ?? "";
    if (thinking) this.#think(thinking);
    const text = chunk.choices?.[0]?.delta?.content ?? "";
    const pieces = chunk.medusa?.pieces ?? [{ text, drafted: false }];
    if (!text) return;
    this.#showReading(null);
    this.#thought?.classList.remove("going-on");
    this.text += text;
    this.#pieces.push(...pieces);
    this.#drawing ??= setTimeout(() => requestAnimationFrame(() => this.#draw()), this.#rest);
  }

  /** Nothing more comes. */
  finish() {
    clearTimeout(this.#drawing);
    this.#showReading(null);
    this.#done = true;
    this.#thought?.classList.remove("going-on");
    this.#draw();
    this.article.classList.remove("writing");
  }

  /** Whether drafts are coloured. */
  show(drafts) {
    this.#showDrafts = drafts;
    this.#said.replaceChildren();
    this.#said.classList.toggle("raw", drafts);
    this.#rendering = drafts ? null : new Rendering(this.#said);
    this.#drawn = 0;
    this.#draw();
  }

  #think(text) {
    this.#showReading(null);
    this.thinking += text;
    this.#around(() => {
      if (!this.#thought) {
        this.#thought = make("details", "thinking going-on", make("summary", "", "Thinking"), make("div", "thought"));
        this.#said.before(this.#thought);
      }
      this.#thought.lastChild.append(...textNodes(text));
    });
  }

  #showReading(found) {
    if (!found && !this.#reading) return;
    const shown = (count) => count.toLocaleString("en");
    const line = found && make("p", "reading", `reading: ${shown(found.done)} of ${shown(found.total)} tokens`);
    this.#around(() => {
      this.#reading?.remove();
      if (line) this.#said.before(line);
    });
    this.#reading = line;
  }

  #draw() {
    const begun = performance.now();
    this.#drawing = null;
    this.#around(() => {
      if (this.#showDrafts) this.#drawPieces();
      else if (this.#done) this.#rendering.finish(this.text);
      else this.#rendering.grow(this.text);
    });
    this.#rest = Math.min(LONGEST_REST, Math.max(SHORTEST_REST, REST * (performance.now() - begun)));
  }

  #drawPieces() {
    for (const piece of this.#pieces.slice(this.#drawn)) {
      // White space between words is left alone: coloured, it would hang over the end of a line.
      const words = piece.drafted ? piece.text.trimStart() : "";
      this.#said.append(...textNodes(piece.text.slice(0, piece.text.length - words.length)));
      if (words) this.#said.append(make("span", "drafted", ...textNodes(words)));
    }
    this.#drawn = this.#pieces.length;
  }
}
